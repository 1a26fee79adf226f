"""Formats figures for tables that people read, on the console and on pages. The figures themselves stay numbers."""

from collections.abc import Mapping


def written(value: object) -> str:
    """Write a number with four digits, and shares by name as percent."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {share:.0%}" for name, share in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)
