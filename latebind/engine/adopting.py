"""Which version of its learned caches each model uses. `adaptation` makes the versions; this only reads them."""

import logging
from collections.abc import Mapping, Sequence

import msgspec

from latebind.adaptation.controller import BUILT, FULL_DEPTH, number_of
from latebind.adaptation.versions import Versions, versions_folder
from latebind.domain.errors import LatebindError
from latebind.engine.order import Adopt, Adopted, InUse
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

    def take_up(self) -> dict[str, InUse]:
        """Begin with the current versions, and return them by model."""
        found = {}
        for model, versions in self._versions.items():
            name, why = versions.first()
            if why:
                logger.warning("%s begins with the version %r of its learned caches: %s", model, name, why)
            self._use(model, name)
            found[model] = InUse(versions.base, name)
        return found

    def adopt(self, line: bytes) -> Adopted:
        """Perform an `Adopt` of the control stream. If the version is faulty, report that and serve on unchanged."""
        try:
            wanted = msgspec.json.decode(line, type=Adopt)
            self._use(wanted.model, wanted.version)
        except (LatebindError, msgspec.MsgspecError, KeyError, OSError) as error:
            return Adopted(str(error))
        return Adopted()

    def _use(self, model: str, version: str) -> None:
        heads = self._heads(model, version)
        for worker in self._crew:
            worker.adopt(model, number_of(version), heads)

    def _heads(self, model: str, version: str) -> Mapping[str, tuple[Head, float]] | None:
        """Return the heads and thresholds of a version by name; None for those of `build`."""
        if version == BUILT:
            return None
        return {} if version == FULL_DEPTH else self._versions[model].lookups(version)
