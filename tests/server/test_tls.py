"""TLS: calls are answered over it and not beside it, old versions are refused, and errors name the file."""

import asyncio
import http.client
import json
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from errno import EMFILE
from pathlib import Path
from typing import Any

import grpc
import pytest

from latebind.domain.config import FrontendConfig
from latebind.domain.errors import ConfigError
from latebind.server.limits import Limits
from latebind.server.tls import TlsServer, server_context
from tests.server.bodies import SCALAR, request
from tests.server.conftest import PATIENCE, Raw, Site, address, opened, scalar
from tests.server.rpc.conftest import request as message

OPENSSL = shutil.which("openssl")
pytestmark = pytest.mark.skipif(OPENSSL is None, reason="needs openssl, which makes the certificates")


@dataclass(frozen=True)
class Pair:
    certificate: str
    key: str


def make_pair(folder: Path, name: str, *more: str) -> Pair:
    """Make a certificate for localhost that signs itself, and its key."""
    pair = Pair(str(folder / f"{name}.pem"), str(folder / f"{name}.key"))
    program = [
        str(OPENSSL), "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-days", "1",
        "-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
        "-keyout", pair.key, "-out", pair.certificate, *(more or ("-nodes",)),
    ]  # fmt: skip
    subprocess.run(program, check=True, capture_output=True)
    return pair


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def pair(folder: Path) -> Pair:
    return make_pair(folder, "server")


@pytest.fixture(scope="module")
def secure(pair: Pair) -> Iterator[Site]:
    with opened(FrontendConfig(port=0, tls_cert=pair.certificate, tls_key=pair.key)) as site:
        yield site


def doubled(site: Site, context: ssl.SSLContext, value: float = 21.0) -> object:
    connection = http.client.HTTPSConnection("localhost", site.port, timeout=PATIENCE, context=context)
    try:
        connection.request("POST", SCALAR, json.dumps(request(scalar(value))))
        return json.loads(connection.getresponse().read())["outputs"][0]["data"]
    finally:
        connection.close()


def test_a_client_that_speaks_plainly_gets_nothing_and_the_frontend_stands(secure: Site, pair: Pair) -> None:
    with secure.connect() as connection:
        connection.sendall(b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"HTTP" not in connection.recv(1000)
    assert doubled(secure, ssl.create_default_context(cafile=pair.certificate)) == [42.0]


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
def test_versions_before_1_2_are_refused(secure: Site, pair: Pair) -> None:
    context = server_context(FrontendConfig(tls_cert=pair.certificate, tls_key=pair.key))
    assert context is not None
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    old = ssl.create_default_context(cafile=pair.certificate)
    old.set_ciphers("DEFAULT@SECLEVEL=0")
    old.minimum_version = ssl.TLSVersion.TLSv1
    old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError), socket.create_connection(("127.0.0.1", secure.port), PATIENCE) as connection:
        old.wrap_socket(connection, server_hostname="localhost")


def test_with_a_client_ca_only_clients_with_its_certificate_are_answered(folder: Path, pair: Pair) -> None:
    known, stranger = make_pair(folder, "known"), make_pair(folder, "stranger")
    config = FrontendConfig(port=0, tls_cert=pair.certificate, tls_key=pair.key, tls_client_ca=known.certificate)
    with opened(config) as site:
        for shown in (None, stranger):
            context = ssl.create_default_context(cafile=pair.certificate)
            if shown is not None:
                context.load_cert_chain(shown.certificate, shown.key)
            with pytest.raises((ssl.SSLError, ConnectionError)):
                doubled(site, context)
        context = ssl.create_default_context(cafile=pair.certificate)
        context.load_cert_chain(known.certificate, known.key)
        assert doubled(site, context) == [42.0]


def test_files_that_are_missing_are_named(folder: Path, pair: Pair) -> None:
    for cert, key, ca in (("none.pem", pair.key, ""), (pair.certificate, "none.key", ""), (*_paths(pair), "none.ca")):
        with pytest.raises(ConfigError, match=r"none\.\w+, which TLS needs, cannot be read"):
            server_context(FrontendConfig(tls_cert=cert, tls_key=key, tls_client_ca=ca))


def test_a_key_of_another_certificate_is_a_clear_error(folder: Path, pair: Pair) -> None:
    other = make_pair(folder, "other")
    with pytest.raises(ConfigError, match="do not fit: key values mismatch"):
        server_context(FrontendConfig(tls_cert=pair.certificate, tls_key=other.key))


def test_files_that_are_no_certificates_are_a_clear_error(folder: Path, pair: Pair) -> None:
    text = folder / "text"
    text.write_text("nothing of the kind")
    with pytest.raises(ConfigError, match="do not fit"):
        server_context(FrontendConfig(tls_cert=str(text), tls_key=pair.key))
    with pytest.raises(ConfigError, match="is no certificate"):
        server_context(FrontendConfig(tls_cert=pair.certificate, tls_key=pair.key, tls_client_ca=str(text)))


