"""The adaptation service beside the engines that serve: what it follows is what they serve."""

import logging
from functools import partial

from latebind.adaptation.following import Followed, Following
from latebind.adaptation.messages import AdaptationOrder
from latebind.domain.config import ServeConfig
from latebind.engine.engines import Engines
from latebind.forks.client import ForkServer

logger = logging.getLogger(__name__)

PATIENCE = 10.0  # seconds that serving waits for the service


async def start_beside(engines: Engines, settings: ServeConfig, forks: ForkServer) -> Following | None:
    """Start the service for models that have learned caches in use, if it is wanted; to be closed at the end."""
    if not settings.adaptation.on:
        return None
    following = Following(partial(_followed, settings, engines), engines, forks)
    if _followed(settings, engines) is None:
        logger.warning("nothing to adapt: no model that is served has learned caches in use")
    await following.begin(PATIENCE)
    engines.on_change, engines.on_failed = following.look, following.unusable
    return following


def _followed(settings: ServeConfig, engines: Engines) -> Followed | None:
    """Return what there is to adapt."""
    adapted = tuple(spec for spec in engines.models.values() if spec.lookups)
    if not settings.engine.exits or not adapted:
        return None
    order = AdaptationOrder(
        directories=tuple(str(engines.serving.models[spec.name]) for spec in adapted),
        config=settings.adaptation,
        threads=settings.engine.threads,
        backend=settings.engine.backend,
        cores=settings.engine.cores,
        log_format=settings.observability.log_format,
    )
    return Followed(order, adapted, tuple(engines.serving.fingerprint_of(spec.name) for spec in adapted))
