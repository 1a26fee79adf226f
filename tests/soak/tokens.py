"""Sentences whose tokens come as they are written, over HTTP and gRPC; some clients hang up between two tokens."""

import http.client
import json
from collections import defaultdict
from random import Random
from threading import Event

import numpy as np
import tritonclient.grpc as triton_grpc

from latebind.bench.ledger.play import Target
from latebind.bench.ledger.questions import KINDS, LONGEST, MARKS, WORDS
from tests.soak.beside import PATIENCE, STREAMED

MODEL = "words"
LEAVING = 0.3  # share of the clients that hang up


def say(target: Target, random: Random) -> None:
    """Ask for sentences: the tokens of each make up its answer, or end in an error."""
    random.choice((_events, _stream))(target, random)


def _events(target: Target, random: Random) -> None:
    row, leaves = _sentence(random), random.random() < LEAVING
    connection = http.client.HTTPConnection(target.host, target.http, timeout=PATIENCE)
    try:
        call = {"tokens": row[0].tolist(), "parameters": {"timeout": 2_000_000}}
        connection.request("POST", f"/v2/models/{MODEL}/generate_stream", json.dumps(call))
        reply = connection.getresponse()
        if reply.status != http.HTTPStatus.OK:
            assert reply.status in {503, 504}, (reply.status, reply.read())
            return
        said = list[int]()
        for line in reply:
            if line.startswith(b"data: "):
                event = json.loads(line.removeprefix(b"data: "))
                if "error" in event:
                    return
                said += event["tokens"]
                if leaves:
                    return
        assert said == _right(row), (row, said)
    finally:
        connection.close()


def _stream(target: Target, random: Random) -> None:
    """Ask for several sentences on one stream, tokens of some and all at once of others."""
    client, begun = triton_grpc.InferenceServerClient(target.grpc), Event()
    said, ended, failed = defaultdict[int, list[int]](list), list[int](), list[object]()

    def heard(result: object, error: object) -> None:
        begun.set()
        if error is not None:
            failed.append(error)
            return
        assert isinstance(result, triton_grpc.InferResult)
        response = result.get_response()
        said[int(response.id)] += result.as_numpy("tokens").flatten().tolist()
        if response.parameters["triton_final_response"].bool_param or int(response.id) % 2:
            ended.append(int(response.id))

    client.start_stream(heard)
    rows = [_sentence(random) for _ in range(STREAMED)]
    for place, row in enumerate(rows):
        given = triton_grpc.InferInput("tokens", list(row.shape), "INT64")
        given.set_data_from_numpy(row)
        parameters = None if place % 2 else {"stream": True}
        client.async_stream_infer(MODEL, [given], request_id=str(place), timeout=2_000_000, parameters=parameters)
    if random.random() < LEAVING:
        assert begun.wait(PATIENCE)
        client.stop_stream(cancel_requests=True)
        client.close()
        return
    client.stop_stream()  # waits for the rest
    client.close()
    assert len(ended) + len(failed) == STREAMED == len({*ended}) + len(failed), (ended, failed)
    for place in ended:
        assert said[place] == _right(rows[place]), (rows[place], said[place])


def _sentence(random: Random) -> "np.ndarray[tuple[int, int], np.dtype[np.int64]]":
    length = random.randint(2, LONGEST)
    return np.array([[random.randrange(MARKS, WORDS) for _ in range(length)]], np.int64)


def _right(row: "np.ndarray[tuple[int, int], np.dtype[np.int64]]") -> list[int]:
    found: list[int] = KINDS[MODEL].right(row)[0].tolist()
    return found
