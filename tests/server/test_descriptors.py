import resource
from collections.abc import Iterator

import pytest

from latebind.server.listening import raise_file_limit


@pytest.fixture
def few() -> Iterator[int]:
    """So few files may this process open, until it asks for more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft // 2, hard))
    yield soft // 2
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_process_takes_as_many_descriptors_as_it_may(few: int, caplog: pytest.LogCaptureFixture) -> None:
    raise_file_limit(10)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft > few
    assert hard in (soft, resource.RLIM_INFINITY)
    assert not caplog.records
