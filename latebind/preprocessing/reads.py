"""Makes the tensors of a query from its raw inputs, with the preprocessors of its models."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from latebind.domain.errors import InvalidRequest
from latebind.domain.model import Media, ModelSpec, RawInput, Read
from latebind.preprocessing.preprocessor import USUAL, Array, Given, Prepared, Preprocessor, Reading, columns

NAMED = re.compile(r"^(element \d+ of )'(\w+)'")


@dataclass(frozen=True, slots=True)
class QueryPreprocessor:
    """Makes the inputs of a query: for each of `reads` those that its preprocessor makes."""

    raw: tuple[RawInput, ...]
    reads: tuple[tuple[Read, Preprocessor], ...]

    @classmethod
    def of(cls, query: ModelSpec, models: Mapping[str, Preprocessor]) -> "QueryPreprocessor":
        """Return the preprocessor of a query, made of those of its models."""
        return cls(query.about.raw, tuple([(read, models[read.model]) for read in query.reads]))

    @property
    def makes(self) -> frozenset[str]:
        """The names of the query's inputs."""
        return frozenset([name for read, _ in self.reads for _, name in read.makes])

    def prepare(self, given: Given, how: Reading = USUAL) -> list[Prepared]:
        """Return a row for each element of the raw inputs (`Preprocessor.prepare`).

        Its tokens, and those that were cut, are those of all reads of texts together. Raises `InvalidRequest`.
        """
        found = columns(self.raw, given)
        rows = [dict[str, Array]() for _ in next(iter(found.values()))]
        used, cut = [0] * len(rows), [0] * len(rows)
        texts = {one.name for one in self.raw if one.media is Media.TEXT}
        for read, preprocessor in self.reads:
            own = {name: found[source] for name, source in read.raw}
            counts = not texts or any(source in texts for _, source in read.raw)  # of tokens, and of prompts
            try:
                made = preprocessor.prepare(own, how if counts else Reading(how.truncate))
            except InvalidRequest as error:
                raise InvalidRequest(_renamed(str(error), dict(read.raw))) from None
            for place, row in enumerate(made):
                rows[place] |= {name: row.tensors[its] for its, name in read.makes}
                used[place] += row.used * counts
                cut[place] += row.cut
        return [Prepared(*row) for row in zip(rows, used, cut, strict=True)]


def _renamed(message: str, names: Mapping[str, str]) -> str:
    """Return a preprocessor's message about an element, with the query's name of the input."""
    return NAMED.sub(lambda found: f"{found[1]}{names.get(found[2], found[2])!r}", message)
