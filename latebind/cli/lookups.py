"""The option of `build` and `calibrate` for how learned caches are looked up."""

from enum import StrEnum
from typing import Annotated

import typer


class Lookups(StrEnum):
    """In line between two stages, aside on another core while the network goes on, or what measures faster."""

    AUTO = "auto"
    IN_LINE = "in-line"
    ASIDE = "aside"

    @property
    def aside(self) -> bool | None:
        """Whether lookups run aside; None: as measured."""
        return None if self is Lookups.AUTO else self is Lookups.ASIDE


LookupsOption = Annotated[
    Lookups,
    typer.Option(
        help="Ask learned caches in line, between two stages, or aside, on a core of their own while the network goes "
        "on: hits come later then, misses wait for nothing. auto measures both and takes aside if it is 5 % faster."
    ),
]
