"""Tokens and TLS over gRPC: the same as over HTTP, on every method."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from latebind.domain.config import FrontendConfig
from latebind.server.access import Access
from latebind.server.rpc.messages import INFERENCE
from latebind.server.rpc.verbs import _method, methods
from tests.server.conftest import PATIENCE, Raw, Site, address, opened
from tests.server.rest.test_request_filter import ADMIN, USER, token_files
from tests.server.rpc.conftest import request
from tests.server.test_tls import OPENSSL, make_pair

METHODS = methods()
NAMED = [(path, path.rpartition("/")[2]) for path in METHODS]
CHANGING = {"Load", "Unload", "Register", "Unregister", "Setting"}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Raw]:
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
def test_every_method_but_health_refuses_who_shows_no_token(guarded: Raw, method: str, name: str) -> None:
    refused = status(guarded, method, name, None) == "UNAUTHENTICATED"
    assert refused == (METHODS[method].access is not Access.OPEN)
    assert refused == (name not in {"ServerLive", "ServerReady", "Check", "Watch"})


@pytest.mark.parametrize(("method", "name"), NAMED, ids=[name for _, name in NAMED])
def test_methods_that_change_something_refuse_the_token_of_users(guarded: Raw, method: str, name: str) -> None:
    changes = any(name.endswith(word) for word in CHANGING) or name == "LogSettings"
    assert (status(guarded, method, name, USER) == "UNAUTHENTICATED") == changes
    assert status(guarded, method, name, ADMIN) != "UNAUTHENTICATED"


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
    data = request(raw=[bytes(128)]).SerializeToString()
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


def test_several_tokens_are_refused_though_one_of_them_is_good(guarded: Raw) -> None:
    data = request(raw=[bytes(128)]).SerializeToString()
    for one, other in ((USER, USER), (USER, "0" * 20), ("0" * 20, USER)):
        several = [("authorization", f"Bearer {token}") for token in (one, other)]
        status, text = guarded.refusal(data, metadata=several)
        assert status == "INVALID_ARGUMENT"
        assert "send one" in text
