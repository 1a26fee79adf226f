"""Options that are several whole numbers in one word, as 1,1,2,4, or an amount of memory."""

from latebind.domain.errors import ConfigError

MOST = 1 << 62  # bytes: more than there is anywhere


def numbers(option: str, text: str) -> tuple[int, ...]:
    """Return the numbers between the commas of `text`, which was given for `option`; raises `ConfigError`."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"{option} {text!r}: give whole numbers with commas between, such as 1 or 2,3") from None


def in_bytes(option: str, amount: float, unit: float) -> int:
    """Return the bytes of an amount in units of `unit` bytes, `MOST` if it is infinite; raises `ConfigError`."""
    if not amount >= 0:
        raise ConfigError(f"{option} {amount:g}: give 0 or more")
    return round(min(amount * unit, MOST))
