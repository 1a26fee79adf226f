"""After every hostile input the door must answer a plain call rightly, and nothing may be held for it."""

import time
from collections.abc import Iterator
from ctypes.util import find_library

import pytest

from latebind.domain.config import GRPC_STACKS, DoorConfig
from tests.server.conftest import Site, opened
from tests.server.rpc.conftest import raw

__all__ = ["raw"]

LONGEST = 20.0  # seconds of a core that door and client may take for any of them; far more than any takes


@pytest.fixture(scope="module", params=GRPC_STACKS)
def rpc_site(request: pytest.FixtureRequest) -> Iterator[Site]:
    """A door of either kind that speaks gRPC."""
    if request.param == "nghttp2" and find_library("nghttp2") is None:
        pytest.skip("needs libnghttp2, which is not installed")
    with opened(DoorConfig(port=0, grpc_port=0, grpc_stack=request.param)) as found:
        yield found


@pytest.fixture(autouse=True)
def the_door_is_well_soon_after(site: Site) -> Iterator[None]:
    begun = time.process_time()
    yield
    assert site.is_well()
    assert site.taken == 0
    assert time.process_time() - begun < LONGEST
