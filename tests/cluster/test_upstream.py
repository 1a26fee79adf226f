"""Which replies an ingress need not parse."""

import pytest

from latebind.cluster.upstream import is_whole

HEAD = b"HTTP/1.1 200 OK\r\ndate: today\r\ncontent-length: "
CUT = HEAD + b"%d\r"  # within a head, where a count of its bytes could be taken for that of a body


def test_a_usual_reply_is_whole_with_the_last_byte_of_its_body() -> None:
    assert is_whole(HEAD + b"4\r\n\r\nonce")
    assert is_whole(HEAD + b"0\r\n\r\n")


@pytest.mark.parametrize(
    "data",
    [
        HEAD + b"4\r\n\r\nonc",
        HEAD + b"4\r\n\r\nonce and more",
        *(CUT % size for size in range(40, 60)),
        HEAD + b"4\r\nconnection: close\r\n\r\nonce",
        HEAD.replace(b"200 OK", b"503 Service Unavailable") + b"4\r\n\r\nonce",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
def test_what_is_cut_closes_or_failed_is_not(data: bytes) -> None:
    assert not is_whole(data)
