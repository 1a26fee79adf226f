"""Models that come and go piece by piece: what is really in memory, seen from outside, and what they answer."""

import json
import os
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from shutil import copytree

import psutil
import pytest
import torch
from torch import Tensor, nn

from latebind.domain.actions import Evict, Load, Run
from latebind.domain.config import EngineConfig
from latebind.domain.errors import RepositoryError
from latebind.domain.events import Loaded, LoadFailed
from latebind.engine import on_demand
from latebind.engine.loaded import load_model
from latebind.engine.on_demand import Loader, Opened, measure, open_model
from latebind.engine.worker import Worker
from latebind.program.build import build_program
from latebind.program.pieces import NotResident, Piece
from latebind.program.program import Program
from latebind.repository.directory import WEIGHTS
from latebind.repository.listing import find_models
from latebind.repository.tensors import BytesRead
from tests.digits import Built
from tests.engine.resident import MB, WIDTH, mapped_bytes
from tests.engine.rows import memory_of
from tests.engine.weighed import Weighed
from tests.forked import printed_by
from tests.program.test_backends import usable

EACH = 20

pytestmark = pytest.mark.usefixtures("frozen")


def weights_of(opened: Opened) -> Path:
    return opened.model.directory.path / WEIGHTS


def run(program: Program, rows: Tensor) -> Tensor:
    with torch.inference_mode():
        return program.run(rows)[0]


def test_weights_are_mapped_while_a_stage_is_loaded_and_answers_those_of_a_model_that_always_is(wide: Path) -> None:
    rows = torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(1))
    there = load_model(wide / "one" / "1", EngineConfig()).program
    opened = open_model(wide / "one" / "1", EngineConfig())
    program = opened.model.program
    assert isinstance(there, Program)
    assert isinstance(program, Program)
    file, first, last = weights_of(opened), opened.pieces[0], opened.pieces[-1]
    assert mapped_bytes(os.getpid(), file) == 0
    brought = first.load()
    assert brought.cached == brought.size == first.size == mapped_bytes(os.getpid(), file) >= WIDTH * WIDTH * 4
    for piece in opened.pieces[1:]:
        piece.load()
    assert mapped_bytes(os.getpid(), file) < sum(piece.size for piece in opened.pieces)  # two stages read some
    for batch in (rows, rows[:1]):
        assert torch.equal(run(program, batch), run(there, batch))
    for piece in opened.pieces[:-1]:
        piece.unload()
    assert mapped_bytes(os.getpid(), file) == last.size
    last.unload()
    assert mapped_bytes(os.getpid(), file) == 0
    with pytest.raises(NotResident, match="not in memory"):
        run(program, rows)


def lies_in_memory(path: Path) -> bool:
    """Whether a file there is in memory and nowhere else, as in many a /tmp."""
    mounted = [one for one in psutil.disk_partitions(all=True) if path.is_relative_to(one.mountpoint)]
    return max(mounted, key=lambda one: len(one.mountpoint)).fstype in {"ramfs", "tmpfs"}


def test_what_goes_to_the_tier_of_the_disk_is_read_from_there_again(wide: Path, tmp_path: Path) -> None:
    if lies_in_memory(tmp_path):
        pytest.skip("temporary files have no disk here")
    copytree(wide / "two" / "1", tmp_path / "1")  # no file stays cached that another process of tests has mapped
    opened = open_model(tmp_path / "1", EngineConfig(), cached=False)
    piece = opened.pieces[0]
    os.sync()  # pages that are not on the disk yet cannot leave the page cache
    piece.load()
    piece.unload()
    brought = piece.load()
    assert brought.size >= WIDTH * WIDTH * 4
    assert brought.cached < 0.1 * brought.size
    piece.unload()


