"""An adaptation service whose server died before it said what to do."""

import signal
import socket
from collections.abc import Iterator

import pytest

from latebind.adaptation.process import main


@pytest.fixture
def signals() -> Iterator[None]:
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize("sent", [b"", b'{"config"'])
def test_a_service_whose_server_died_before_its_order_ends_in_silence(sent: bytes) -> None:
    (messages, one), (control, other) = socket.socketpair(), socket.socketpair()
    with one, other:
        other.sendall(sent)
        other.shutdown(socket.SHUT_WR)
        main([str(messages.detach()), str(control.detach())])
