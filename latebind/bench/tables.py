"""The rows of tables, and how figures are written in them on the console and on pages."""

from collections.abc import Mapping

Row = dict[str, object]  # cells by the titles of their columns
Rows = list[Row]


def written(value: object) -> str:
    """Write a number with four digits, and shares by name as percent."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {share:.0%}" for name, share in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)
