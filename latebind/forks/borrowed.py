"""A fork server forked from another process's fork server, with everything imported already. See `lending`."""

from latebind.forks import process


def main(words: list[str]) -> None:
    """Serve fork requests on the socket with this descriptor."""
    process.main(int(words[0]))
