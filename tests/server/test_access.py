"""Who may call: tokens on every route and method, hosts and origins that browsers tell, and what is warned of."""

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest
from msgspec.structs import replace

from latebind.domain.config import FrontendConfig
from latebind.domain.errors import ConfigError, Denied, TurnedOff
from latebind.server.access import Access, Guard, check_exposure, read_tokens
from latebind.server.limits import Foreign
from latebind.server.rest.app import RequestFilter
from latebind.server.rest.openapi import Route
from latebind.server.rest.routes import ROUTES
from latebind.server.rpc.messages import INFERENCE
from latebind.server.rpc.verbs import _method, methods
from tests.server.bodies import DOUBLE, request
from tests.server.conftest import BOTH, PATIENCE, Raw, Site, address, opened

USER, ADMIN = "user-0123456789abcdef", "admin-0123456789abcdef"
LOOPBACK, ANYWHERE = FrontendConfig(), FrontendConfig(host="0.0.0.0")
GRPC_METHODS = methods()
CHANGING = ("Load", "Unload", "Register", "Unregister", "Setting", "LogSettings")


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
def test_nothing_a_token_and_the_admins_open_what_they_are_for(
    guard: Guard, ordinary: tuple[bool, ...], mutating: tuple[bool, ...]
) -> None:
    for access, right in ((Access.OPEN, (True,) * 3), (Access.ORDINARY, ordinary), (Access.MUTATING, mutating)):
        assert tuple(opens(guard, access, shown) for shown in (None, USER, ADMIN)) == right


def test_where_strangers_may_call_nobody_changes_anything_without_a_token() -> None:
    guard = Guard.from_files(ANYWHERE)
    with pytest.raises(TurnedOff, match="--admin-token-file"):
        guard.check(Access.MUTATING, None)
    guard.check(Access.ORDINARY, None)
    assert opens(Guard(token=USER, strangers=True), Access.MUTATING, USER)
    assert opens(Guard.from_files(LOOPBACK), Access.MUTATING, None)


GOOD = USER.encode()
NO_TOKENS = [b"", b"Bearer", b"Bearer ", GOOD, b"Basic " + GOOD, b"Bearer " + GOOD[:-1], b"Bearer " + GOOD + b"0"]
NO_TOKENS += [b"Bearer " + GOOD.upper(), b"Bearer " + GOOD + b"\0", b"Bearer Bearer " + GOOD, b"Bearer " + b"\xff" * 20]


