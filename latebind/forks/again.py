"""A fork server that was forked from another one, and so has imported everything already. `lending` says for whom."""

from latebind.forks import process


def main(words: list[str]) -> None:
    """Fork what is asked for on this descriptor."""
    process.main(int(words[0]))
