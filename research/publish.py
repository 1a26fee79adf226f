"""Figures that are committed, from which the site's page of benchmarks is made: `research/results/NAME.json`.

python -m research.publish out/elastic.json                   # takes what a command wrote with --json
python -m research.publish research/results/elastic.json      # runs its command again; without a name, all
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from research.__main__ import app

RESULTS = Path(__file__).parent / "results"
CONDITIONS = "settings"

Result = dict[str, Any]  # settings, then the tables of each part by its name


def main(words: Sequence[str]) -> None:
    """Take files, and repeat those that are committed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="Files that commands wrote, or committed ones.")
    for file in parser.parse_args(words).files or sorted(RESULTS.glob("*.json")):
        if file.resolve().parent == RESULTS:
            repeat(file)
        else:
            publish(file, read(file))


def repeat(file: Path) -> None:
    """Run the command of a committed file again, and take what it writes."""
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder) / file.name
        command = [sys.executable, "-m", "research", *command_of(read(file)), "--json", str(fresh)]
        subprocess.run(command, check=True)
        publish(file, read(fresh))


def read(file: Path) -> Result:
    """Return what is in a file."""
    result: Result = json.loads(file.read_text(encoding="utf-8"))
    return result


def publish(file: Path, result: Result) -> None:
    """Write a result under the name of `file`, without what is raw. Raises `ValueError` for a path of this machine."""
    kept = {name: part if name == CONDITIONS else {"tables": part["tables"]} for name, part in result.items()}
    if absolute := [value for value in _texts(kept[CONDITIONS]) if value.startswith("/")]:
        raise ValueError(f"{file} names {absolute[0]}, which is of this machine: run it with a path from the checkout")
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / file.name).write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _texts(value: object) -> list[str]:
    if isinstance(value, Mapping):
        return [text for one in value.values() for text in _texts(one)]
    if isinstance(value, list):
        return [text for one in value for text in _texts(one)]
    return [value] if isinstance(value, str) else []


def command_of(result: Result) -> list[str]:
    """Return the words behind `python -m research` that repeat a result."""
    settings = result[CONDITIONS]
    group: Any = typer.main.get_command(app)
    words, behind = [settings["command"]], list[str]()
    for param in group.get_command(None, settings["command"]).load().params:
        value = settings.get(param.name)
        if param.name not in settings or value == param.default:
            continue
        if not param.opts[0].startswith("-"):
            words.append(str(value))
        elif isinstance(value, bool):
            behind.append(param.opts[0] if value else param.secondary_opts[0])
        else:
            for one in value if isinstance(value, list) else [value]:
                behind += [param.opts[0], str(one)]
    parts = [word for name in result if name != CONDITIONS for word in ("--part", name)]
    return [*words, *parts, *behind]


if __name__ == "__main__":
    main(sys.argv[1:])
