"""What a configuration shows to other machines: refused where anybody could change it, else warned of."""

import logging

from latebind.domain.config import DoorConfig, is_loopback
from latebind.domain.errors import ConfigError

log = logging.getLogger(__name__)


def check_exposure(config: DoorConfig) -> None:
    """Raise `ConfigError` where every other machine may change what is served or name memory of this one.

    Warn where they may call without a token, or send one that everybody on the way can read.
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
