"""The base of events and actions whose last field does not count when two of them are compared. Pure."""

from msgspec import Struct
from msgspec.structs import astuple


class EqualButLast(Struct, frozen=True, eq=False):
    """A struct whose last field is only for metrics and traces: it is ignored by `==` and `hash`."""

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and astuple(self)[:-1] == astuple(other)[:-1]

    def __hash__(self) -> int:
        return hash(astuple(self)[:-1])
