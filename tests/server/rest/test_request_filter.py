"""Whom HTTP lets in: tokens on every route, hosts and origins that browsers tell, and what is warned of."""

import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from latebind.domain.config import FrontendConfig
from latebind.domain.errors import ConfigError
from latebind.server.access import Access, check_exposure
from latebind.server.limits import Foreign
from latebind.server.rest.app import RequestFilter
from latebind.server.rest.routes import ROUTES
from tests.server.bodies import DOUBLE, request
from tests.server.conftest import Site, opened

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
