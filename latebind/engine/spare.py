"""A process that stands ready to be the next engine: it has imported everything, which takes longest, and waits."""

from latebind.engine.client import EngineClient


class Spare:
    """Holds one such process, or none where none is `wanted`."""

    def __init__(self, *, wanted: bool, log_format: str) -> None:
        self._wanted = wanted
        self._log_format = log_format
        self._engine: EngineClient | None = None

    async def take(self) -> EngineClient:
        """Return a process that waits for its order: the spare, or a new one."""
        engine, self._engine = self._engine, None
        if engine is not None:
            if engine.waits:
                return engine
            await engine.kill()
        return await EngineClient.prepare(self._log_format)

    async def renew(self) -> None:
        """Start another where there is none."""
        if self._wanted and self._engine is None:
            self._engine = await EngineClient.prepare(self._log_format)

    async def close(self) -> None:
        """End it."""
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.kill()
