"""Building learned caches end to end on handwritten digits: what is written, loaded, promised and refused."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from latebind.domain.errors import ConfigError, RepositoryError
from latebind.learned.activations import features_of, observe
from latebind.learned.build import build_caches, recalibrate
from latebind.learned.lookup import load_functions, load_lookups
from latebind.learned.plan import spread
from latebind.learned.promise import Promise
from latebind.learned.samples import Samples, Task
from latebind.learned.stored import HELD_OUT, LESSONS, graph_file, head_file, read_caches, weights_file, with_caches
from latebind.program.build import build_program
from latebind.program.load import load_program
from latebind.repository.directory import CACHES, ModelDirectory
from tests.digits import FIT, Built, earlier, samples


def answers_with_exits(directory: ModelDirectory, images: Tensor) -> tuple[Tensor, float]:
    """The answers when requests leave early, and the share that did."""
    program = load_program(directory)
    lookups = load_lookups(directory, backend="eager")
    found, left = [], 0
    for row in torch.split(images, 1):
        passed: tuple[Tensor, ...] = (row,)
        for number, stage in enumerate(program.stages):
            passed = stage(*passed)
            if number in lookups:
                answers, hit = lookups[number](passed[0])
                if bool(hit):
                    passed, left = (torch.from_numpy(answers),), left + 1
                    break
        found.append(passed[0])
    return torch.cat(found), left / len(images)


def test_easy_digits_leave_early_and_answers_stay_the_base_models(built: Built) -> None:
    early, share = answers_with_exits(built.directory, built.unseen)
    (base,) = load_program(built.directory).run(built.unseen)
    assert built.report.lookups
    assert built.report.seconds_with < built.report.seconds_without
    assert share > 0.2
    assert (early.argmax(dim=1) == base.argmax(dim=1)).float().mean() >= 0.87


def test_the_report_tells_every_boundary_and_the_promise(built: Built) -> None:
    text = dict(built.report.rows())
    labels = [label for label, _ in built.report.rows()]
    assert labels.count("before the network") == 2  # an able one, and a quick one for adaptation
    assert sum(label.startswith("behind stage") for label in labels) == len(built.report.tried) - 2
    assert "times less" in text["expected latency"]
    assert "target 0.9" in text["fidelity"]
    assert f"at least {built.report.lower:.4f} over the next 2,000 answers" in text["fidelity"]
    assert built.report.lower >= 0.9


def test_the_directory_verifies_and_says_what_it_holds(built: Built) -> None:
    again = ModelDirectory.open(built.directory.path)
    caches = read_caches(again)
    assert caches is not None
    assert caches.lookups == built.report.lookups
    names = [one.name for one in caches.every]
    files = {f"{CACHES}/caches.json", HELD_OUT, LESSONS, *map(graph_file, names)}
    files |= {*map(weights_file, names), *map(head_file, names)}
    assert set(again.names(CACHES)) == files
    assert all(lookup.bytes < 4_000_000 for lookup in caches.lookups)
    assert sum(lookup.hit_rate for lookup in caches.lookups) <= 1.0


def test_a_quick_lookup_is_at_hand_beside_the_one_in_use(built: Built) -> None:
    caches = read_caches(built.directory)
    assert caches is not None
    assert [one.name for one in caches.at_hand if one.stage == 0] == ["0-pooled", caches.lookups[0].name]
    lookup = load_lookups(built.directory, backend="eager")[0]
    assert list(lookup.functions) == ["0-pooled", caches.lookups[0].name]
    assert set(lookup.thresholds) == {caches.lookups[0].name}


def test_what_lookups_see_is_the_same_whether_the_network_runs_on_or_not(built: Built) -> None:
    program = load_program(built.directory)
    caches = read_caches(built.directory)
    assert caches is not None
    functions = load_functions(built.directory, caches.every, backend="eager", threads=1)
    lookups = [(one.stage, functions[one.name]) for one in caches.every]
    samples = Samples((built.unseen[:40],))
    whole, part = observe(program, samples, lookups).features, features_of(program, samples, lookups)
    assert all(torch.equal(one, other) for one, other in zip(whole, part, strict=True))


def test_costs_and_hit_rates_reach_the_scheduler(built: Built) -> None:
    program = load_program(built.directory)
    spec, costs = with_caches(program.spec, program.costs, read_caches(built.directory))
    assert spec.lookups == tuple(lookup.stage for lookup in built.report.lookups)
    assert set(costs.hit_rates) == set(costs.lookups) == set(spec.lookups)
    assert costs.lookups[spec.lookups[0]].batches == (1, 2, 4)
    assert costs.step(spec.lookups[0], 1) > program.costs.step(spec.lookups[0], 1)


def test_a_lookup_gives_the_same_answers_each_time_it_is_loaded(built: Built) -> None:
    program = load_program(built.directory)
    first, second = (load_lookups(built.directory, backend="eager") for _ in range(2))
    for stage, lookup in first.items():
        activation = program.run_through(stage, built.unseen[:16])
        answers, hit = lookup(activation)
        again, hit_again = second[stage](activation)
        assert np.array_equal(answers, again)
        assert np.array_equal(hit, hit_again)
        assert answers.shape == (16, 10)
        assert answers.dtype == np.float32
        assert hit.dtype == np.bool_


def test_openvino_answers_as_eager_does_within_half_precision(built: Built) -> None:
    pytest.importorskip("openvino")
    program = load_program(built.directory)
    fast = load_lookups(built.directory, backend="openvino")
    for stage, lookup in load_lookups(built.directory, backend="eager").items():
        activation = program.run_through(stage, built.unseen[:8])
        np.testing.assert_allclose(fast[stage](activation)[0], lookup(activation)[0], rtol=5e-2, atol=5e-2)


def test_a_target_of_one_leaves_no_lookups(built: Built, tmp_path: Path) -> None:
    directory = copy_of(built.directory, tmp_path)
    report = build_caches(directory, built.fit, built.calibrate, fidelity=1.0)
    assert report.lookups == ()
    assert report.warning == ""
    assert report.seconds_with == report.seconds_without
    assert load_lookups(report.directory, backend="eager") == {}
    assert report.directory.names(CACHES) == (f"{CACHES}/caches.json",)
    assert ModelDirectory.open(directory.path).files == report.directory.files


def test_too_few_samples_give_no_exits_and_say_so(built: Built, tmp_path: Path) -> None:
    directory = copy_of(built.directory, tmp_path)
    few = built.calibrate.ordered(load_program(directory).spec.inputs).take(torch.arange(50))
    with pytest.warns(UserWarning, match=r"35 held-out samples .* over the next 2,000 answers .*it takes 100\)"):
        report = build_caches(directory, built.fit, few, fidelity=0.97)
    assert report.lookups == ()
    assert "give more samples" in dict(report.rows())["warning"]
    assert load_lookups(report.directory, backend="eager") == {}


@pytest.mark.parametrize("fidelity", [0.0, -0.5, 1.01, float("nan")])
def test_a_fidelity_without_sense_is_refused(built: Built, fidelity: float) -> None:
    with pytest.raises(ConfigError, match="fidelity"):
        build_caches(built.directory, built.fit, built.calibrate, fidelity=fidelity)


def test_a_cache_before_the_network_gives_it_an_empty_first_stage(built: Built) -> None:
    program = load_program(built.directory)
    assert program.entry
    assert built.report.lookups[0].stage == 0
    alone = program.without_entry()
    assert alone.spec.stages == len(alone.stages) == program.spec.stages - 1
    assert alone.costs.remaining(0, 4) == program.costs.remaining(0, 4)
    rows = built.unseen[:4]
    assert torch.equal(alone.run(rows)[0], program.run(rows)[0])
    again = alone.with_entry()
    assert again.activations == program.activations
    assert again.costs.stages == program.costs.stages
    assert torch.equal(again.run_through(0, rows), rows)


@pytest.mark.usefixtures("one_core")
def test_a_model_keeps_its_stages_where_no_cache_stands_before_the_network(built: Built, tmp_path: Path) -> None:
    directory = build_caches(copy_of(built.directory, tmp_path), built.fit, built.calibrate, fidelity=1.0).directory
    assert load_program(directory).entry  # as it was before
    fresh = build_program(nn.Linear(4, 3), [torch.randn(8, 4)], directory=tmp_path / "m", name="m", backends=["eager"])
    rows = Samples((torch.randn(400, 4),))
    with pytest.warns(UserWarning, match="no lookup is small enough"):
        after = build_caches(fresh.directory, rows, rows, fidelity=0.9, task=Task.CLASSIFY).directory
    assert not load_program(after).entry


def test_an_altered_cache_is_refused(built: Built, tmp_path: Path) -> None:
    directory = copy_of(built.directory, tmp_path)
    name = weights_file(built.report.lookups[0].name)
    (directory.path / name).write_bytes(b"x" + directory.read(name)[1:])
    with pytest.raises(RepositoryError, match="altered"):
        ModelDirectory.open(directory.path)
    with pytest.raises(RepositoryError, match="altered"):
        load_lookups(directory, backend="eager")


def test_a_cache_that_does_not_fit_its_stage_is_refused(built: Built, tmp_path: Path) -> None:
    directory = copy_of(built.directory, tmp_path)
    name = graph_file(built.report.lookups[0].name)
    graph = directory.read(name).replace(b'"features"', b'"other"')
    with pytest.raises(RepositoryError, match="no learned cache"):
        load_lookups(directory.write_files({name: graph}), backend="eager")


def test_candidates_are_spread_over_the_time_and_start_at_the_first_boundary() -> None:
    assert spread([1.0] * 8, 3) == [0, 2, 4]
    assert spread([0.0, *[1.0] * 4], 3) == [0, 1, 3]
    assert spread([1.0] * 3, 5) == [0, 1]
    assert spread([5.0, 1.0, 1.0, 1.0], 2) == [0, 1]
    assert spread([1.0], 3) == []


def copy_of(directory: ModelDirectory, folder: Path) -> ModelDirectory:
    return ModelDirectory.create(folder / "copy", {name: directory.read(name) for name in directory.files})


def weights(name: str) -> bool:
    return name.endswith(".safetensors") and name != HELD_OUT


@pytest.mark.usefixtures("one_core")
def test_calibrating_again_moves_thresholds_and_trains_nothing(built: Built, tmp_path: Path) -> None:
    shutil.copytree(built.directory.path, tmp_path / "copy")
    directory = ModelDirectory.open(tmp_path / "copy")
    before = {name: directory.read(name) for name in directory.names(CACHES) if weights(name)}
    assert isinstance(built.calibrate.inputs, dict)
    images = built.calibrate.inputs["image"]
    noise = torch.rand(images.shape, generator=torch.Generator().manual_seed(0))
    report = recalibrate(directory, Samples({"image": torch.cat([images, noise])}), fidelity=0.9, confidence=0.9)
    assert sum(one.hit_rate for one in report.lookups) < 0.95 * sum(one.hit_rate for one in built.report.lookups)
    after = ModelDirectory.open(directory.path)
    assert {name: after.read(name) for name in after.names(CACHES) if weights(name)}.items() <= before.items()


@pytest.mark.usefixtures("one_core")
def test_calibrating_for_a_target_of_one_puts_caches_aside_and_another_takes_them_up(
    built: Built, tmp_path: Path
) -> None:
    directory = copy_of(built.directory, tmp_path)
    few = samples(FIT, FIT + 200)
    none = recalibrate(directory, few, fidelity=1.0, aside=False)
    caches = read_caches(none.directory)
    assert caches is not None
    assert caches.lookups == ()
    before = read_caches(built.directory)
    assert before is not None
    assert {one.name for one in caches.every} == {one.name for one in before.every}
    assert none.seconds_with == none.seconds_without
    assert load_lookups(none.directory, backend="eager") == {}
    again = recalibrate(none.directory, few, fidelity=0.9, confidence=0.9, aside=False)
    taken = {one.name for one in again.lookups}
    assert taken
    assert taken <= {one.name for one in before.every}


@pytest.mark.usefixtures("one_core")
def test_a_promise_of_all_answers_tells_no_number_of_them(built: Built, tmp_path: Path) -> None:
    directory, few = copy_of(built.directory, tmp_path), samples(FIT, FIT + 200)
    for answers in (None, 100):
        report = recalibrate(directory, few, fidelity=0.9, confidence=0.9, answers=answers, aside=False)
        directory, caches = report.directory, read_caches(report.directory)
        assert caches is not None
        assert caches.answers == report.answers == answers
        assert ("over the next 100 answers" in dict(report.rows())["fidelity"]) == (answers == 100)


def test_caches_of_an_earlier_build_promise_what_they_promised(built: Built, tmp_path: Path) -> None:
    directory = earlier(built.directory, tmp_path)
    now, then = read_caches(built.directory), read_caches(directory)
    assert now is not None
    assert now.answers == 2_000
    assert then == replace(now, answers=None)


@pytest.mark.parametrize("answers", [0, -1, 10**9])
def test_a_number_of_answers_without_sense_is_refused(answers: int) -> None:
    with pytest.raises(ConfigError, match="answers"):
        Promise(0.97, answers=answers)


@pytest.mark.usefixtures("one_core")
def test_a_tail_stays_until_another_is_given(built: Built, tmp_path: Path) -> None:
    directory, few = copy_of(built.directory, tmp_path), samples(FIT, FIT + 200)
    none = recalibrate(directory, few, fidelity=0.9, confidence=0.9, tail=1.0, aside=False)
    assert none.lookups == ()
    still = recalibrate(none.directory, few, fidelity=0.9, confidence=0.9, aside=False)
    assert still.lookups == ()
    some = recalibrate(still.directory, few, fidelity=0.9, confidence=0.9, tail=100.0, aside=False)
    assert some.lookups


def test_an_unknown_kind_is_told_before_anything_is_trained(built: Built) -> None:
    with pytest.raises(ConfigError, match="there is no predictor 'enormous'"):
        build_caches(built.directory, built.fit, built.calibrate, kinds=("enormous",))


def test_a_model_without_learned_caches_cannot_be_calibrated_again(built: Built, tmp_path: Path) -> None:
    shutil.copytree(built.directory.path, tmp_path / "copy")
    directory = build_caches(ModelDirectory.open(tmp_path / "copy"), built.fit, built.calibrate, fidelity=1.0).directory
    with pytest.raises(ConfigError, match="no learned caches"):
        recalibrate(directory, built.calibrate)


@pytest.mark.parametrize("rows", [1, 3])
def test_too_few_rows_to_calibrate_on_leave_no_exits_and_keep_what_was_trained(
    built: Built, tmp_path: Path, rows: int
) -> None:
    report = recalibrate(copy_of(built.directory, tmp_path), samples(FIT, FIT + rows), fidelity=0.9)
    before, after = read_caches(built.directory), read_caches(report.directory)
    assert report.lookups == ()
    assert "cannot show a fidelity of 0.9" in report.warning
    assert before is not None
    assert after is not None
    assert after.lookups == ()
    assert {one.name for one in after.every} == {one.name for one in before.every}
