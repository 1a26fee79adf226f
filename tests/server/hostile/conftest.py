"""After every hostile input the frontend must answer a plain call rightly, and nothing may be held for it."""

import time
from collections.abc import Iterator

import pytest

from tests.server.conftest import Site

LONGEST = 20.0  # seconds of a core that frontend and client may take for any of them; far more than any takes


@pytest.fixture(autouse=True)
def the_frontend_is_well_soon_after(site: Site) -> Iterator[None]:
    begun = time.process_time()
    yield
    assert site.is_well()
    assert site.taken == 0
    assert time.process_time() - begun < LONGEST
