"""Who may call: tokens on every route and method, hosts and origins that browsers tell, and what is warned of."""

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from latebind.domain.config import FrontendConfig
from latebind.domain.errors import ConfigError, Denied, TurnedOff
from latebind.server.access import Access, Guard, check_exposure, read_token
from latebind.server.limits import Foreign
from latebind.server.rest.app import RequestFilter
from latebind.server.rest.routes import ROUTES
from latebind.server.rpc.messages import INFERENCE
from latebind.server.rpc.verbs import _method, methods
from tests.server.bodies import DOUBLE, request
from tests.server.conftest import PATIENCE, Raw, Site, address, opened
from tests.server.rpc.conftest import request as message
from tests.server.test_tls import OPENSSL, make_pair

USER, ADMIN = "user-0123456789abcdef", "admin-0123456789abcdef"


def opens(guard: Guard, access: Access, shown: str | None) -> bool:
    try:
        guard.check(access, None if shown is None else f"Bearer {shown}".encode())
    except Denied:
        return False
    return True


@pytest.mark.parametrize(
    ("guard", "ordinary", "mutating"),
    [
        (Guard(), (True, True, True), (True, True, True)),
        (Guard(token=USER), (False, True, False), (False, True, False)),
        (Guard(admin_token=ADMIN), (True, True, True), (False, False, True)),
        (Guard(token=USER, admin_token=ADMIN), (False, True, True), (False, False, True)),
    ],
)
def test_who_shows_nothing_a_token_or_the_admins_may_do_what_these_open(
    guard: Guard, ordinary: tuple[bool, ...], mutating: tuple[bool, ...]
) -> None:
    for access, does in ((Access.OPEN, (True,) * 3), (Access.ORDINARY, ordinary), (Access.MUTATING, mutating)):
        assert tuple(opens(guard, access, shown) for shown in (None, USER, ADMIN)) == does


def test_where_strangers_may_call_nobody_changes_anything_without_a_token() -> None:
    guard = Guard.from_files(FrontendConfig(host="0.0.0.0"))
    assert guard.asks(Access.MUTATING)
    with pytest.raises(TurnedOff, match="--admin-token-file"):
        guard.check(Access.MUTATING, None)
    guard.check(Access.ORDINARY, None)
    assert opens(Guard(token=USER, strangers=True), Access.MUTATING, USER)
    assert opens(Guard.from_files(FrontendConfig()), Access.MUTATING, None)


@pytest.mark.parametrize(
    "shown",
    [
        b"",
        b"Bearer",
        b"Bearer ",
        USER.encode(),
        b"Basic " + USER.encode(),
        b"Bearer " + USER.encode()[:-1],
        b"Bearer " + USER.encode() + b"0",
        b"Bearer " + USER.upper().encode(),
        b"Bearer " + USER.encode() + b"\0",
        b"Bearer Bearer " + USER.encode(),
        b"Bearer " + b"\xff" * 20,
        b"Bearer " + b"u" * 1_000_000,
    ],
)
def test_what_is_not_quite_the_token_opens_nothing(shown: bytes) -> None:
    with pytest.raises(Denied) as refusal:
        Guard(token=USER).check(Access.ORDINARY, shown)
    assert USER not in str(refusal.value)


