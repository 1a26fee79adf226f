"""What a configuration shows to other machines: refused where anybody could change it, else warned of."""

import logging

from latebind.domain.config import DoorConfig, is_loopback

log = logging.getLogger(__name__)


def check_exposure(config: DoorConfig) -> None:
    """Warn where other machines may call without a token, or send one that everybody on the way can read."""
    if is_loopback(config.host):
        return
    if not (config.token_file or config.tls_client_ca):
        log.warning("whoever can reach %s may use every model: give --token-file, or --host 127.0.0.1", config.host)
    elif config.token_file and not config.tls_cert:
        log.warning("tokens cross the network in the clear: give --tls-cert and --tls-key, or put TLS before the door")
