"""Workers of a sequence model: whether a step is computed by the worker's own thread or handed to another one."""

import os
import time
from pathlib import Path

import pytest
import torch

from latebind.domain.config import EngineConfig
from latebind.engine.crew import load_model
from latebind.program import openvino
from latebind.repository.listing import find_models
from latebind.sequence import stored
from latebind.sequence.program import SequenceProgram, typical_decoding
from tests.program.test_backends import usable


def computes_itself(program: SequenceProgram) -> bool:
    """Return whether the work of reading and of steps is done by the thread that asks for them, and by no other."""
    with torch.inference_mode():
        decoding = typical_decoding(program)
        here, whole = time.thread_time(), time.process_time()
        for _ in range(100):
            decoding.read((0,))
            decoding.step((0,))
        return time.thread_time() - here > 0.95 * (time.process_time() - whole)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one core")
@pytest.mark.parametrize(("crew", "itself"), [((8, 8), True), ((1, 1, 8), False)])
def test_a_crew_with_cores_for_all_computes_on_its_own_threads(
    models: Path, monkeypatch: pytest.MonkeyPatch, crew: tuple[int, ...], itself: bool
) -> None:
    monkeypatch.setattr(openvino, "SHARED_FROM", 0)  # the model is small
    (path,) = find_models(models, ["backwards"])
    model = load_model(path, EngineConfig(backend=usable("openvino"), granularities=crew), streams=2)
    for worker in (model, model.twin()):
        assert isinstance(worker.program, SequenceProgram)
        assert computes_itself(worker.program) is itself


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one core")
def test_what_copies_take_is_bounded(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvino, "SHARED_FROM", 0)
    monkeypatch.setattr(stored, "SPARE_FOR_DECODERS", 0)
    (path,) = find_models(models, ["backwards"])
    model = load_model(path, EngineConfig(backend=usable("openvino"), granularities=(8, 8)), streams=2)
    assert isinstance(model.program, SequenceProgram)
    assert not computes_itself(model.program)