def test_a_token_is_the_one_line_of_its_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(USER + "\n")
    file.chmod(0o600)
    guard = Guard.from_files(FrontendConfig(token_file=str(file)))
    assert opens(guard, Access.ORDINARY, USER)
    assert not opens(guard, Access.ORDINARY, None)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not one line"),
        (b"\n\n", "is not one line"),
        (b"two tokens-in-one-line", "is not one line"),
        (b"first-0123456789abcdef\nsecond-0123456789abcdef\n", "is not one line"),
        ("schlüssel-0123456789".encode(), "is not one line"),
        (b"\0" * 32, "is not one line"),
        (b"short", "under 16 characters"),
    ],
)
def test_a_file_that_is_no_token_is_a_clear_error(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        read_token(file)


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o640, False), (0o644, True)])
def test_a_token_that_everybody_may_read_is_warned_of(
    tmp_path: Path, mode: int, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "token"
    file.write_text(USER)
    file.chmod(mode)
    with caplog.at_level(logging.WARNING):
        read_token(file)
    assert ("chmod 600" in caplog.text) == warned
    assert USER not in caplog.text


# Whom HTTP lets in ----------------------------------------------------------------------------------------------------


USER, ADMIN = "user-0123456789abcdef", "admin-0123456789abcdef"
LOOPBACK, ANYWHERE = FrontendConfig(), FrontendConfig(host="0.0.0.0")


def example(path: str) -> str:
    """Return a path that leads to a route: without what may be left out, `double` for each name."""
    return re.sub(r"{\w+}", "double", re.sub(r"\[.*?\]", "", path)).replace("/dashboard/double", "/dashboard/a.js")


ROUTED = [(route.method, example(route.path), route.access) for route in ROUTES]


def token_files(folder: Path) -> dict[str, str]:
    for name, token in (("user", USER), ("admin", ADMIN)):
        (folder / name).write_text(token)
        (folder / name).chmod(0o600)
    return {"token_file": str(folder / "user"), "admin_token_file": str(folder / "admin")}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    files = token_files(tmp_path_factory.mktemp("tokens"))
    with opened(
        FrontendConfig(port=0, token_file=files["token_file"], admin_token_file=files["admin_token_file"])
    ) as site:
        yield site


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.parametrize(("method", "path", "access"), ROUTED)
def test_every_route_but_health_refuses_who_shows_no_token(
    guarded: Site, method: str, path: str, access: Access
) -> None:
    reply = guarded.call(method, path)
    if access is Access.OPEN:
        assert path.startswith(("/v2/health/", "/dashboard"))  # the page itself, which has no figures in it
        assert reply.status != 401
    else:
        assert reply.status == 401
        assert reply.headers["www-authenticate"] == "Bearer"
        assert "needs a token" in reply.error


@pytest.mark.parametrize(("method", "path", "access"), ROUTED)
def test_routes_that_change_something_refuse_the_token_of_users(
    guarded: Site, method: str, path: str, access: Access
) -> None:
    assert (guarded.call(method, path, b"", bearer(USER)).status == 401) == (access is Access.MUTATING)
    assert guarded.call(method, path, b"", bearer(ADMIN)).status != 401


def test_a_refused_call_ends_before_its_body_is_read(guarded: Site) -> None:
    reply = guarded.send(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n" % DOUBLE.encode())
    assert reply.status == 401


# Hosts and origins --------------------------------------------------------------------------------------------------


def admitted(
    config: FrontendConfig, *headers: tuple[bytes, bytes], access: Access = Access.ORDINARY, method: str = "GET"
) -> bool:
    try:
        RequestFilter(config).admit(access, method, dict(headers))
    except Foreign:
        return False
    return True


@pytest.mark.parametrize(
    "host", [b"localhost", b"localhost:8000", b"LOCALHOST:1", b"127.0.0.1:80", b"[::1]", b"[::1]:8"]
)
def test_on_loopback_a_host_may_be_any_of_its_names(host: bytes) -> None:
    assert admitted(LOOPBACK, (b"host", host))


@pytest.mark.parametrize(
    "host",
    [
        b"",
        b"evil.example",
        b"evil.example:8000",
        b"localhost.evil.example",
        b"evil.example@localhost",
        b"localhost:8000.evil.example",
        b"localhost:",
        b"localhost:8000:8000",
        b"127.0.0.1.nip.io",
        b"192.168.0.1",
        b"[::1",
        b"\xff\xfe",
    ],
)
def test_on_loopback_any_other_host_is_refused(host: bytes) -> None:
    assert not admitted(LOOPBACK, (b"host", host))


@pytest.mark.parametrize(
    ("origin", "let_in"),
    [
        (b"http://localhost:8000", True),
        (b"https://LOCALHOST:8000", True),
        (b"http://localhost:3000", False),
        (b"http://localhost", False),
        (b"http://evil.example", False),
        (b"null", False),
        (b"", False),
        (b"http://", False),
        (b"localhost:8000", False),
    ],
)
def test_an_origin_must_be_the_host_that_the_call_is_for(origin: bytes, let_in: bool) -> None:
    for config in (LOOPBACK, ANYWHERE):
        assert admitted(config, (b"host", b"localhost:8000"), (b"origin", origin)) == let_in


@pytest.mark.parametrize(
    ("site_of_page", "let_in"),
    [
        (b"same-origin", True),
        (b"none", True),
        (b"same-site", False),
        (b"cross-site", False),
        (b"CROSS-SITE", False),
        (b"", False),
    ],
)
def test_a_call_that_a_browser_says_is_of_another_site_is_refused_where_it_tells_no_origin(
    site_of_page: bytes, let_in: bool
) -> None:
    told = (b"host", b"localhost:8000"), (b"sec-fetch-site", site_of_page)
    for config in (LOOPBACK, ANYWHERE):
        assert admitted(config, *told, method="POST") == let_in
        assert admitted(config, *told), "a link on another site may lead to what is only read"


def test_pages_of_other_sites_are_refused_and_no_header_invites_them(site: Site) -> None:
    for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        reply = site.post(DOUBLE, request(), headers)
        assert reply.status == 403
        assert reply.error
    for path in ("/v2", "/v2/health/live"):
        reply = site.call("GET", path, b"", {"Origin": f"http://127.0.0.1:{site.port}"})
        assert reply.status == 200
        assert not [name for name in reply.headers if name.startswith("access-control")]


# What is warned of --------------------------------------------------------------------------------------------------


def test_other_machines_may_change_what_is_served_only_with_the_admins_token() -> None:
    with pytest.raises(ConfigError, match="give --admin-token-file"):
        check_exposure(FrontendConfig(host="0.0.0.0", manage=True, token_file="t"))
    with pytest.raises(ConfigError, match="give --admin-token-file"):
        check_exposure(FrontendConfig(host="0.0.0.0", shared_memory=("/a-",)))
    check_exposure(FrontendConfig(host="0.0.0.0", manage=True, admin_token_file="t"))
    check_exposure(FrontendConfig(manage=True))


@pytest.mark.parametrize(
    ("config", "warned"),
    [
        (LOOPBACK, ""),
        (FrontendConfig(host="::1"), ""),
        (FrontendConfig(host="localhost"), ""),
        (ANYWHERE, "give --token-file"),
        (FrontendConfig(host="models.example", tls_cert="c", tls_key="k"), "give --token-file"),
        (FrontendConfig(host="0.0.0.0", token_file="t"), "in the clear"),
        (FrontendConfig(host="0.0.0.0", token_file="t", tls_cert="c", tls_key="k"), ""),
        (FrontendConfig(host="0.0.0.0", tls_cert="c", tls_key="k", tls_client_ca="a"), ""),
    ],
)
def test_what_other_machines_may_do_without_a_token_is_warned_of(
    config: FrontendConfig, warned: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        check_exposure(config)
    assert bool(caplog.text) == bool(warned)
    assert warned in caplog.text


# Tokens and TLS over gRPC ---------------------------------------------------------------------------------------------


METHODS = methods()
NAMED = [(path, path.rpartition("/")[2]) for path in METHODS]
CHANGING = {"Load", "Unload", "Register", "Unregister", "Setting"}


@pytest.fixture(scope="module")
def guarded_rpc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Raw]:
    files = token_files(tmp_path_factory.mktemp("tokens"))
    config = FrontendConfig(port=0, grpc_port=0, **files)  # type: ignore[arg-type]
    with opened(config) as site, grpc.insecure_channel(address(site)) as channel:
        yield Raw(channel)


def status(raw: Raw, method: str, name: str, token: str | None) -> str:
    """Return the status of a call without content, OK where it is answered."""
    metadata = [] if token is None else [("authorization", f"Bearer {token}")]
    try:
        if METHODS[method].stream is not None:
            next(raw.channel.stream_stream(method)(iter([b""]), timeout=PATIENCE, metadata=metadata), None)
        else:
            raw.call(b"", method, metadata=metadata)
    except grpc.RpcError as error:
        return str(error.code().name)
    return "OK"


@pytest.mark.parametrize(("method", "name"), NAMED, ids=[name for _, name in NAMED])
def test_every_method_but_health_refuses_who_shows_no_token(guarded_rpc: Raw, method: str, name: str) -> None:
    refused = status(guarded_rpc, method, name, None) == "UNAUTHENTICATED"
    assert refused == (METHODS[method].access is not Access.OPEN)
    assert refused == (name not in {"ServerLive", "ServerReady", "Check", "Watch"})


@pytest.mark.parametrize(("method", "name"), NAMED, ids=[name for _, name in NAMED])
def test_methods_that_change_something_refuse_the_token_of_users(guarded_rpc: Raw, method: str, name: str) -> None:
    changes = any(name.endswith(word) for word in CHANGING) or name == "LogSettings"
    assert (status(guarded_rpc, method, name, USER) == "UNAUTHENTICATED") == changes
    assert status(guarded_rpc, method, name, ADMIN) != "UNAUTHENTICATED"


def test_a_method_that_nobody_thought_of_needs_the_admins_token() -> None:
    known = INFERENCE.methods_by_name["ModelReady"]
    unknown = SimpleNamespace(name="ModelRetrain", input_type=known.input_type, output_type=known.output_type)
    assert _method(INFERENCE, unknown).access is Access.MUTATING


@pytest.mark.skipif(OPENSSL is None, reason="needs openssl, which makes the certificates")
def test_over_tls_clients_are_answered_and_others_are_not(tmp_path: Path) -> None:
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
        with secure(site, pair.certificate, client.certificate, client.key) as channel:
            assert Raw(channel).call(data)
        with secure(site, pair.certificate, stranger.certificate, stranger.key) as channel:
            assert Raw(channel).refusal(data, timeout=2.0)[0] in {"UNAVAILABLE", "DEADLINE_EXCEEDED"}
        with grpc.insecure_channel(address(site)) as channel:
            assert Raw(channel).refusal(data, timeout=2.0)[0] in {"UNAVAILABLE", "DEADLINE_EXCEEDED"}


def secure(site: Site, authority: str, certificate: str, key: str) -> Any:
    files = (Path(name).read_bytes() for name in (authority, key, certificate))
    return grpc.secure_channel(f"localhost:{site.frontend.grpc_port}", grpc.ssl_channel_credentials(*files))


def test_several_tokens_are_refused_though_one_of_them_is_good(guarded_rpc: Raw) -> None:
    data = message(raw=[bytes(128)]).SerializeToString()
    for one, other in ((USER, USER), (USER, "0" * 20), ("0" * 20, USER)):
        several = [("authorization", f"Bearer {token}") for token in (one, other)]
        status, text = guarded_rpc.refusal(data, metadata=several)
        assert status == "INVALID_ARGUMENT"
        assert "send one" in text
