"""TLS for the door: turns the configured files into a context, or into a clear error."""

import ssl
from pathlib import Path

from latebind.domain.config import DoorConfig
from latebind.domain.errors import ConfigError


def server_context(config: DoorConfig) -> ssl.SSLContext | None:
    """Return a context for TLS 1.2 and later, or None if none is configured. Raises `ConfigError`."""
    if not config.tls_cert:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    check_readable(config.tls_cert, config.tls_key)
    try:
        context.load_cert_chain(config.tls_cert, config.tls_key, password=_no_password)
    except ssl.SSLError as error:
        what = f"server.tls_cert {config.tls_cert} and server.tls_key {config.tls_key}"
        raise ConfigError(f"{what} do not fit: {_reason(error)}; give a certificate and its key, as PEM") from None
    if config.tls_client_ca:
        _ask_for_certificates(context, config.tls_client_ca)
    return context


def check_readable(*names: str) -> None:
    """Raise `ConfigError` for a file that cannot be read; OpenSSL does not say which file it was."""
    for name in names:
        try:
            Path(name).open("rb").close()
        except OSError as error:
            raise ConfigError(f"{name}, which TLS needs, cannot be read: {error.strerror}") from None


def _ask_for_certificates(context: ssl.SSLContext, authority: str) -> None:
    check_readable(authority)
    try:
        context.load_verify_locations(authority)
    except ssl.SSLError as error:
        raise ConfigError(f"server.tls_client_ca {authority} is no certificate: {_reason(error)}") from None
    context.verify_mode = ssl.CERT_REQUIRED


def _no_password() -> str:
    """Raise instead of prompting for a password on the terminal, which would block the start."""
    raise ConfigError("server.tls_key is encrypted: give a key without a password, readable by its owner alone")


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or "broken").replace("_", " ").lower()
