"""Learned caches beside their baselines: every part of the comparison, run on digits."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier
from typer.testing import CliRunner

from latebind.bench.statistics import Interval
from latebind.learned.build import build_caches
from latebind.learned.compose import Costs
from latebind.learned.promise import Promise
from latebind.learned.samples import Samples, checked
from latebind.learned.train import DISTILLATION
from latebind.program.build import build_program
from research.__main__ import app
from research.gati import networks
from research.gati.baselines import RANGE_ROWS, Hashed, Kept, Nearest, compare, set_aside, single, traditional
from research.gati.models import CachedModel, load_model
from research.gati.networks import (
    RULES,
    SEARCH,
    Explored,
    Lessons,
    Rules,
    alone_at,
    composition_of,
    explore,
    under_limits,
    variants,
)
from research.gati.routes import END, Exit, Plan, Route, Stage, Standings, answers_of, confident, selected, unselected
from tests.digits import CALIBRATE, FIT, Built, digits, samples
from tests.digits import trained as digits_network
from tests.research.conftest import quiet as silent

PLAN = Plan(Promise(0.9, 0.9), folds=2)
KEPT = 0.82  # what a promise of 0.9, with 90 % confidence, may come to on the 212 rows here


def kept(rows: int = 300) -> Kept:
    images, labels = digits()
    return Kept(images[:rows].flatten(1), labels[:rows], 10)


def test_nearest_neighbours_are_those_of_scikit_learn() -> None:
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


@pytest.fixture(scope="module")
def rows() -> Samples:
    images, labels = digits()
    return Samples({"image": images[FIT : FIT + 340]}, labels[FIT : FIT + 340])


@pytest.fixture(scope="module")
def beside(model: CachedModel, rows: Samples) -> Standings:
    ranges, samples = set_aside(checked(rows, model.program.spec), PLAN.seed)
    return compare(model, model, ranges, samples, PLAN, tell=silent)


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
        model, [0], lessons, checked(rows, model.program.spec), 0, tell=lambda text, _: told.add(text.split()[0])
    )
    return found, told


@pytest.fixture(scope="module")
def explored(trained: tuple[Explored, set[str]]) -> Explored:
    return trained[0]


@pytest.mark.slow
def test_the_network_in_eight_bits_is_one_of_the_kinds_and_sure_of_everybody(
    lessons: Lessons, rows: Samples, tmp_path: Path
) -> None:
    pytest.importorskip("openvino")
    images, labels = digits()
    built = build_program(
        digits_network(images[:FIT], labels[:FIT]),
        {"image": images[:8]},
        directory=tmp_path / "digits" / "1",
        name="digits",
        backends=["openvino"],
        max_batch=2,
        min_stage_seconds=0.0,
    )
    fit, held_out = samples(0, FIT), samples(FIT, FIT + CALIBRATE)
    build_caches(built.directory, fit, held_out, fidelity=0.9, presentations=6_000, candidates=1, kinds=["plain"])
    model = load_model(tmp_path, "digits")
    given = replace(lessons, kinds=("bytes", "plain"), folder=None)
    found = explore(model, [0], given, checked(rows, model.program.spec), 0, tell=silent)
    assert [one.plan.kind for one in found.trained] == ["plain", "bytes"]
    assert found.costs.sure == (1,)
    assert (found.answers.classes[1] == found.answers.ends).mean() > 0.97
    assert alone_at(found.costs, 1).sure == (0,)
    assert unselected(found.trained[1].function) is found.trained[1].function


def test_a_search_among_networks_keeps_to_the_memory(explored: Explored) -> None:
    seen = explored.answers.against(explored.answers.ends)
    small, large = sorted(one.bytes for one in explored.trained)
    rows, costs = np.arange(len(explored.answers.ends)), Costs((1e-3, 0.0, 1e-2), (1e-4, 1e-4))
    used = []
    for memory in (small - 1, small, small + large - 1):
        rules = Rules(composition_of(explored, 2, costs, Promise(0.9, 0.9, memory)), seen)
        thresholds = rules.among((0, 1))(rows[:100], rows[100:])
        used.append(sum(one.bytes for one, at in zip(explored.trained, thresholds, strict=True) if np.isfinite(at)))
    assert used[:2] == [0, small]
    assert used[2] in {small, large}


def test_networks_that_are_kept_are_not_trained_again(
    model: CachedModel, trained: tuple[Explored, set[str]], lessons: Lessons, rows: Samples
) -> None:
    explored, told_at_first = trained
    told: set[str] = set()
    samples = checked(rows, model.program.spec)
    again = explore(model, [0], lessons, samples, 0, tell=lambda text, _: told.add(text.split()[0]))
    assert "training" in told_at_first
    assert "training" not in told
    assert np.array_equal(again.answers.scores, explored.answers.scores)
    assert lessons.folder is not None
    assert [path.name for path in lessons.folder.iterdir()] == [
        f"distillation-{DISTILLATION:g}"
    ]  # those without lie elsewhere


def test_baselines_answer_every_row_and_those_with_exits_keep_the_promise(beside: Standings, rows: Samples) -> None:
    found = beside
    named = {one.name: one for one in found.outcomes}
    assert {len(one.seconds) for one in found.outcomes} == {len(rows) - RANGE_ROWS}
    assert found.fidelity(found.base) == 1.0
    assert found.fidelity(named["cascade"]) == 1.0  # of a model with itself
    assert "digits" in named["cascade"].left
    assert {"smaller digits", "cascade of cached models", "learned cache, then cascade"} < set(named)
    assert named["cascade"].bytes == 2 * found.base.bytes
    assert named["softmax of predictors"].seconds.tolist() != named["learned caches"].seconds.tolist()
    for name in ("learned caches", "softmax of predictors"):
        assert found.fidelity(named[name]) >= KEPT
        assert named[name].left.count(END) < 0.8 * (len(rows) - RANGE_ROWS)
        assert named[name].bytes > found.base.bytes
    accuracy = found.accuracy(found.base)
    assert accuracy is not None
    assert accuracy > 0.9  # labels go with their rows


def test_eight_bits_answer_alike_whole_and_in_stages(model: CachedModel, rows: Samples) -> None:
    samples = checked(rows, model.program.spec)
    assert isinstance(samples.inputs, tuple)
    exact = answers_of(model.whole(), samples).ends
    whole = answers_of(Route((model.in_bytes(samples.inputs),)), samples).ends
    staged = answers_of(model.cached_in_bytes(selected, samples.inputs), samples)
    assert (whole == exact).mean() > 0.97
    assert (staged.ends == whole).mean() > 0.99
    assert len(staged.scores) == len(model.caches)
    assert model.quantised_bytes() < model.bytes / 2


def test_caches_that_compare_are_told_with_what_they_cost(model: CachedModel, rows: Samples) -> None:
    samples = checked(rows, model.program.spec)
    known = checked(Samples({"image": digits()[0][:300]}), model.program.spec)
    told = traditional(model, 0, known, samples, PLAN, tell=silent)
    names = ("MB", "alone equal", "hit rate", "fidelity", "lookup ms")
    found = {row["cache"]: [float(str(row[name])) for name in names] for row in told}
    assert len(found) == 8
    assert sum(str(name).startswith("learned cache, ") for name in found) == 2  # a quick one and an able one
    size, alone, hits, _, _ = found["k-NN, k = 10"]
    assert alone > 0.8
    assert hits > 0.5
    assert size > found["k-means, k = 100"][0]
    assert all(fidelity >= KEPT and milliseconds > 0 for *_, fidelity, milliseconds in found.values())


def test_a_cache_that_compares_looks_at_what_comes_out_behind_its_stage(model: CachedModel) -> None:
    route = single(model, 1, Exit("cache", confident))
    assert [type(piece) for piece in route.pieces[:4]] == [Stage, Stage, Exit, Stage]
    assert len(route.pieces) == len(model.program.stages) + 1


def test_all_seconds_of_a_network_are_some_stages(model: CachedModel, explored: Explored) -> None:
    stages = composition_of(explored, len(model.program.stages), explored.costs, PLAN.promise).stages
    assert stages[0] == explored.costs.segments[0] + explored.costs.segments[1]  # two lookups, one behind another
    assert sum(stages) == pytest.approx(explored.costs.whole)


def test_networks_and_weights_of_hit_rates_are_run_for_real(
    model: CachedModel, explored: Explored, rows: Samples
) -> None:
    samples = checked(rows, model.program.spec)
    assert [row["cache"] for row in variants(explored, samples, PLAN)] == ["plain behind 0", "fc(16) behind 0"]
    found = networks.alphas(model, explored, samples, PLAN, tell=silent)
    named = {one.name: one for one in found.outcomes}
    assert {SEARCH, "alpha 0.2"} < set(named)
    assert all(found.fidelity(one) >= KEPT for one in found.outcomes)
    figures = {row["method"]: row for row in found.rows()}
    assert figures[SEARCH]["mean / search on samples"] == Interval(1.0, 1.0, 1.0)


def test_rules_under_several_limits_are_told_by_the_mean_over_all_of_them(
    model: CachedModel, explored: Explored, rows: Samples
) -> None:
    samples = checked(rows, model.program.spec)
    under = under_limits(model, explored, samples, PLAN, budgets=(1, 8_000_000), tell=silent)
    figures = {row["rule"]: row for row in under.rows()}
    assert set(figures) == {SEARCH, *RULES, "only plain", "only fc(16)"}
    assert figures[SEARCH][f"mean / {SEARCH}"] == Interval(1.0, 1.0, 1.0)
    nothing_fits, all_fit = under.of(SEARCH)
    assert set(nothing_fits.left) == {END} < set(all_fit.left)
    for row in figures.values():
        assert row["1e-06 MB, ms"] == pytest.approx(nothing_fits.seconds.mean() * 1e3)  # the same run
        ratio = row[f"mean / {SEARCH}"]
        assert isinstance(ratio, Interval)
        told = sum(one.seconds.mean() for one in under.of(str(row["rule"])))
        assert ratio.value == pytest.approx(told / (nothing_fits.seconds.mean() + all_fit.seconds.mean()))
    assert set(under.of("only plain")[1].left) == {END, "plain behind 0"}


def test_an_ablation_without_a_difference_is_the_same_run(
    model: CachedModel, explored: Explored, rows: Samples
) -> None:
    found = networks.ablations(model, explored, explored, checked(rows, model.program.spec), PLAN, tell=silent)
    named = {one.name: one for one in found.outcomes}
    assert {"no selector", "no composition", "profile of openvino"} < set(named)
    assert named["no distillation"].seconds.tolist() == named["all parts"].seconds.tolist()
    assert named["no selector"].seconds.tolist() != named["all parts"].seconds.tolist()
    assert all(found.fidelity(one) >= KEPT for one in found.outcomes)


def test_a_part_that_is_broken_off_keeps_the_figures_of_the_parts_before(
    built: Built, rows: Samples, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken_off(*_words: object, **_named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("research.gati.baselines.traditional", broken_off)
    assert isinstance(rows.inputs, dict)
    assert rows.labels is not None
    data, figures, page = tmp_path / "rows.npz", tmp_path / "figures.json", tmp_path / "page.html"
    np.savez(data, image=rows.inputs["image"].numpy(), labels=rows.labels.numpy())
    words = [str(built.directory.path.parent.parent), "--model", "digits", "--data", str(data)]
    told = CliRunner().invoke(app, ["caches", *words, "--folds", "2"])
    assert told.exit_code == 2
    assert "--fit" in told.output
    words += ["--part", "baselines", "--part", "traditional", "--json", str(figures), "--page", str(page)]
    result = CliRunner().invoke(app, ["caches", *words, "--fit", str(data), "--folds", "2", "--fidelity", "0.9"])
    assert result.exit_code != 0
    assert "softmax of predictors" in page.read_text()
    found = json.loads(figures.read_text())
    assert set(found) == {"settings", "baselines"}
    ((whole, own, *_),) = found["baselines"]["tables"].values()
    assert (whole["method"], own["method"]) == ("digits alone", "learned caches")
    assert own["mean / learned caches"] == {"value": 1.0, "low": 1.0, "high": 1.0}
    assert whole["mean ms"]["value"] / own["mean ms"]["value"] == pytest.approx(own["times less"]["value"])
    assert sum(own["left"].values()) == pytest.approx(1.0)
