"""Which version of its learned caches each model uses. `adaptation` makes the versions; this only reads them."""

import logging
from collections.abc import Mapping, Sequence

import msgspec

from latebind.adaptation.controller import BUILT, FULL_DEPTH
from latebind.adaptation.versions import Versions, versions_folder
from latebind.domain.errors import LatebindError
from latebind.engine.order import Adopt, Adopted
from latebind.engine.worker import LoadedModel, Worker
from latebind.learned.head import Head

logger = logging.getLogger(__name__)


class Adopting:
    """Sets the version on all workers of an engine. Models without learned caches have no versions."""

    def __init__(self, crew: Sequence[Worker], models: Sequence[LoadedModel], adapted: str) -> None:
        self._crew = crew
        self._versions = {
            model.spec.name: Versions(versions_folder(model.directory.path, adapted), model.directory)
            for model in models
            if model.lookups
        }

    def take_up(self) -> None:
        """Start with the current versions; where one cannot be used, with the caches as built."""
        for model, versions in self._versions.items():
            adopted = self.adopt(msgspec.json.encode(Adopt(model, versions.current())))
            if adopted.error is not None:
                logger.warning("%s: learned caches as built (%s)", model, adopted.error)

    def adopt(self, line: bytes) -> Adopted:
        """Perform an `Adopt` of the control stream. If the version is faulty, report that and serve on unchanged."""
        try:
            wanted = msgspec.json.decode(line, type=Adopt)
            heads = self._heads(wanted)
            for worker in self._crew:
                worker.adopt(wanted.model, heads)
        except (LatebindError, msgspec.MsgspecError, KeyError, OSError) as error:
            return Adopted(str(error))
        return Adopted()

    def _heads(self, wanted: Adopt) -> Mapping[str, tuple[Head, float]] | None:
        """Return the heads and thresholds of a version by name; None for those of `build`."""
        if wanted.version == BUILT:
            return None
        versions = self._versions[wanted.model]
        return {} if wanted.version == FULL_DEPTH else versions.lookups(wanted.version)
