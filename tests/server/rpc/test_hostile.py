"""What no honest client sends: none of it crashes the frontend, and whoever sent it is told that it was theirs."""

from random import Random
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2

from latebind.domain.errors import TooLarge
from latebind.server.limits import Limits
from latebind.server.rpc.infer import SMALL, read_request, varint
from tests.server.conftest import Raw
from tests.server.rpc.conftest import X, request

RIGHT = request(raw=[X.tobytes()])
WRITTEN: bytes = RIGHT.SerializeToString()
PADDING = b"\x1a" + varint(SMALL) + b"a" * SMALL  # an id that makes a request large


@pytest.mark.parametrize("seed", range(4))
def test_a_request_with_a_few_bytes_altered_is_answered_or_refused(raw: Raw, seed: int) -> None:
    random = Random(seed)
    statuses = set()
    for _ in range(50):
        data = bytearray(WRITTEN)
        for _ in range(random.randrange(1, 4)):
            data[random.randrange(len(data) - 128)] = random.randrange(256)
        try:
            raw.call(bytes(data))
        except grpc.RpcError as error:
            statuses.add(error.code().name)
    assert statuses <= {"INVALID_ARGUMENT", "NOT_FOUND"}


def large(**fields: Any) -> bytes:
    """A request that is read by hand."""
    message = request(raw=[X.tobytes(), b"", bytes(SMALL)], id="7", **fields)
    written: bytes = message.SerializeToString()
    return written


def test_a_large_request_read_by_hand_is_what_protobuf_reads() -> None:
    data = large(model_version="3", outputs=[{"name": "y"}])
    found, raw = read_request(data, Limits())
    assert [bytes(content) for content in raw] == [X.tobytes(), b"", bytes(SMALL)]
    found.raw_input_contents.extend(map(bytes, raw))
    assert found == service_pb2.ModelInferRequest.FromString(data)


def test_a_large_request_may_not_describe_more_than_json_may() -> None:
    with pytest.raises(TooLarge, match="more than 1000"):
        read_request(PADDING + WRITTEN, Limits(json_bytes=1000))
