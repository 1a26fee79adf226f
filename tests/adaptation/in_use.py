"""Which versions are wanted and used, as the adaptation client asks it, without what outlives engines."""

from latebind.engine.client import EngineClient
from latebind.engine.engines import Engines


class OfEngine(Engines):
    """Those of one engine."""

    def __init__(self, engine: EngineClient) -> None:
        self._of = engine

    async def adopt(self, model: str, version: str) -> None:
        await self._of.adopt(model, version)

    def wanted(self, model: str) -> str:
        return ""

    def used(self, model: str) -> str:
        return self._of.caches[model].version


class Noted(Engines):
    """Versions that nothing uses: `versions` were to be, in this order."""

    def __init__(self, *versions: str) -> None:
        self.versions = list(versions)

    async def adopt(self, model: str, version: str) -> None:
        self.versions.append(version)

    def wanted(self, model: str) -> str:
        return self.versions[-1] if self.versions else ""

    def used(self, model: str) -> str:
        return self.wanted(model)
