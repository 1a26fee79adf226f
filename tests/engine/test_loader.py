"""The loader: behind what goes, what the C library has kept of activations goes too, and not at every turn."""

from queue import SimpleQueue

import pytest

from latebind.domain.actions import Evict, Load
from latebind.domain.events import Loaded, LoadFailed
from latebind.engine import loader
from latebind.program.pieces import MappedPiece

ROUNDS = 5


@pytest.mark.parametrize(("every", "times"), [(0.0, ROUNDS), (3600.0, 1)])
def test_what_was_kept_of_activations_goes_behind_what_is_let_go(
    monkeypatch: pytest.MonkeyPatch, every: float, times: int
) -> None:
    trims: list[None] = []
    monkeypatch.setattr(loader, "TRIMS_EVERY", every)
    monkeypatch.setattr(loader, "trim_heap", lambda: trims.append(None))
    heard = SimpleQueue[Loaded | LoadFailed]()
    under_way = loader.Loader({"a": (MappedPiece((), ()),)})
    under_way.start(heard.put)
    for _ in range(ROUNDS):
        under_way.perform(Load("a", (0,)))
        under_way.perform(Evict("a", (0,)))
    under_way.close()
    assert heard.qsize() == ROUNDS
    assert len(trims) == times
