"""Tokens and certificates as a configuration names them: read once, before an engine is started, which takes longer."""

import ssl
from dataclasses import dataclass
from typing import Self

from latebind.domain.config import DoorConfig
from latebind.server.access import Guard
from latebind.server.exposure import check_exposure
from latebind.server.tls import server_context


@dataclass(frozen=True, slots=True)
class Security:
    """Who may call, and the TLS that HTTP speaks, if any.

    `behind_ingress`: only an ingress calls, and tells by a header which address a call came from.
    """

    guard: Guard
    tls: ssl.SSLContext | None
    behind_ingress: bool = False

    @classmethod
    def by(cls, config: DoorConfig) -> Self:
        """Read them. Raises `ConfigError` for what cannot be used, and for doors that are open to everybody."""
        check_exposure(config)
        return cls(Guard.from_files(config), server_context(config))
