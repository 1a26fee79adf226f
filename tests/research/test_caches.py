"""Learned caches beside their baselines: routes with exits, promises by folds, caches that compare, rules, commands."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import sleep

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor
from typer.testing import CliRunner

from latebind.bench.statistics import Interval
from latebind.learned.compose import Costs, Seen
from latebind.learned.promise import Promise
from latebind.learned.samples import Samples, checked
from latebind.learned.samples import whole as tensor
from research.__main__ import app
from research.gati.baselines import (
    RANGE_ROWS,
    Hashed,
    Kept,
    Nearest,
    compare,
    contender,
    set_aside,
    traditional,
)
from research.gati.models import CachedModel, load_model
from research.gati.networks import (
    RULES,
    SEARCH,
    Explored,
    Lessons,
    explore,
    under_limits,
)
from research.gati.routes import (
    END,
    Contender,
    Exit,
    Plan,
    Route,
    Rows,
    Scored,
    Stage,
    Standings,
    promised,
    standings,
)
from tests.digits import FIT, Built, digits
from tests.research.conftest import quiet as silent

PROMISE = Promise(0.9, 0.9)
PLAN = Plan(PROMISE, folds=2)
KEPT = 0.82  # what a promise of 0.9, with 90 % confidence, may come to on the 212 rows here
THIRDS = tuple(np.arange(600)[start::3] for start in range(3))


# Routes ---------------------------------------------------------------------------------------------------------------


def plus(number: float) -> Stage:
    return Stage(lambda x: (x + number,))


def sure(scores: Sequence[float]) -> Exit:
    """Answers the class that the activation names, with the same score for each row of a batch."""

    def look(activation: Tensor) -> Scored:
        return activation.numpy(), np.full(len(activation), scores[0], np.float32)

    return Exit("sure", look)


def test_a_route_without_its_exit_is_the_last_network_alone() -> None:
    first, last = plus(1.0), Stage(lambda x: (x * 2,), again=True)
    route = Route((first, sure([1.0]), plus(5.0), last, plus(0.0)))
    assert route.with_thresholds(np.array([np.inf])).pieces == (last, route.pieces[-1])
    kept = route.with_thresholds(np.array([0.5]))
    assert [type(piece) for piece in kept.pieces] == [Stage, Exit, Stage, Stage]  # nobody looks at the plus(5.0)


def test_a_row_leaves_where_the_score_is_high_enough() -> None:
    route = Route((plus(0.0), sure([0.7]), Stage(lambda x: (x.flip(1),))))
    row = torch.tensor([[0.0, 3.0, 1.0]])
    assert route.with_thresholds(np.array([0.7]))(row) == (1, "sure")
    assert route.with_thresholds(np.array([0.8]))(row) == (1, END)
    assert route.with_thresholds(np.array([0.8]))(torch.tensor([[5.0, 0.0, 1.0]])) == (2, END)


@dataclass
class Counting:
    """Counts its calls. As what some backends compile, it cannot be hashed."""

    calls: int = 0

    def __call__(self, x: Tensor) -> tuple[Tensor]:
        self.calls += 1
        return (x,)


def test_methods_on_the_same_route_run_once_and_the_base_model_is_the_measure() -> None:
    count = Counting()
    rows = Samples((torch.eye(4).repeat(25, 1),), torch.zeros(100, dtype=torch.int64))
    ways = [Contender(name, Route((Stage(count),)), 8, lambda choose, show: np.empty(0)) for name in ("base", "same")]
    found = standings(ways, rows, Plan(Promise(0.9, 0.9), folds=2), on_progress=silent)
    assert count.calls == 100 + 2 * 10  # warming up for each of two folds
    assert [found.fidelity(one) for one in found.outcomes] == [1.0, 1.0]
    assert [found.accuracy(one) for one in found.outcomes] == [0.25, 0.25]
    assert found.gain(found.outcomes[1]).value == 1.0


def looked(activation: Tensor) -> Scored:
    return activation.numpy(), np.full(len(activation), 0.7, np.float32)


def half_wrong(rows: Rows, *, lookups: int = 1) -> Seen:
    """Lookups that are right, however sure they are, but for `rows`, where they never are."""
    scores = np.random.default_rng(0).random((lookups, 600))
    right = np.ones(scores.shape, np.bool_)
    right[:, rows] = False
    return Seen(scores, right)


def test_a_promise_is_shown_on_other_rows_than_thresholds_were_chosen_on() -> None:
    choose, show, other = THIRDS
    found = promised(half_wrong(show), Costs((0.0, 1.0), (0.1,)), PROMISE)
    assert np.isinf(found(choose, show)).all()
    assert np.isfinite(found(choose, other)).all()


def test_a_method_promises_the_base_models_answers_not_its_own() -> None:
    def slow(activation: Tensor) -> tuple[Tensor]:
        sleep(0.005)  # else an exit would not pay
        return (activation,)

    route = Route((Stage(lambda x: (x,)), Exit("exit", looked), Stage(slow)))
    rows, says = Samples((torch.eye(3).repeat(200, 1),)), np.arange(600) % 3
    alike, other = (contender("method", route, 8, rows, answers, PROMISE) for answers in (says, (says + 1) % 3))
    assert np.isinf(other.thresholds(*THIRDS[:2])).all()
    assert np.isfinite(alike.thresholds(*THIRDS[:2])).all()


# Caches that compare --------------------------------------------------------------------------------------------------


def kept(rows: int = 300) -> Kept:
    images, labels = digits()
    return Kept(images[:rows].flatten(1), labels[:rows], 10)


def test_nearest_neighbors_are_those_of_scikit_learn() -> None:
    images, _ = digits()
    asked, known = images[400:450], kept()
    peer = KNeighborsClassifier(10, algorithm="brute").fit(known.rows.numpy(), known.answers.numpy())
    answers, scores = Nearest(known, 10)(asked)
    assert answers == pytest.approx(peer.predict_proba(asked.flatten(1).numpy()), abs=1e-6)
    assert np.all(scores >= answers.max(axis=1))
    assert np.all(scores < answers.max(axis=1) + 0.1)  # less than one vote


def test_hashing_finds_a_row_that_it_keeps_and_nothing_far_from_all() -> None:
    known = kept()
    cache = Hashed(known, 1, seed=0)
    answers, _ = cache(known.rows[:20].view(-1, 1, 8, 8))
    assert answers.argmax(axis=1).tolist() == known.answers[:20].tolist()
    assert cache.bytes > known.rows.nbytes
    _, scores = Hashed(kept(3), 1, seed=0)(-100 * known.rows[:1])
    assert np.isneginf(scores).all()


# On digits ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rows() -> Samples:
    images, labels = digits()
    return Samples({"image": images[FIT : FIT + 340]}, labels[FIT : FIT + 340])


@pytest.fixture(scope="module")
def beside(model: CachedModel, rows: Samples) -> Standings:
    ranges, samples = set_aside(checked(rows, model.program.spec), PLAN.seed)
    return compare(model, model, ranges, samples, PLAN, on_progress=silent)


@pytest.fixture(scope="module")
def model(built: Built) -> CachedModel:
    return load_model(built.directory.path.parent.parent, "digits")


@pytest.fixture(scope="module")
def lessons(model: CachedModel, tmp_path_factory: pytest.TempPathFactory) -> Lessons:
    images, labels = digits()
    fit = checked(Samples({"image": images[:300]}, labels[:300]), model.program.spec)
    return Lessons(fit, ("plain", "fc(16)"), presentations=6_000, folder=tmp_path_factory.mktemp("lessons") / "kept")


@pytest.fixture(scope="module")
def trained(model: CachedModel, lessons: Lessons, rows: Samples) -> tuple[Explored, set[str]]:
    """Return what was explored, in a folder that was new, and the first words of what was told meanwhile."""
    told: set[str] = set()
    found = explore(
        model, [0], lessons, checked(rows, model.program.spec), 0, on_progress=lambda text, _: told.add(text.split()[0])
    )
    return found, told


@pytest.fixture(scope="module")
def explored(trained: tuple[Explored, set[str]]) -> Explored:
    return trained[0]


def test_baselines_answer_every_row_and_those_with_exits_keep_the_promise(beside: Standings, rows: Samples) -> None:
    found = beside
    named = {one.name: one for one in found.outcomes}
    assert {len(one.seconds) for one in found.outcomes} == {len(rows) - RANGE_ROWS}
    assert found.fidelity(found.base) == 1.0
    assert found.fidelity(named["cascade"]) == 1.0  # of a model with itself
    assert "digits" in named["cascade"].left
    assert {"smaller digits", "cascade of cached models"} < set(named)
    assert named["cascade"].bytes == 2 * found.base.bytes
    assert found.fidelity(found.own) >= KEPT
    assert found.own.left.count(END) < 0.8 * (len(rows) - RANGE_ROWS)
    assert found.own.bytes > found.base.bytes
    accuracy = found.accuracy(found.base)
    assert accuracy is not None
    assert accuracy > 0.9  # labels go with their rows


def test_caches_that_compare_are_told_with_what_they_cost(model: CachedModel, rows: Samples) -> None:
    samples = checked(rows, model.program.spec)
    known = checked(Samples({"image": digits()[0][:300]}), model.program.spec)
    told = traditional(model, 0, known, samples, PLAN, on_progress=silent)
    names = ("MB", "alone equal", "hit rate", "fidelity", "lookup ms")
    found = {row["cache"]: [float(str(row[name])) for name in names] for row in told}
    assert len(found) == 8
    assert sum(str(name).startswith("learned cache, ") for name in found) == 2  # a quick one and an able one
    size, alone, hits, _, _ = found["k-NN, k = 10"]
    assert alone > 0.8
    assert hits > 0.5
    assert size > found["k-means, k = 100"][0]
    assert all(fidelity >= KEPT and milliseconds > 0 for *_, fidelity, milliseconds in found.values())


def test_rules_under_several_limits_are_told_by_the_mean_over_all_of_them(
    model: CachedModel, explored: Explored, rows: Samples
) -> None:
    samples = checked(rows, model.program.spec)
    under = under_limits(model, explored, samples, PLAN, budgets=(1, 8_000_000), on_progress=silent)
    figures = {row["rule"]: row for row in under.rows()}
    assert set(figures) == {SEARCH, *RULES}
    assert figures[SEARCH][f"mean / {SEARCH}"] == Interval(1.0, 1.0, 1.0)
    nothing_fits, all_fit = under.of(SEARCH)
    assert set(nothing_fits.left) == {END} < set(all_fit.left)
    for row in figures.values():
        assert row["1e-06 MB, ms"] == pytest.approx(nothing_fits.seconds.mean() * 1e3)  # the same run
        ratio = row[f"mean / {SEARCH}"]
        assert isinstance(ratio, Interval)
        told = sum(one.seconds.mean() for one in under.of(str(row["rule"])))
        assert ratio.value == pytest.approx(told / (nothing_fits.seconds.mean() + all_fit.seconds.mean()))


def test_a_part_that_is_broken_off_keeps_the_figures_of_the_parts_before(
    built: Built, rows: Samples, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken_off(*_words: object, **_named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("research.gati.baselines.traditional", broken_off)
    assert isinstance(rows.inputs, dict)
    assert rows.labels is not None
    data, figures, page = tmp_path / "rows.npz", tmp_path / "figures.json", tmp_path / "page.html"
    np.savez(data, image=tensor(rows.inputs["image"]).numpy(), labels=rows.labels.numpy())
    words = [str(built.directory.path.parent.parent), "--model", "digits", "--data", str(data)]
    told = CliRunner().invoke(app, ["caches", *words, "--folds", "2"])
    assert told.exit_code == 2
    assert "--fit" in told.output
    words += ["--part", "baselines", "--part", "traditional", "--json", str(figures), "--page", str(page)]
    result = CliRunner().invoke(app, ["caches", *words, "--fit", str(data), "--folds", "2", "--fidelity", "0.9"])
    assert result.exit_code != 0
    assert "learned caches" in page.read_text()
    found = json.loads(figures.read_text())
    assert set(found) == {"settings", "baselines"}
    whole, own, *_ = next(iter(found["baselines"]["tables"].values()))
    assert (whole["method"], own["method"]) == ("digits alone", "learned caches")
    assert own["mean / learned caches"] == {"value": 1.0, "low": 1.0, "high": 1.0}
    assert whole["mean ms"]["value"] / own["mean ms"]["value"] == pytest.approx(own["times less"]["value"])
    assert sum(own["left"].values()) == pytest.approx(1.0)
