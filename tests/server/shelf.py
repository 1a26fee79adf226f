"""A catalogue that is real but small: the models of an `Arithmetic` gateway come and go as they are."""

from latebind.domain.errors import InvalidRequest, NotFound, RepositoryError
from latebind.domain.model import ModelSpec
from latebind.domain.split import Chooser, Split
from latebind.server.gateway import IndexEntry
from tests.server.arithmetic import SPECS, Arithmetic

BROKEN = "weights.safetensors differs from the manifest"


class Shelf:
    """Has all of `SPECS`; `crashing` cannot be loaded, and is `down` until somebody tries. `traffic` needs `scalar`."""

    def __init__(self, gateway: Arithmetic) -> None:
        self._gateway = gateway
        self._stock = {spec.name: spec for spec in SPECS}
        self.down: dict[str, str] = {}
        self.loading: set[str] = set()
        self.versions: list[tuple[str, str | None]] = []
        self.splits: dict[str, Chooser] = {}

    def index(self) -> list[IndexEntry]:
        return [self._entry(spec) for spec in sorted(self._stock.values(), key=lambda spec: spec.name)]

    def unavailable(self, name: str) -> str | None:
        return self.down.get(name)

    async def load(self, name: str, version: str | None = None) -> None:
        if name not in self._stock:
            raise NotFound(f"there is no model {name!r} in the repository")
        if name == "crashing":
            raise RepositoryError(BROKEN)
        self.versions.append((name, version))
        self._gateway.models = {**self._gateway.models, name: self._stock[name]}

    async def split(self, split: Split) -> None:
        self.splits[split.model] = Chooser(split)

    async def unload(self, name: str, *, dependents: bool = False) -> None:
        if name == "scalar" and not dependents:
            raise InvalidRequest("traffic needs scalar: unload that first")
        gone = {name, "traffic"} if name == "scalar" else {name}
        self._gateway.models = {key: spec for key, spec in self._gateway.models.items() if key not in gone}

    def _entry(self, spec: ModelSpec) -> IndexEntry:
        ready = spec.name in self._gateway.models
        state, reason = ("READY", "") if ready else ("UNAVAILABLE", self.down.get(spec.name, "unloaded"))
        if spec.name in self.loading:
            state, reason = "LOADING", ""
        return IndexEntry(name=spec.name, version=spec.version, state=state, reason=reason)
