"""Serves models on one machine, alone or as a replica: an engine, adaptation, and their frontend."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from latebind.adaptation.client import start_beside
from latebind.domain.config import ServeConfig
from latebind.domain.errors import ConfigError, LatebindError
from latebind.engine.catalogue import Catalogue
from latebind.engine.engines import Engines
from latebind.engine.order import EngineOrder
from latebind.forks.client import ForkServer
from latebind.repository.listing import Selection, Serving
from latebind.server.frontend import Frontend

if TYPE_CHECKING:
    from latebind.server.telemetry import SpanExport

NOTHING: Mapping[str, LatebindError | OSError] = {}
Served = tuple[Engines, Catalogue, partial[Frontend]]


@asynccontextmanager
async def serving(
    selection: Selection,
    first: Serving,
    settings: ServeConfig,
    forks: ForkServer,
    *,
    wrong: Mapping[str, LatebindError | OSError] = NOTHING,
    event_log: str | None = None,
    loading: Callable[[str, float], None] | None = None,
) -> AsyncIterator[Served]:
    """Serve the selection while the block lasts; also yields what makes its frontend, which is not open yet.

    `first` is what the selection has at the start, and `wrong` the errors of the rest. During loading, `loading` is
    called with the model being loaded and the share of all that is loaded. Raises what could not be loaded, and
    `ConfigError` for settings that cannot be used.
    """
    order = EngineOrder(
        directories=(),  # added by the generation
        engine=settings.engine,
        policy=settings.policy,
        event_log=event_log,
        adapted=settings.adaptation.folder,
        residency=settings.residency,
        log_format=settings.observability.log_format,
    )
    async with AsyncExitStack() as stack:
        keep_going = settings.generations.keep_going
        wanted = Serving() if keep_going else first
        engines = await Engines.start(order, wanted, forks, settings.generations, loading=loading)
        stack.push_async_callback(engines.close)
        catalogue = Catalogue(engines, selection)
        if keep_going:
            await catalogue.begin(first, wrong)
        engines.on_loading = None
        observer = await start_beside(engines, settings, forks)
        if observer is not None:
            stack.push_async_callback(observer.close)
        following = asyncio.create_task(catalogue.follow(settings.generations.watch))
        stack.callback(following.cancel)
        export = _export(settings.observability.otlp)
        if export is not None:
            stack.push_async_callback(asyncio.to_thread, export.close)
        made = partial(
            Frontend,
            engines,
            deadlines=engines.deadlines,
            observer=observer,
            trace_rate=settings.observability.trace_rate,
            export=export,
            catalogue=catalogue,
        )
        yield engines, catalogue, made


def _export(url: str) -> "SpanExport | None":
    """Return the exporter of traces, if a collector is configured. Raises `ConfigError` without the extra."""
    if not url:
        return None
    return span_export().over_http(url)


def span_export() -> "type[SpanExport]":
    """Return the class of exporters. Raises `ConfigError` without the extra."""
    try:
        from latebind.server.telemetry import SpanExport  # noqa: PLC0415  (an optional dependency)
    except ImportError as error:
        raise ConfigError("OpenTelemetry is not installed: pip install 'latebind[telemetry]'") from error
    return SpanExport