def test_a_file_that_was_cut_short_fails_loudly_and_nothing_of_it_stays(wide: Path, tmp_path: Path) -> None:
    copytree(wide / "one" / "1", tmp_path / "1")
    opened = open_model(tmp_path / "1", EngineConfig())
    file, heard = weights_of(opened), SimpleQueue[Loaded | LoadFailed]()
    loader = Loader({"one": opened.pieces})
    loader.start(heard.put)
    os.truncate(file, file.stat().st_size // 2)
    everything = tuple(range(len(opened.pieces)))
    loader.perform(Load("one", everything))
    loader.close()
    assert heard.get() == LoadFailed("one", everything)
    assert mapped_bytes(os.getpid(), file) == 0
    with pytest.raises(RepositoryError, match="differs from the manifest"):
        open_model(tmp_path / "1", EngineConfig())


class Stub(Piece):
    """A piece that is there or not; with `fails` it cannot be loaded."""

    def __init__(self, *, fails: bool = False) -> None:
        super().__init__((), (), backend="eager")
        self.there, self._fails = False, fails

    def load(self) -> BytesRead:
        if self._fails:
            raise MemoryError
        self.there = True
        return BytesRead()

    def unload(self) -> None:
        self.there = False


def test_of_a_model_of_which_a_piece_cannot_be_loaded_those_before_are_let_go() -> None:
    pieces, heard = (Stub(), Stub(), Stub(fails=True)), SimpleQueue[Loaded | LoadFailed]()
    loader = Loader({"net": pieces})
    loader.start(heard.put)
    loader.perform(Load("net", (0,)))
    loader.perform(Load("net", (1, 2)))
    loader.close()
    assert [type(heard.get()) for _ in range(2)] == [Loaded, LoadFailed]
    assert [piece.there for piece in pieces] == [True, False, False]


def test_loads_and_evictions_are_performed_in_the_order_in_which_they_were_told(wide: Path) -> None:
    opened = open_model(wide / "one" / "1", EngineConfig())
    heard = SimpleQueue[Loaded | LoadFailed]()
    loader = Loader({"one": opened.pieces})
    for action in (Load("one", (0,)), Load("one", (1, 2)), Evict("one", (1,)), Load("one", (1,)), Evict("one", (0, 2))):
        loader.perform(action)
    loader.start(heard.put)
    loader.close()
    found = [heard.get() for _ in range(3)]
    assert [(type(event), event.pieces) for event in found] == [(Loaded, (0,)), (Loaded, (1, 2)), (Loaded, (1,))]
    assert mapped_bytes(os.getpid(), weights_of(opened)) == opened.pieces[1].size
    sizes = [event.sizes for event in found if isinstance(event, Loaded)]
    assert sizes[1] == (opened.pieces[1].size, opened.pieces[2].size)


def test_a_compiled_stage_gives_its_memory_back_and_keeps_nothing_of_a_large_batch_but_its_outputs(
    tmp_path: Path,
) -> None:
    usable("openvino")
    width, rows = 1024, torch.randn(2, 1024, generator=torch.Generator().manual_seed(0))
    module = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)).eval()
    build_program(
        module,
        {"input": rows},
        directory=tmp_path / "1",
        name="wide",
        backends=["openvino"],
        min_stage_seconds=0.0,
        max_overhead=None,
        max_batch=2,
    )
    told = json.loads(printed_by("tests.engine.weighed", str(tmp_path / "1"), json.dumps(rows.tolist())))
    found, kept = Weighed(**told["weighed"]), told["kept"]
    torch.testing.assert_close(torch.tensor(found.answers), module(rows).detach(), rtol=1e-4, atol=1e-4)
    weights = 2 * width * width * 4
    assert found.taken >= 0.9 * weights
    assert found.left <= 0.2 * found.taken
    assert found.size >= weights
    # Each stage of a model would keep room for the largest batch it ever ran, though only one of them runs.
    assert kept["frugal"] <= kept["outputs"] + kept["usual"] / 3


def test_a_stage_that_cannot_be_compiled_leaves_its_place_empty_and_its_pages_free(wide: Path) -> None:
    usable("openvino")
    opened = open_model(wide / "one" / "1", EngineConfig(backend="openvino"))
    program, piece = opened.model.program, opened.pieces[0]
    assert isinstance(program, Program)
    file = weights_of(opened)
    size, stamp = file.stat().st_size, file.stat().st_mtime_ns
    os.truncate(file, size + 1)
    try:
        with pytest.raises(RepositoryError, match="changed"):
            piece.load()
    finally:
        os.truncate(file, size)
        os.utime(file, ns=(stamp, stamp))
    with pytest.raises(NotResident):
        program.stages[0](torch.zeros(1, WIDTH))
    assert mapped_bytes(os.getpid(), file) == 0


