"""Tokens alone: where they come from, and what they open."""

import logging
from pathlib import Path

import pytest

from latebind.domain.config import FrontendConfig
from latebind.domain.errors import ConfigError, Denied, TurnedOff
from latebind.server.access import Access, Guard, read_token

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
    for access, opened in ((Access.OPEN, (True,) * 3), (Access.ORDINARY, ordinary), (Access.MUTATING, mutating)):
        assert tuple(opens(guard, access, shown) for shown in (None, USER, ADMIN)) == opened


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