@pytest.mark.parametrize("shown", [*NO_TOKENS, b"Bearer " + b"u" * 1_000_000], ids=range(len(NO_TOKENS) + 1))
def test_what_is_not_quite_the_token_opens_nothing(shown: bytes) -> None:
    with pytest.raises(Denied) as refusal:
        Guard(token=USER).check(Access.ORDINARY, shown)
    assert USER not in str(refusal.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "does not have a token on each line"),
        (b"two tokens-in-one-line", "does not have a token on each line"),
        (b"first-0123456789abcdef\nsecond 0123456789abcdef\n", "does not have a token on each line"),
        (b"first-0123456789abcdef\nshort\n", "fewer than 16 characters"),
        (b"first-0123456789abcdef\n" * 5, "has 5 tokens"),
        ("schlüssel-0123456789".encode(), "does not have a token on each line"),
        (b"\0" * 32, "does not have a token on each line"),
        (b"short", "fewer than 16 characters"),
    ],
)
def test_a_file_that_is_no_token_is_a_clear_error(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        read_tokens(file)


def test_tokens_change_while_both_are_good_and_stay_where_their_file_is_none(tmp_path: Path) -> None:
    file, new = tmp_path / "token", "new-0123456789abcdef"
    file.write_text(f"{USER}\n")
    guard = Guard.from_files(FrontendConfig(host="0.0.0.0", token_file=str(file)))

    def good() -> tuple[bool, ...]:
        return tuple(opens(guard, Access.MUTATING, shown) for shown in (USER, new, None))

    assert good() == (True, False, False)
    for content, wanted in ((f"{new}\n\n{USER}", (True, True, False)), (f"{new}\n", (False, True, False))):
        file.write_text(content)
        assert good() != wanted  # not before it is read
        guard.read()
        assert good() == wanted
    for spoil in (lambda: file.write_text(""), lambda: file.write_text("short"), file.unlink):
        spoil()
        with pytest.raises(ConfigError, match="token"):
            guard.read()
        assert good() == (False, True, False)


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o640, False), (0o644, True)])
def test_a_token_that_everybody_may_read_is_warned_of(
    tmp_path: Path, mode: int, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "token"
    file.write_text(USER + "\n")
    file.chmod(mode)
    assert read_tokens(file) == [USER]
    assert ("chmod 600" in caplog.text) == warned
    assert USER not in caplog.text


# Tokens on every route and method -------------------------------------------------------------------------------------


def token_files(folder: Path) -> dict[str, str]:
    for name, token in (("user", USER), ("admin", ADMIN)):
        (folder / name).write_text(token)
        (folder / name).chmod(0o600)
    return {"token_file": str(folder / "user"), "admin_token_file": str(folder / "admin")}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with opened(replace(BOTH, **token_files(tmp_path_factory.mktemp("tokens")))) as site:
        yield site


def example(path: str) -> str:
    """Return a path that leads to a route: without what may be left out, `double` for each name."""
    return re.sub(r"{\w+}", "double", re.sub(r"\[.*?\]", "", path)).replace("/dashboard/double", "/dashboard/a.js")


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_every_http_route_asks_for_its_token(guarded: Site, route: Route) -> None:
    path = example(route.path)
    replies = [guarded.call(route.method, path)]
    replies += [guarded.call(route.method, path, b"", {"Authorization": f"Bearer {token}"}) for token in (USER, ADMIN)]
    refused = [reply.status == 401 for reply in replies]
    assert refused == [route.access is not Access.OPEN, route.access is Access.MUTATING, False]
    if refused[0]:
        assert replies[0].headers["www-authenticate"] == "Bearer"
        assert b"needs a token" in replies[0].body  # in the form of its API
    else:
        assert path.startswith(("/v2/health/", "/health", "/dashboard"))  # the page itself, which has no figures in it


def test_a_refused_call_ends_before_its_body_is_read(guarded: Site) -> None:
    reply = guarded.send(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n" % DOUBLE.encode())
    assert reply.status == 401


def grpc_refuses(site: Site, method: str, *tokens: str) -> bool:
    """Return whether a call without content is refused for its tokens."""
    metadata = [("authorization", f"Bearer {token}") for token in tokens]
    with grpc.insecure_channel(address(site)) as channel:
        try:
            if GRPC_METHODS[method].stream is not None:
                next(channel.stream_stream(method)(iter([b""]), timeout=PATIENCE, metadata=metadata), None)
            else:
                channel.unary_unary(method)(b"", timeout=PATIENCE, metadata=metadata)
        except grpc.RpcError as error:
            return error.code() is grpc.StatusCode.UNAUTHENTICATED
    return False


@pytest.mark.parametrize("method", GRPC_METHODS)
def test_every_grpc_method_asks_for_its_token(guarded: Site, method: str) -> None:
    name = method.rpartition("/")[2]
    assert grpc_refuses(guarded, method) == (name not in {"ServerLive", "ServerReady", "Check", "Watch"})
    assert grpc_refuses(guarded, method, USER) == name.endswith(CHANGING)
    assert not grpc_refuses(guarded, method, ADMIN)


def test_a_method_that_nobody_thought_of_needs_the_admins_token() -> None:
    known = INFERENCE.methods_by_name["ModelReady"]
    unknown = SimpleNamespace(name="ModelRetrain", input_type=known.input_type, output_type=known.output_type)
    assert _method(INFERENCE, unknown).access is Access.MUTATING


def test_several_tokens_over_grpc_are_refused_though_one_of_them_is_good(guarded: Site) -> None:
    with grpc.insecure_channel(address(guarded)) as channel:
        for both in ((USER, USER), (USER, "0" * 20)):
            metadata = [("authorization", f"Bearer {token}") for token in both]
            status, text = Raw(channel).refusal(b"", metadata=metadata)
            assert (status, "send one" in text) == ("INVALID_ARGUMENT", True)


# Hosts and origins ----------------------------------------------------------------------------------------------------

HERE = (b"host", b"localhost:8000")
NAMED = FrontendConfig(host="127.0.0.2", allow_hosts=("Models.example", "other.example:81"))
HOSTS: list[tuple[FrontendConfig, bool, list[bytes]]] = [
    (LOOPBACK, True, [b"localhost", b"localhost:8000", b"LOCALHOST:1", b"127.0.0.1:80", b"[::1]", b"[::1]:8"]),
    (
        LOOPBACK,
        False,
        [b"", b"evil.example", b"evil.example:8000", b"localhost.evil.example", b"evil.example@localhost"],
    ),
    (LOOPBACK, False, [b"localhost:8000.evil.example", b"localhost:", b"localhost:8000:8000", b"127.0.0.1.nip.io"]),
    (LOOPBACK, False, [b"192.168.0.1", b"[::1", b"\xff\xfe"]),
    (NAMED, True, [b"127.0.0.2:8000", b"models.example", b"models.example:80", b"other.example:81"]),
    (NAMED, False, [b"other.example:82"]),
]
ORIGINS = {b"http://localhost:8000": True, b"https://LOCALHOST:8000": True}
ORIGINS |= dict.fromkeys((b"http://localhost:3000", b"http://localhost", b"http://evil.example", b"null"), False)
ORIGINS |= dict.fromkeys((b"", b"http://", b"localhost:8000"), False)
SITES = {
    b"same-origin": True,
    b"none": True,
    b"same-site": False,
    b"cross-site": False,
    b"CROSS-SITE": False,
    b"": False,
}


def admitted(config: FrontendConfig, *headers: tuple[bytes, bytes], method: str = "GET") -> bool:
    try:
        RequestFilter(config).admit(Access.ORDINARY, method, dict(headers))
    except Foreign:
        return False
    return True


@pytest.mark.parametrize(("config", "let_in", "hosts"), HOSTS)
def test_only_hosts_of_this_server_are_let_in_on_loopback(
    config: FrontendConfig, let_in: bool, hosts: list[bytes]
) -> None:
    for host in hosts:
        assert admitted(config, (b"host", host)) == let_in, host


@pytest.mark.parametrize("config", [LOOPBACK, ANYWHERE], ids=["loopback", "anywhere"])
def test_a_page_of_another_site_is_known_by_its_origin_or_by_what_the_browser_says(config: FrontendConfig) -> None:
    for origin, let_in in ORIGINS.items():
        assert admitted(config, HERE, (b"origin", origin)) == let_in, origin
    for site, let_in in SITES.items():
        assert admitted(config, HERE, (b"sec-fetch-site", site), method="POST") == let_in, site
        assert admitted(config, HERE, (b"sec-fetch-site", site)), "a link on another site may lead to what is only read"


def test_pages_of_other_sites_are_refused_and_no_header_invites_them(site: Site) -> None:
    for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        assert site.post(DOUBLE, request(), headers).status == 403
    for path in ("/v2", "/v2/health/live"):
        reply = site.call("GET", path, b"", {"Origin": f"http://127.0.0.1:{site.port}"})
        assert reply.status == 200
        assert not [name for name in reply.headers if name.startswith("access-control")]


# What is warned of ----------------------------------------------------------------------------------------------------


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
        (ANYWHERE, "give --token-file"),
        (FrontendConfig(host="models.example", tls_cert="c", tls_key="k"), "give --token-file"),
        (FrontendConfig(host="0.0.0.0", token_file="t"), "unencrypted"),
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
