"""Keeps of a session of cosmic-ray as many mutants as are asked for, drawn by a seed, and skips the others.

A change of a type annotation or of a decorator says nothing of the tests: such a module does not even import, or
the change has no effect. So neither is drawn.
"""

import argparse
import random
import sqlite3
from pathlib import Path

ORDERED = (  # ids are new each time
    "SELECT job_id, operator_name FROM mutation_specs ORDER BY module_path, operator_name, operator_args, occurrence"
)
SAYS_NOTHING = ("core/ReplaceBinaryOperator_BitOr_", "core/RemoveDecorator")


def draw(session: Path, *, count: int, seed: int) -> int:
    """Mark all mutants but `count` of them as skipped; return how many are left to be tried."""
    with sqlite3.connect(session) as database:
        found = database.execute(ORDERED).fetchall()
        tell = [job for job, operator in found if not operator.startswith(SAYS_NOTHING)]
        drawn = set(random.Random(seed).sample(tell, min(count, len(tell))))
        database.executemany(
            "INSERT OR REPLACE INTO work_results (job_id, worker_outcome, output, test_outcome, diff)"
            " VALUES (?, 'SKIPPED', NULL, NULL, NULL)",
            [(job,) for job, _ in found if job not in drawn],
        )
    return len(drawn)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("session", type=Path, help="what `cosmic-ray init` has written")
    options.add_argument("--count", type=int, default=50)
    options.add_argument("--seed", type=int, default=0)
    asked = options.parse_args()
    print(draw(asked.session, count=asked.count, seed=asked.seed), "mutants, seed", asked.seed)
