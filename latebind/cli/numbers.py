"""Options that are several whole numbers in one word, as 1,1,2,4."""

from latebind.domain.errors import ConfigError


def numbers(option: str, text: str) -> tuple[int, ...]:
    """Return the numbers between the commas of `text`, which was given for `option`; raises `ConfigError`."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"{option} {text!r}: give whole numbers with commas between, such as 1 or 2,3") from None
