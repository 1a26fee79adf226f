"""After every hostile input the door must answer a plain call rightly, and nothing may be held for it."""

import time
from collections.abc import Iterator

import pytest

from tests.server.conftest import Site
from tests.server.rpc.conftest import raw, rpc_site

__all__ = ["raw", "rpc_site"]

LONGEST = 5.0  # seconds that any of them may keep the door busy; far more than any takes, for machines are shared


@pytest.fixture(autouse=True)
def the_door_is_well_soon_after(site: Site) -> Iterator[None]:
    begun = time.monotonic()
    yield
    assert site.is_well()
    assert site.gateway.taken == 0
    assert time.monotonic() - begun < LONGEST
