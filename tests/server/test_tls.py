"""TLS: calls are answered over it and not beside it, old versions are refused, and errors name the file."""

import asyncio
import http.client
import json
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from errno import EMFILE
from pathlib import Path
from typing import Any

import grpc
import pytest

from latebind.domain.config import FrontendConfig
from latebind.domain.errors import ConfigError
from latebind.server import tls
from latebind.server.limits import Limits
from latebind.server.tls import Certificates, TlsServer, server_context
from tests.server.bodies import SCALAR, request
from tests.server.conftest import PATIENCE, Raw, Site, address, opened, scalar, until
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
    config = FrontendConfig(
        port=0, grpc_port=0, tls_cert=pair.certificate, tls_key=pair.key, tls_client_ca=known.certificate
    )
    data = message(raw=[bytes(128)]).SerializeToString()
    with opened(config) as site:
        for shown in (None, stranger, known):
            context = ssl.create_default_context(cafile=pair.certificate)
            if shown is not None:
                context.load_cert_chain(shown.certificate, shown.key)
            with channel_of(site, pair, shown) as channel:
                if shown is known:
                    assert doubled(site, context) == [42.0]
                    assert Raw(channel).call(data)
                    continue
                assert Raw(channel).refusal(data, timeout=2.0)[0] in {"UNAVAILABLE", "DEADLINE_EXCEEDED"}
            with pytest.raises((ssl.SSLError, ConnectionError)):
                doubled(site, context)


def channel_of(site: Site, pair: Pair, shown: Pair | None) -> Any:
    if shown is None:
        return grpc.insecure_channel(address(site))
    files = (Path(name).read_bytes() for name in (pair.certificate, shown.key, shown.certificate))
    return grpc.secure_channel(f"localhost:{site.frontend.grpc_port}", grpc.ssl_channel_credentials(*files))


def test_files_that_cannot_be_used_are_a_clear_error(folder: Path, pair: Pair) -> None:
    other, text = make_pair(folder, "other"), folder / "text"
    text.write_text("nothing of the kind")
    for cert, key, ca, says in (
        ("none.pem", pair.key, "", r"none\.pem, which TLS needs, cannot be read"),
        (pair.certificate, "none.key", "", r"none\.key, which TLS needs, cannot be read"),
        (pair.certificate, pair.key, "none.ca", r"none\.ca, which TLS needs, cannot be read"),
        (pair.certificate, other.key, "", "do not match: key values mismatch"),
        (str(text), pair.key, "", "do not match"),
        (pair.certificate, pair.key, str(text), "is not a certificate"),
    ):
        with pytest.raises(ConfigError, match=says):
            server_context(FrontendConfig(tls_cert=cert, tls_key=key, tls_client_ca=ca))


def shown(port: int) -> str:
    """Return the name of whom the certificate is that a server shows at this port."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(("127.0.0.1", port), PATIENCE) as connection,
        context.wrap_socket(connection) as behind,
    ):
        data = behind.getpeercert(binary_form=True)
    assert data is not None
    (name,) = [name for name in (b"first", b"second") if name in data]
    return name.decode()


def put(pair: Pair, place: Pair, *names: str) -> None:
    """Put these files of a pair in the place of another's, as those that renew certificates do."""
    for name in names:
        new = Path(f"{getattr(place, name)}.new")
        new.write_bytes(Path(getattr(pair, name)).read_bytes())
        new.replace(getattr(place, name))


def test_new_files_count_from_the_next_connection_on_and_broken_ones_leave_the_old(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = make_pair(folder, "first"), make_pair(folder, "second")
    place = Pair(str(tmp_path / "cert.pem"), str(tmp_path / "cert.key"))
    put(first, place, "certificate", "key")
    monkeypatch.setattr(tls, "LOOK_SECONDS", 0.0)
    config = FrontendConfig(port=0, grpc_port=0, tls_cert=place.certificate, tls_key=place.key)
    with opened(config) as site:
        ports = (site.port, site.frontend.grpc_port or 0)
        assert [shown(port) for port in ports] == ["first", "first"]
        put(second, place, "certificate")  # its key is still to come
        assert [shown(port) for port in ports] == ["first", "first"]
        assert caplog.messages == [
            f"new connections still get the previous certificate: server.tls_cert {place.certificate} and "
            f"server.tls_key {place.key} do not match: key values mismatch; give a certificate and its key, as PEM"
        ]
        put(second, place, "key")
        assert [shown(port) for port in ports] == ["second", "second"]
        assert doubled(site, ssl.create_default_context(cafile=second.certificate)) == [42.0]
        Path(place.certificate).unlink()
        assert [shown(port) for port in ports] == ["second", "second"]
    assert "cert.pem, which TLS needs, cannot be read" in caplog.messages[-1]


def test_files_are_looked_at_once_a_second_and_when_somebody_asks(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = make_pair(folder, "one"), make_pair(folder, "two")
    place = Pair(str(tmp_path / "cert.pem"), str(tmp_path / "cert.key"))
    put(first, place, "certificate", "key")
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    found = Certificates.of(FrontendConfig(tls_cert=place.certificate, tls_key=place.key))
    assert found is not None
    put(second, place, "certificate", "key")
    now += 0.9
    assert found.current().key == Path(first.key).read_bytes()
    now += 0.2
    assert found.current().key == Path(second.key).read_bytes()
    put(first, place, "certificate", "key")
    assert found.current().key == Path(second.key).read_bytes()
    found.look()
    assert found.current().key == Path(first.key).read_bytes()
    assert Certificates.of(FrontendConfig()) is None


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


def test_a_frontend_that_could_not_accept_for_a_moment_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()

    async def test() -> None:
        coming = iter([ConnectionAbortedError(), OSError(EMFILE, "no descriptor is free"), (ours, None)])

        async def comes(_: socket.socket) -> object:
            one = next(coming, asyncio.CancelledError())
            if isinstance(one, BaseException):
                raise one
            return one

        monkeypatch.setattr(asyncio.get_running_loop(), "sock_accept", comes)
        monkeypatch.setattr("latebind.server.tls.AGAIN_SECONDS", 0.0)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with socket.socket() as listening:
            server = TlsServer(listening, lambda: context, asyncio.Protocol, (), most=8, patience=PATIENCE)
            await asyncio.wait((server._accepting,))
        (taken,) = server.arriving
        await server.ended()
        assert taken.cancelling(), "a handshake would go on behind a closed frontend"

    with ours, theirs:
        asyncio.run(test())
