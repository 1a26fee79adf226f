"""Wherever a writer of a directory is killed, the model is there: as it was, or as it was to be."""

import subprocess
import sys
from pathlib import Path


def test_a_directory_is_whole_wherever_its_writer_was_killed_and_who_mends_it(tmp_path: Path) -> None:
    """In a process without threads, which may be forked for each operation; see there."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.repository.kill_points", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("(0,") == done.stdout.count(", 0)") == 0  # killed before the change and after it
