"""The options of `latebind serve` that make no sense on a cluster, and what to do instead."""

from latebind.domain.config import ServeConfig
from latebind.domain.errors import ConfigError

KINDS = ("ray",)


def check(on: str, settings: ServeConfig, *, event_log: bool = False) -> None:
    """Raise `ConfigError` for options that cannot be served on a cluster."""
    if on not in KINDS:
        raise ConfigError(
            f"--on is {on!r}: choose {' or '.join(KINDS)}, or leave it out to serve on this machine alone"
        )
    refused = {
        "--event-log": (event_log, "each engine would write over it: serve on one machine to record one"),
        "--cores": (bool(settings.engine.cores), "all replicas would share them: give --replica-cpus instead"),
        "--dashboard": (settings.server.dashboard is True, "a page shows one engine: /metrics tells of all replicas"),
    }
    for option, (given, why) in refused.items():
        if given:
            raise ConfigError(f"{option} does not go with --on {on}: {why}")