def test_twins_have_a_stage_as_long_as_it_is_loaded(wide: Path) -> None:
    usable("openvino")
    for backend in ("eager", "openvino"):
        opened = open_model(wide / "one" / "1", EngineConfig(backend=backend))
        twin = opened.model.twin().program
        assert isinstance(twin, Program)
        opened.pieces[0].load()
        twin.stages[0](torch.zeros(1, WIDTH))
        opened.pieces[0].unload()
        with pytest.raises(NotResident):
            twin.stages[0](torch.zeros(1, WIDTH))


def test_a_worker_goes_on_without_a_learned_cache_that_is_not_there_and_asks_one_that_has_come(built: Built) -> None:
    opened = open_model(built.directory.path, EngineConfig())
    spec, stage = opened.model.spec, opened.behind[0]
    memory = memory_of(spec, rows=EACH)
    worker, rows = Worker({spec.name: opened.model}, memory), memory.models[0]
    everyone = tuple(range(EACH))
    rows.inputs[0][:] = built.unseen[:EACH].numpy()
    found = []
    with torch.inference_mode():
        for piece in opened.pieces[: spec.stages]:
            piece.load()
        found.append(exits(worker, spec.name, stage, everyone))
        opened.pieces[spec.stages].load()
        found.append(exits(worker, spec.name, stage, everyone))
        opened.pieces[spec.stages].unload()
        found.append(exits(worker, spec.name, stage, everyone))
    for piece in opened.pieces[: spec.stages]:
        piece.unload()
    assert found[0] == found[2] == ()
    assert found[1] != ()


def exits(worker: Worker, model: str, stage: int, requests: tuple[int, ...]) -> tuple[int, ...]:
    """Return who leaves behind a stage, with all stages up to it run."""
    return [worker.run(Run(0, model, number, requests, requests)).exited for number in range(stage + 1)][-1]


def test_a_model_is_measured_piece_by_piece_and_let_go(built: Built) -> None:
    opened = open_model(built.directory.path, EngineConfig())
    file = weights_of(opened)
    assert mapped_bytes(os.getpid(), file) == 0
    model = measure(opened, 100 * MB)
    assert model.footprint.sizes == tuple(piece.size for piece in opened.pieces)
    assert model.footprint.stages == model.spec.stages
    assert model.footprint.behind == model.spec.lookups
    assert all(seconds > 0.0 for seconds in model.footprint.seconds)
    assert all(gain >= 0.0 for gain in model.footprint.gains)
    assert mapped_bytes(os.getpid(), file) == 0
    assert not any(lookup.there for lookup in opened.model.lookups.values())


def test_a_profile_of_another_machine_is_taken_anew_one_piece_at_a_time(wide: Path) -> None:
    opened = open_model(wide / "one" / "1", EngineConfig())
    program = opened.model.program
    assert isinstance(program, Program)
    elsewhere = replace(opened, model=replace(opened.model, program=replace(program, costs_fit=False)))
    model = measure(elsewhere, max(piece.size for piece in opened.pieces))
    assert [grid.curves[0].batches for grid in model.costs.stages] == [(1, 2)] * model.spec.stages
    assert all(grid.at(1) > 0.0 for grid in model.costs.stages)


def test_sequences_have_two_pieces_what_reads_and_the_step(models: Path) -> None:
    (path,) = find_models(models, ["backwards"])
    opened = open_model(path, EngineConfig())
    model = measure(opened, 100 * MB)
    assert model.footprint.stages == model.spec.stages == len(opened.pieces) == 2
    assert mapped_bytes(os.getpid(), weights_of(opened)) == 0


@pytest.mark.parametrize(("every", "times"), [(0.0, 5), (3600.0, 1)])
def test_what_was_kept_of_activations_goes_behind_what_is_let_go(
    monkeypatch: pytest.MonkeyPatch, every: float, times: int
) -> None:
    trims: list[None] = []
    monkeypatch.setattr(on_demand, "TRIMS_EVERY", every)
    monkeypatch.setattr(on_demand, "trim_heap", lambda: trims.append(None))
    heard = SimpleQueue[Loaded | LoadFailed]()
    under_way = Loader({"a": (Piece((), (), backend="eager"),)})
    under_way.start(heard.put)
    for _ in range(5):
        under_way.perform(Load("a", (0,)))
        under_way.perform(Evict("a", (0,)))
    under_way.close()
    assert heard.qsize() == 5
    assert len(trims) == times
