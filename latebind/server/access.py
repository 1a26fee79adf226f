"""Which callers may make which calls, over any transport: tokens, TLS, kinds of calls; what a configuration exposes."""

import hashlib
import hmac
import logging
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Self

from latebind.domain.config import FrontendConfig, is_loopback
from latebind.domain.errors import ConfigError, Denied, TurnedOff
from latebind.server.tls import Certificates

SHORTEST = 16
MOST_TOKENS = 4  # of one file: the one that is given out, and those before it that some clients still send
TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")  # what may follow `Bearer` (RFC 6750, section 2.1)
SCHEME = b"bearer "

log = logging.getLogger(__name__)


class Access(Enum):
    """What a caller has to present for a call of this kind."""

    OPEN = "nothing: health, for probes, and the files of the dashboard, which contain no data"
    ORDINARY = "the token, if there is one"
    MUTATING = "the admin token, or the token if there is no other"


class Guard:
    """Compares the token of a call with those configured, in constant time. Without tokens everybody may do everything.

    The admin token is good for every call. Where it is the only token, ordinary calls need none. Where other machines
    can reach the server (`strangers`) and there is no token at all, calls that change something are refused.
    """

    def __init__(self, *, token: str = "", admin_token: str = "", strangers: bool = False) -> None:
        self._files = ("", "")
        self._closed = strangers and not (token or admin_token)
        self._take([token] if token else [], [admin_token] if admin_token else [])

    @classmethod
    def from_files(cls, config: FrontendConfig) -> "Guard":
        """Read the tokens that the configuration names. Raises `ConfigError`."""
        guard = cls(strangers=not (is_loopback(config.host) or config.tls_client_ca))
        guard._files = config.token_file, config.admin_token_file
        guard._closed = guard._closed and not any(guard._files)
        guard.read()
        return guard

    def read(self) -> None:
        """Read the files again, if there are any. Raises `ConfigError`, and then keeps the tokens as they were."""
        if any(self._files):
            token, admin_token = (read_tokens(Path(name)) if name else [] for name in self._files)
            self._take(token, admin_token)

    def _take(self, tokens: Sequence[str], admin_tokens: Sequence[str]) -> None:
        admin, user = ([_digest(token.encode()) for token in each] for each in (admin_tokens, tokens))
        self._keys: dict[Access, list[bytes]] = {
            Access.OPEN: [],
            Access.ORDINARY: user and user + admin,
            Access.MUTATING: admin or user,
        }

    def asks(self, access: Access) -> bool:
        """Return whether such a call needs a token."""
        return bool(self._keys[access]) or (self._closed and access is Access.MUTATING)

    def check(self, access: Access, authorization: bytes | None) -> None:
        """Raise `Denied` unless `authorization`, the header or metadata of that name, is good for such a call.

        Raises `TurnedOff` if no token would be.
        """
        if self._closed and access is Access.MUTATING:
            raise TurnedOff("this call changes the server, which others can reach: start it with --admin-token-file")
        keys = self._keys[access]
        if not keys:
            return
        if authorization is None or authorization[: len(SCHEME)].lower() != SCHEME:
            raise Denied("this call needs a token: send it as Authorization: Bearer TOKEN")
        shown = _digest(authorization[len(SCHEME) :].strip(b" "))
        if not any(hmac.compare_digest(shown, key) for key in keys):
            raise Denied(f"the token is not valid for this call, which needs {access.value}")


def read_tokens(path: Path) -> list[str]:
    """Return the tokens in a file, one a line; warn if other users may read the file. Raises `ConfigError`."""
    try:
        tokens = path.read_text("ascii").split("\n")
        mode = path.stat().st_mode
    except OSError as error:
        raise ConfigError(f"token file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        tokens, mode = [], 0
    tokens = [text for token in tokens if (text := token.strip())]
    if not tokens or not all(map(TOKEN.fullmatch, tokens)):
        raise ConfigError(
            f"token file {path} does not have a token on each line, of letters, digits and ._~+/-: write one"
        )
    if len(tokens) > MOST_TOKENS:
        raise ConfigError(f"token file {path} has {len(tokens)} tokens: keep at most {MOST_TOKENS}")
    if min(map(len, tokens)) < SHORTEST:
        raise ConfigError(
            f"a token in {path} has fewer than {SHORTEST} characters: make one with `openssl rand -hex 32`"
        )
    if mode & stat.S_IROTH:
        log.warning("everybody on this machine may read the token in %s: chmod 600 it", path)
    return tokens


def _digest(token: bytes) -> bytes:
    """Return a digest to compare: all have the same length, so the time taken does not reveal the token's length."""
    return hashlib.sha256(token).digest()


@dataclass(frozen=True, slots=True)
class Security:
    """Who may call, and the certificates that connections are served with, if any."""

    guard: Guard
    tls: Certificates | None

    @classmethod
    def by(cls, config: FrontendConfig) -> Self:
        """Read tokens and certificates. Raises `ConfigError` if one cannot be used or the frontend is too open.

        Too open is what `check_exposure` refuses.
        """
        check_exposure(config)
        return cls(Guard.from_files(config), Certificates.of(config))


def check_exposure(config: FrontendConfig) -> None:
    """Raise `ConfigError` if any other machine could change what is served, or name this machine's memory.

    Warn if other machines may call without a token, or if tokens cross the network unencrypted.
    """
    if is_loopback(config.host):
        return
    if (config.manage or config.shared_memory) and not config.admin_token_file:
        what = "server.manage" if config.manage else "server.shared_memory"
        raise ConfigError(
            f"{what} would be open to anyone who can reach {config.host}: give --admin-token-file, or listen on "
            "127.0.0.1"
        )
    if not (config.token_file or config.tls_client_ca):
        log.warning("anyone who can reach %s may use every model: give --token-file, or --host 127.0.0.1", config.host)
    elif config.token_file and not config.tls_cert:
        log.warning(
            "tokens cross the network unencrypted: give --tls-cert and --tls-key, or put a TLS proxy in front of the "
            "server"
        )
