"""Model directories that several tests share, built once for a whole run."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch
from hypothesis import settings

from latebind.forks.client import VARIABLE, lending
from latebind.learned.report import CacheReport
from latebind.program.build import build_program
from latebind.sequence.build import build_sequence
from tests.building import build_stages, made_once, on_one_core
from tests.digits import Built, build_digits
from tests.forked import FORKS
from tests.networks import Chain, Words
from tests.querying import build_queried
from tests.sequences import Backwards, rows_of, some_sentences
from tests.texts import BuiltTexts, build_texts
from tests.working import measured_by_work

REPORT = "report.json"

settings.register_profile("thorough", max_examples=12_500, deadline=None)
settings.register_profile("usual", max_examples=50, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "usual"))


# The files whose tests took 8 s or more on a slow core (`pytest --durations=0`). The rest, which `make check` runs,
# takes 2.5 minutes on two such cores.
SLOW = frozenset(Path(__file__).with_name("slow.txt").read_text().split())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of slow files."""
    for item in items:
        if item.path.relative_to(item.config.rootpath).as_posix() in SLOW:
            item.add_marker(pytest.mark.slow)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests for a GPU where there is none, with the reason in the report."""
    if item.get_closest_marker("gpu") is not None and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device: torch finds none here")


def pytest_collection_finish() -> None:
    """Have collections of garbage look at what tests make alone, as in an engine: its fork server froze all before.

    What a process of tests has imported makes each take up to a second, and measuring takes two for each piece.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def lent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Servers that tests start as processes of their own borrow what the fork server of all tests has imported.

    It finds the tests from wherever it is first asked: some tests have another working directory.
    """
    place = tmp_path_factory.mktemp("lent") / "lender"
    with lending(FORKS, place), pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(place))
        patch.setenv("PYTHONPATH", str(Path(__file__).parent.parent), prepend=os.pathsep)
        yield


@pytest.fixture
def one_core() -> Iterator[None]:
    """Have a test work on one core, which takes less where another process runs tests."""
    with on_one_core():
        yield


@pytest.fixture(scope="session", autouse=True)
def by_work() -> Iterator[None]:
    """Have all builds choose by work instead of time, alike on every machine, however busy."""
    with measured_by_work():
        yield


@pytest.fixture
def nobody_lends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers have all processes of their own, as where nobody has imported anything before."""
    monkeypatch.delenv(VARIABLE)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `chain`, four stages of convolutions, `words`, which raises past its list, and `backwards`."""
    return made_once(tmp_path_factory, "models", build_models)


def build_models(root: Path) -> None:
    torch.set_num_threads(1)
    images = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    built = build_stages(Chain(), {"image": images}, root / "chain" / "1", name="chain", max_batch=8)
    assert len(built.stages) >= 4
    words = torch.zeros(2, 3, dtype=torch.int64)
    build_program(Words(), {"word": words}, directory=root / "words" / "1", name="words", backends=["eager"])
    sentences = rows_of(some_sentences(30))
    build_sequence(
        Backwards(), sentences, directory=root / "backwards" / "1", name="backwards", backends=["eager"], max_batch=8
    )


@pytest.fixture(scope="session")
def queried(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the models and queries of `tests.querying`."""
    return made_once(tmp_path_factory, "queried", build_queried)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Digits with learned caches; `built.directory.path` is `digits/1` in a folder of its own."""

    def make(folder: Path) -> None:
        with on_one_core():
            report = build_digits(folder / "digits", candidates=2).report
        (folder / REPORT).write_bytes(msgspec.json.encode(report, enc_hook=str))

    return Built(_told(made_once(tmp_path_factory, "built", make)))


@pytest.fixture(scope="session")
def built_texts(tmp_path_factory: pytest.TempPathFactory) -> BuiltTexts:
    """Texts of any length with learned caches; `built_texts.directory.path` is `texts/1` in a folder of its own."""

    def make(folder: Path) -> None:
        with on_one_core():
            report = build_texts(folder / "texts").report
        (folder / REPORT).write_bytes(msgspec.json.encode(report, enc_hook=str))

    return BuiltTexts(_told(made_once(tmp_path_factory, "built-texts", make)))


def _told(folder: Path) -> CacheReport:
    return msgspec.json.decode((folder / REPORT).read_bytes(), type=CacheReport, dec_hook=lambda kind, text: kind(text))
