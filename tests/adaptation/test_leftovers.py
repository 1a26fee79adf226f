"""A service that does not start leaves nothing open in the door: a descriptor that uvloop closes late is another's."""

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest
import uvloop

from latebind.adaptation.client import AdaptationClient, NothingToFollow
from latebind.adaptation.messages import AdaptationOrder
from latebind.domain.config import AdaptationConfig
from tests.adaptation.in_use import Noted
from tests.forked import FORKS

PATIENCE = 60.0  # with a machine that has much else to do


def sockets() -> set[str]:
    """Return what tells this process's sockets from others."""
    found = set()
    for one in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.add(str(one.readlink()))
    return {one for one in found if one.startswith("socket:")}


def test_a_service_that_has_nothing_to_follow_leaves_no_socket_open() -> None:
    async def test() -> None:
        before = sockets()
        order = AdaptationOrder((), AdaptationConfig(on=True), threads=1, backend=None, cores=())
        with pytest.raises(NothingToFollow) as refused:
            await AdaptationClient.start(order, [], Noted(), FORKS)
        async with asyncio.timeout(PATIENCE):
            while sockets() - before:
                await asyncio.sleep(0)  # sockets are closed in a later turn of the loop
        assert refused  # with its traceback it held what was open

    FORKS.warm()
    uvloop.run(test())
