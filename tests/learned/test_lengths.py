"""Learned caches of a model whose rows are of any length: built, promised, loaded, calibrated again and asked."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from latebind.domain.actions import Run
from latebind.domain.config import EngineConfig
from latebind.domain.costs import Curve, Grid
from latebind.domain.errors import ConfigError
from latebind.domain.model import TensorSpec
from latebind.domain.sizes import Dim
from latebind.engine.loaded import load_model
from latebind.engine.worker import Worker
from latebind.hosting import build_once
from latebind.learned.activations import observe
from latebind.learned.build import build_caches, recalibrate
from latebind.learned.compose import Costs, Seen, send
from latebind.learned.exploration_folder import fingerprint
from latebind.learned.lookup import load_functions, load_lookups
from latebind.learned.metadata import read_caches
from latebind.learned.report import by_length
from latebind.learned.samples import Samples
from latebind.learned.stored import HELD_OUT, LESSONS, read_rows
from latebind.program.build import build_program
from latebind.program.load import load_program
from latebind.program.program import Program
from latebind.repository.directory import ModelDirectory
from tests.digits import FIT as DIGITS_FIT
from tests.digits import digits
from tests.digits import trained as trained_digits
from tests.engine.lengths import mapped
from tests.texts import CALIBRATE, FIDELITY, FIT, LONGEST, BuiltTexts, filled_up, samples, texts, trained, unseen

SLOTS = 8


def rows_of(some: Samples) -> list[Tensor]:
    assert isinstance(some.inputs, dict)
    return list(some.inputs["ids"])


def asked(program: Program, directory: ModelDirectory, ids: Tensor, mask: Tensor) -> tuple[Tensor, list[int]]:
    """Answers of rows that leave early where they may, and the stage at which each left."""
    lookups = load_lookups(directory, backend="eager")
    passed: tuple[Tensor, ...] = (ids, mask)
    here = torch.arange(len(ids))
    answers, left = torch.empty(len(ids), 4), [len(program.stages) - 1] * len(ids)
    for number, stage in enumerate(program.stages):
        passed = tuple(tensor.clone() for tensor in stage(*passed))
        if number in lookups and len(here):
            said, hits = lookups[number](passed[0])
            answers[here[hits]] = torch.from_numpy(said[hits])
            for row in here[hits].tolist():
                left[row] = number
            passed, here = (passed[0][~hits],), here[~hits]
    answers[here] = passed[0]
    return answers, left


def test_texts_leave_early_and_what_is_promised_holds_on_unseen_ones_of_every_length(built_texts: BuiltTexts) -> None:
    report, program = built_texts.report, load_program(built_texts.directory)
    assert report.caches.lookups
    assert report.caches.lower >= FIDELITY
    assert report.seconds_with < report.seconds_without
    same, early = [], []
    for row in rows_of(unseen()):
        ids, mask = filled_up([row], len(row))
        (base,) = program.run(ids, mask)
        found, left = asked(program, built_texts.directory, ids, mask)
        same.append(int(found.argmax()) == int(base.argmax()))
        early.append(left[0] + 1 < len(program.stages))
    assert np.mean(early) > 0.3
    assert np.mean(same) >= FIDELITY - 0.02


def test_the_report_tells_fidelity_and_gain_by_length_and_longer_rows_save_more(built_texts: BuiltTexts) -> None:
    report = built_texts.report
    assert sum(one.samples for one in report.by_length) == report.caches.calibrated_on
    mean = np.average([one.fidelity for one in report.by_length], weights=[one.samples for one in report.by_length])
    assert mean == pytest.approx(report.caches.fidelity)
    with_exits = np.average(
        [one.seconds_with for one in report.by_length], weights=[one.samples for one in report.by_length]
    )
    assert with_exits == pytest.approx(report.seconds_with)
    without = [one.seconds_without for one in report.by_length]
    assert without == sorted(without)
    labels = [label for label, _ in report.rows()]
    assert [label for label in labels if label.startswith("length ")] == [
        f"length {one.lengths}" for one in report.by_length
    ]


def test_a_text_is_looked_up_alike_alone_and_filled_up_by_a_client_beside_longer_ones(built_texts: BuiltTexts) -> None:
    program = load_program(built_texts.directory)
    rows = rows_of(unseen())[:120]
    alone = [asked(program, built_texts.directory, *filled_up([row], len(row))) for row in rows]
    for first in range(0, len(rows), 6):
        some = rows[first : first + 6]
        answers, left = asked(program, built_texts.directory, *filled_up(some, max(map(len, some))))
        for place, (answer, (stage,)) in enumerate(alone[first : first + 6]):
            assert left[place] == stage
            torch.testing.assert_close(answers[place], answer[0], rtol=1e-4, atol=1e-5)


def test_a_text_leaves_a_worker_where_it_leaves_alone_whoever_runs_with_it(built_texts: BuiltTexts) -> None:
    model = load_model(built_texts.directory.path, EngineConfig())
    rows = rows_of(unseen())[:160]
    random = np.random.default_rng(0)
    with torch.inference_mode(), mapped(model.spec, slots=SLOTS) as (memory, extents, _):
        worker, sized = Worker({"texts": model}, memory), memory.models[0].sized
        assert sized is not None
        stages = model.spec.stages

        def left(some: list[Tensor]) -> list[tuple[int, Tensor]]:
            """Where each of these texts left, and its answer; they run together until then."""
            begun = {}
            for number, row in enumerate(some):
                begin = extents.take(sized.bytes_of(1, (len(row),)))
                assert begin is not None
                sized.place(begin, (number,), (len(row),))
                sized.row(number, 0)[...], sized.row(number, 1)[...] = row.numpy(), 1
                begun[number] = begin
            found: dict[int, tuple[int, Tensor]] = {}
            for stage in range(stages):
                here = tuple(number for number in range(len(some)) if number not in found)
                if not here:
                    break
                done = worker.run(Run(0, "texts", stage, here, here))
                for number in here if stage + 1 == stages else done.exited:
                    found[number] = stage, torch.from_numpy(sized.row(number, 2).copy())
                    worker.owners.end(number)
            for begin in begun.values():
                extents.free(begin)
            return [found[number] for number in range(len(some))]

        alone = [left([row])[0] for row in rows]
        assert len({stage for stage, _ in alone}) > 1
        order = random.permutation(len(rows))
        for part in np.split(order, len(rows) // SLOTS):
            together = left([rows[row] for row in part.tolist()])
            for row, (stage, answer) in zip(part.tolist(), together, strict=True):
                assert stage == alone[row][0]
                torch.testing.assert_close(answer, alone[row][1], rtol=1e-4, atol=1e-5)


def test_rows_are_kept_with_their_lengths_for_adaptation(built_texts: BuiltTexts) -> None:
    for name in (HELD_OUT, LESSONS):
        kept = read_rows(built_texts.directory, name)
        assert kept is not None
        assert kept.lengths is not None
        assert len(kept.lengths) == len(kept.classes)
    held_out = read_rows(built_texts.directory, HELD_OUT)
    assert held_out is not None
    assert held_out.lengths is not None
    assert held_out.lengths.tolist() == [len(row) for row in rows_of(samples(FIT, FIT + CALIBRATE))]


def test_what_is_observed_stands_in_the_order_of_the_rows_whatever_ran_together(built_texts: BuiltTexts) -> None:
    program = load_program(built_texts.directory)
    caches = read_caches(built_texts.directory)
    assert caches is not None
    functions = load_functions(built_texts.directory, caches.every, backend="eager", threads=1)
    lookups = [(one.stage, functions[one.name]) for one in caches.every]
    some = unseen().ordered(program.spec.inputs, program.spec.dims).take(torch.arange(50))
    whole = observe(program, some, lookups)
    for number in range(50):
        one = observe(program, some.take(torch.tensor([number])), lookups)
        torch.testing.assert_close(one.answers[0], whole.answers[number], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(one.features[0][0], whole.features[0][number], rtol=1e-4, atol=1e-5)
    assert whole.seen.lengths is not None
    assert whole.seen.lengths.tolist() == [len(row) for row in rows_of(unseen())[:50]]


@pytest.mark.usefixtures("one_core")
def test_calibrating_again_on_other_lengths_weighs_what_those_take(built_texts: BuiltTexts, tmp_path: Path) -> None:
    held_out = samples(FIT, FIT + CALIBRATE)
    long = torch.tensor([place for place, row in enumerate(rows_of(held_out)) if len(row) > LONGEST // 2])
    files = {name: built_texts.directory.read(name) for name in built_texts.directory.files}
    copy = ModelDirectory.create(tmp_path / "copy", files)
    report = recalibrate(copy, held_out.take(long), fidelity=0.9, confidence=0.9, aside=False)
    assert report.seconds_without > 1.2 * built_texts.report.seconds_without
    assert report.by_length[0].lengths.startswith(f"{LONGEST // 2 + 1} to ")


def test_a_sample_costs_what_its_own_length_takes_and_saves_as_much() -> None:
    stages = [Grid((1, 11), (Curve((1,), (1.0,)), Curve((1,), (11.0,)))), Grid((1,), (Curve((1,), (2.0,)),))]
    costs = Costs.of([6.0, 2.0], [(0, 0.5, 0.0)], aside=False, grids=stages)
    scores, right = np.array([[1.0, 1.0, 0.0]]), np.ones((1, 3), dtype=np.bool_)
    seen = Seen(scores, right, lengths=np.array([1, 6, 11]))
    sent = send(np.array([0.5]), seen, costs)
    np.testing.assert_allclose(sent.seconds, [1.5, 6.5, 13.5])
    alike = send(np.array([0.5]), Seen(scores, right), costs)
    np.testing.assert_allclose(alike.seconds, [6.5, 6.5, 8.5])


def test_quarters_keep_rows_of_one_length_together() -> None:
    lengths = np.array([3, 3, 3, 4, 5, 9, 9, 9, 9, 12])
    found = [(said, int(here.sum())) for said, here in by_length(lengths, 4)]
    assert found == [("3", 3), ("4 to 5", 2), ("9", 4), ("12", 1)]
    assert [said for said, _ in by_length(np.full(7, 5), 4)] == ["5"]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            [torch.ones(3, dtype=torch.int64), torch.ones(LONGEST + 1, dtype=torch.int64)],
            "row 1 of the samples: 'ids' has L=25",
        ),
        ([torch.ones(3, 2, dtype=torch.int64)] * 2, r"'ids' has shape \[3, 2\]: it must be \[L\]"),
        ([torch.ones(3), torch.ones(4)], "samples for 'ids' are .* float32"),
    ],
)
def test_samples_of_sizes_that_no_row_has_are_refused_with_the_row(
    built_texts: BuiltTexts, rows: list[Tensor], said: str
) -> None:
    spec = load_program(built_texts.directory).spec
    masks = [torch.ones(row.shape, dtype=torch.int64) for row in rows]
    with pytest.raises(ConfigError, match=said):
        Samples({"ids": rows, "mask": masks}).ordered(spec.inputs, spec.dims)
    with pytest.raises(ConfigError, match="declare what may vary"):
        Samples({"ids": [torch.ones(3), torch.ones(4)]}).ordered((TensorSpec("ids", "float32", (3,)),))


def test_no_texts_at_all_are_refused(built_texts: BuiltTexts) -> None:
    spec = load_program(built_texts.directory).spec
    none = Samples({"ids": [], "mask": []}).ordered(spec.inputs, spec.dims)
    with pytest.raises(ConfigError, match="there are no samples"):
        none.typical()


def test_the_typical_texts_are_of_the_median_length(built_texts: BuiltTexts) -> None:
    spec = load_program(built_texts.directory).spec
    some = unseen().ordered(spec.inputs, spec.dims)
    assert some.lengths is not None
    ids, mask = some.typical()
    assert ids.shape == mask.shape
    assert ids.shape[1] == int(some.lengths.sort().values[round(0.5 * (len(some) - 1))])


def test_explored_networks_are_those_of_the_same_rows(built_texts: BuiltTexts) -> None:
    spec = load_program(built_texts.directory).spec
    some = unseen().ordered(spec.inputs, spec.dims)
    assert fingerprint(some) == fingerprint(unseen().ordered(spec.inputs, spec.dims))
    assert fingerprint(some) != fingerprint(some.take(torch.arange(len(some)).flip(0)))


@pytest.mark.usefixtures("one_core")
def test_from_python_texts_of_their_own_lengths_make_caches(tmp_path: Path) -> None:
    rows, labels = texts()
    data = Samples({"ids": rows[:FIT], "mask": [torch.ones_like(row) for row in rows[:FIT]]}, labels[:FIT])
    ids, mask = filled_up(rows[:2], LONGEST)
    length = {1: torch.export.Dim("L", min=1, max=LONGEST)}
    with pytest.warns(UserWarning, match="no lookup|cannot show|no exits"):
        name = build_once(
            trained(),
            {"ids": ids, "mask": mask},
            tmp_path,
            samples=data,
            fidelity=0.999,
            dims={"ids": length, "mask": length},
            backends=("eager",),
            max_batch=2,
        )
    assert load_program(ModelDirectory.open(tmp_path / name / "1")).spec.dims


def pictures(first: int, end: int) -> tuple[list[Tensor], Tensor]:
    """Return digits in the middle of pictures of several sizes, and their labels."""
    images, labels = digits()
    generator = torch.Generator().manual_seed(first)
    found = []
    for image in images[first:end]:
        more = torch.randint(0, 3, (2,), generator=generator).tolist()  # on each side
        found.append(functional.pad(image, (more[0], more[0], more[1], more[1])))
    return found, labels[first:end]


@pytest.mark.usefixtures("one_core")
def test_pictures_of_several_heights_and_widths_are_pooled_as_a_whole(tmp_path: Path) -> None:
    images, labels = digits()
    torch.set_num_threads(1)
    report = build_program(
        trained_digits(images[:DIGITS_FIT], labels[:DIGITS_FIT]),
        {"image": functional.pad(images[:2], (0, 2, 0, 0))},
        directory=tmp_path / "pictures" / "1",
        name="pictures",
        backends=["eager"],
        min_stage_seconds=0.0,
        max_overhead=None,
        max_batch=2,
        dims=(Dim("H", 8, 12, 2), Dim("W", 8, 12, 2)),
        sizes={"image": [1, "H", "W"]},
    )
    fit, held_out, new = (pictures(*part) for part in ((0, DIGITS_FIT), (DIGITS_FIT, 1_500), (1_500, 1_600)))
    made = build_caches(
        report.directory,
        Samples({"image": fit[0]}, fit[1]),
        Samples({"image": held_out[0]}, held_out[1]),
        fidelity=0.9,
        confidence=0.9,
        candidates=1,
        presentations=6_000,
    )
    assert made.caches.lookups
    program, lookups = load_program(made.directory), load_lookups(made.directory, backend="eager")
    (stage,) = lookups
    same, early = [], []
    for image in new[0]:
        (base,) = program.run(image[None])
        answers, hits = lookups[stage](program.run_through(stage, image[None]))
        early.append(bool(hits[0]))
        same.append(not hits[0] or int(answers[0].argmax()) == int(base.argmax()))
    assert np.mean(early) > 0.3
    assert np.mean(same) >= 0.85
