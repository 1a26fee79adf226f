"""What lies in memory of a process, as the system tells anybody who looks from outside."""

from pathlib import Path

KIB = 1024


def mapped_bytes(process: int | str, file: Path) -> int:
    """Return how much of a file that a process has mapped is present."""
    found, inside = 0, False
    for line in Path(f"/proc/{process}/smaps").read_text().splitlines():
        key = line.split(maxsplit=1)[0]
        if not key.endswith(":"):
            inside = line.endswith(str(file))
        elif inside and key == "Rss:":
            found += int(line.split()[1]) * KIB
    return found
