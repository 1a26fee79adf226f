"""Checks what a configuration exposes to other machines: refuses what anybody could change, warns of the rest."""

import logging

from latebind.domain.config import DoorConfig, is_loopback
from latebind.domain.errors import ConfigError

log = logging.getLogger(__name__)


def check_exposure(config: DoorConfig) -> None:
    """Raise `ConfigError` if any other machine could change what is served, or name this machine's memory.

    Warn if other machines may call without a token, or if tokens cross the network unencrypted.
    """
    if is_loopback(config.host):
        return
    if (config.manage or config.shared_memory) and not config.admin_token_file:
        what = "server.manage" if config.manage else "server.shared_memory"
        raise ConfigError(
            f"{what} would be for whoever can reach {config.host}: give --admin-token-file, or listen on 127.0.0.1"
        )
    if not (config.token_file or config.tls_client_ca):
        log.warning("whoever can reach %s may use every model: give --token-file, or --host 127.0.0.1", config.host)
    elif config.token_file and not config.tls_cert:
        log.warning("tokens cross the network in the clear: give --tls-cert and --tls-key, or put TLS before the door")