def _paths(pair: Pair) -> tuple[str, str]:
    return pair.certificate, pair.key


def until(test: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not test():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.01)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture(params=["http", "grpc"])
def limited(request: pytest.FixtureRequest, pair: Pair) -> Iterator[tuple[Site, int]]:
    """A frontend with TLS that takes eight connections and waits half a second for a silent one, and a port of it."""
    rpc: dict[str, Any] = {} if request.param == "http" else {"grpc_port": 0}
    config = FrontendConfig(port=0, tls_cert=pair.certificate, tls_key=pair.key, **rpc)
    with opened(config, Limits(connections=8, idle_seconds=0.5)) as site:
        yield site, site.frontend.grpc_port or site.port


def is_closed(connection: socket.socket) -> bool:
    with suppress(ConnectionError):
        return connection.recv(1) == b""
    return True


HELLO = bytes.fromhex("16030100f8010000f40303")  # the beginning of a greeting


@pytest.mark.parametrize("sent", [b"", HELLO], ids=["nothing", "half a greeting"])
def test_a_client_that_does_not_end_its_handshake_is_hung_up_on(limited: tuple[Site, int], sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", limited[1]), PATIENCE) as connection:
        connection.sendall(sent)
        assert is_closed(connection)


def test_clients_before_their_handshake_are_counted_and_those_past_the_limit_are_hung_up_on(pair: Pair) -> None:
    config = FrontendConfig(port=0, tls_cert=pair.certificate, tls_key=pair.key)
    with opened(config, Limits(connections=8)) as site:
        context = ssl.create_default_context(cafile=pair.certificate)
        before, silent = descriptors(), [site.connect() for _ in range(8)]
        with site.connect() as one_too_many:
            assert is_closed(one_too_many)
        for connection in silent:
            connection.close()
        until(lambda: descriptors() < before + 8)
        assert doubled(site, context) == [42.0]


def test_a_client_in_its_handshake_does_not_keep_the_frontend_from_closing(pair: Pair) -> None:
    with opened(FrontendConfig(port=0, tls_cert=pair.certificate, tls_key=pair.key)) as site:
        connection = site.connect()
        until(lambda: bool(arriving(site)))
    with connection:
        assert is_closed(connection)


def arriving(site: Site) -> int:
    served = site.frontend._app.behind_tls
    assert served is not None
    return len(served.arriving)


def test_a_frontend_that_could_not_accept_for_a_moment_goes_on() -> None:
    assert was_taken(ConnectionAbortedError(), OSError(EMFILE, "no descriptor is free"))


def was_taken(*before: OSError, others: int = 0) -> bool:
    """Return whether a frontend for eight connections takes one, which comes after errors."""
    ours, theirs = socket.socketpair()

    async def accept() -> bool:
        coming = iter([*before, (ours, None), asyncio.CancelledError()])

        async def comes(_: socket.socket) -> object:
            if isinstance(one := next(coming), BaseException):
                raise one
            return one

        context, company = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), [object()] * others
        with pytest.MonkeyPatch.context() as patch, socket.socket() as listening:
            patch.setattr(asyncio.get_running_loop(), "sock_accept", comes)
            patch.setattr("latebind.server.tls.AGAIN_SECONDS", 0.0)
            server = TlsServer(listening, context, asyncio.Protocol, company, most=8, patience=PATIENCE)
            await asyncio.wait((server._accepting,))
        taken = set(server.arriving)
        await server.ended()
        assert all(task.cancelling() for task in taken), "a handshake would go on behind a closed frontend"
        return bool(taken)

    with ours, theirs:
        return asyncio.run(accept())


def test_over_grpc_clients_with_a_certificate_are_answered_and_others_are_not(tmp_path: Path) -> None:
    pair, client, stranger = (make_pair(tmp_path, name) for name in ("server", "client", "stranger"))
    config = FrontendConfig(
        port=0,
        grpc_port=0,
        tls_cert=pair.certificate,
        tls_key=pair.key,
        tls_client_ca=client.certificate,
    )
    data = message(raw=[bytes(128)]).SerializeToString()
    with opened(config) as site:
        with channel_of(site, pair.certificate, client.certificate, client.key) as channel:
            assert Raw(channel).call(data)
        with channel_of(site, pair.certificate, stranger.certificate, stranger.key) as channel:
            assert Raw(channel).refusal(data, timeout=2.0)[0] in {"UNAVAILABLE", "DEADLINE_EXCEEDED"}
        with grpc.insecure_channel(address(site)) as channel:
            assert Raw(channel).refusal(data, timeout=2.0)[0] in {"UNAVAILABLE", "DEADLINE_EXCEEDED"}


def channel_of(site: Site, authority: str, certificate: str, key: str) -> Any:
    files = (Path(name).read_bytes() for name in (authority, key, certificate))
    return grpc.secure_channel(f"localhost:{site.frontend.grpc_port}", grpc.ssl_channel_credentials(*files))
