"""The ledger and a real server: nothing is lost, whatever is done to it."""

import asyncio
import http.client
import re
from pathlib import Path
from random import Random

import pytest

from latebind.bench.client import poisson
from latebind.bench.ledger import networks
from latebind.bench.ledger.faults import Fault, Injector
from latebind.bench.ledger.play import Played, Target, play
from latebind.bench.ledger.questions import Mix, Questions

MODELS = ("affine", "chain", "relay")
REQUESTS = 240

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nobody_lends")]  # faults are done to what a server has


def left_early(target: Target) -> float:
    connection = http.client.HTTPConnection(target.host, target.http, timeout=60)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    found = re.search(r'latebind_left_at_total\{model="chain",stage="1",.*\} (\S+)', text)
    assert found, text
    return float(found[1])


def test_every_request_has_its_answer_though_the_engine_stops_and_dies(tmp_path: Path) -> None:
    with networks.serving(tmp_path, MODELS) as target:
        assert target.grpc
        mix = Mix(MODELS, deadlines=(0.2, 30.0))  # the next engine imports torch first
        faults = [Injector(fault, target.process, target.http, times=1) for fault in (Fault.STOP, Fault.KILL)]

        async def run() -> Played:
            return await play(target, Questions(mix), poisson(100, Random(0)), REQUESTS, inject=faults)

        played = asyncio.run(run())
        assert left_early(target) > 0
    assert played.ledger.evidence == []
    assert played.ledger.asked_count == REQUESTS
    assert len(played.ledger.good.due) > REQUESTS // 10
    assert {one.fault for one in played.injected} == {Fault.STOP, Fault.KILL}
    assert all(size > 50e6 for _, size in played.memory)
