"""Tokens and certificates of a configuration, read once, before the much slower start of an engine."""

import ssl
from dataclasses import dataclass
from typing import Self

from latebind.domain.config import DoorConfig
from latebind.server.access import Guard
from latebind.server.exposure import check_exposure
from latebind.server.tls import server_context


@dataclass(frozen=True, slots=True)
class Security:
    """Who may call, and the TLS context of HTTP, if any.

    `behind_ingress`: all calls come from an ingress, which sends the client's address in a header.
    """

    guard: Guard
    tls: ssl.SSLContext | None
    behind_ingress: bool = False

    @classmethod
    def by(cls, config: DoorConfig) -> Self:
        """Read tokens and certificates. Raises `ConfigError` if one cannot be used or the door is too open.

        Too open is what `check_exposure` refuses.
        """
        check_exposure(config)
        return cls(Guard.from_files(config), server_context(config))
