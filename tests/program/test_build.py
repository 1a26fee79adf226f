from dataclasses import replace
from pathlib import Path
from shutil import copytree

import msgspec
import pytest
import torch
from torch import nn

from latebind.domain.defaults import MAX_OVERHEAD
from latebind.domain.errors import ConfigError, ExportError, RepositoryError
from latebind.domain.model import About, Activation, Media, RawInput, Task
from latebind.program import load
from latebind.program.backends import run_chain
from latebind.program.build import BuildReport, build_program
from latebind.program.choose import Candidate, why_chosen
from latebind.program.export import run_module
from latebind.program.load import load_program, load_uncut
from latebind.program.metadata import read_model, read_profile, read_spec_and_costs, read_texts
from latebind.program.program import profile_program
from latebind.program.stored import files_with_entry, read_stages
from latebind.program.verify import relative_error
from latebind.repository.directory import GRAPH, MODEL, PROFILE, WEIGHTS, ModelDirectory
from latebind.repository.tensors import read_tensors, tensor_bytes
from tests.program.modules import Branchy, DependsOnValues

IMAGES = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))
DEEP = nn.Sequential(*(part for _ in range(4) for part in (nn.Linear(16, 16), nn.Tanh()))).eval()
LAYERS = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3)).eval()  # where any that can be cut will do
ROWS = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def module() -> Branchy:
    torch.manual_seed(0)
    return Branchy().eval()


@pytest.fixture(scope="module")
def once(module: Branchy, tmp_path_factory: pytest.TempPathFactory) -> BuildReport:
    return build_program(
        module,
        {"x": IMAGES},
        directory=tmp_path_factory.mktemp("branchy") / "1",
        name="branchy",
        backends=("eager",),
        min_stage_seconds=0.0,
        max_batch=4,
    )


@pytest.fixture
def built(once: BuildReport, tmp_path: Path) -> BuildReport:
    """What was built, in a directory that the test may change."""
    return replace(once, directory=ModelDirectory.open(Path(copytree(once.directory.path, tmp_path / "branchy"))))


def changed(directory: ModelDirectory, file: str, **fields: object) -> ModelDirectory:
    """Rewrite fields of a JSON file with a manifest that fits, as someone who can write the directory could."""
    content = msgspec.json.decode(directory.read(file)) | fields
    return directory.write_files({file: msgspec.json.encode(content)})


def test_models_that_all_read_texts_are_told_from_others(built: BuildReport, tmp_path: Path) -> None:
    def of(name: str, *media: Media) -> Path:
        about = About(Task.CLASSIFY, tuple(RawInput(one.value, one) for one in media))
        place = Path(copytree(built.directory.path, tmp_path / name))
        return changed(ModelDirectory.open(place), MODEL, about=msgspec.to_builtins(about)).path

    embedding, both, picture = of("a", Media.TEXT), of("b", Media.PICTURE, Media.TEXT), of("c", Media.PICTURE)
    assert read_texts([embedding, both])
    assert not read_texts([])
    assert not read_texts([embedding, picture])
    assert not read_texts([built.directory.path])
    (picture / MODEL).write_bytes(b"{}")
    with pytest.raises(RepositoryError, match=r"c/model\.json differs from the manifest"):
        read_texts([picture])


def test_what_is_built_loads_and_answers_like_the_module(module: Branchy, built: BuildReport) -> None:
    program = load_program(ModelDirectory.open(built.directory.path))
    assert program.spec.stages == len(program.stages) == built.cut_points + 1 == 9
    assert (program.spec.inputs[0].name, program.spec.max_batch) == ("x", 4)
    assert program.costs_fit
    expected = run_module(module, {"x": IMAGES})
    assert relative_error(program.run(IMAGES), expected) <= 1e-5
    assert relative_error(load_uncut(built.directory)(IMAGES), expected) <= 1e-5


def test_the_way_through_the_stages_can_be_walked_in_parts(built: BuildReport) -> None:
    program = load_program(built.directory)
    half = program.run_through(3, IMAGES)
    assert half.shape == (4, *program.activations[3])
    assert torch.equal(run_chain(program.stages[4:], (half,))[0], program.run(IMAGES)[0])


def test_costs_cover_every_stage_and_batch(built: BuildReport) -> None:
    spec, costs = read_spec_and_costs(built.directory)
    assert [grid.curves[0].batches for grid in costs.stages] == [(1, 2, 4)] * spec.stages
    assert all(second > 0 for grid in costs.stages for second in grid.curves[0].seconds)
    assert costs.weight_bytes == sum(t.nbytes for t in read_tensors(built.directory, WEIGHTS).values())
    assert costs.load_seconds > 0


def test_a_profile_of_other_hardware_does_not_fit_and_can_be_taken_again(built: BuildReport) -> None:
    profile = read_profile(built.directory)
    other = msgspec.to_builtins(replace(profile.hardware, cpu="another"))
    program = load_program(changed(built.directory, PROFILE, hardware=other))
    assert not program.costs_fit
    again = profile_program(program)
    assert again.costs_fit
    assert len(again.costs.stages) == program.spec.stages
    assert not profile.matches_this_machine(threads=2, backend="eager")
    assert not profile.matches_this_machine(threads=1, backend="openvino")


def test_a_profile_of_before_with_curves_and_slopes_is_one_of_grids(built: BuildReport) -> None:
    curves = [{"batches": [1, 4], "seconds": [1e-3, 2e-3]}] * read_model(built.directory).spec().stages
    slope = {"batches": [1, 2], "seconds": [1e-4, 3e-4]}
    costs = read_profile(changed(built.directory, PROFILE, stages=curves, slopes={"0": slope})).costs()
    assert [grid.lengths for grid in costs.stages] == [(1, 2), *[(1,)] * (len(curves) - 1)]
    assert costs.step(0, 1, 11) == pytest.approx(1e-3 + 10 * 1e-4)
    assert costs.step(0, 4, 11) == pytest.approx(2e-3 + 10 * 7e-4)
    assert costs.step(1, 4, 11) == pytest.approx(2e-3)


def test_stages_of_enough_bytes_are_cut_without_regard_to_time(tmp_path: Path) -> None:
    report = build_program(
        DEEP,
        (torch.randn(2, 16),),
        directory=tmp_path / "m",
        name="m",
        backends=("eager",),
        min_stage_seconds=0.0,
        min_stage_bytes=2_000,
        max_overhead=None,
    )
    directory = report.directory
    weights = read_tensors(directory, WEIGHTS)
    stages = read_stages(directory, read_model(directory))
    sizes = [sum(weights[name].nbytes for name in stage.weights()) for stage in stages]
    assert len(sizes) == len(report.stages) >= 2
    assert min(sizes) >= 2_000


@pytest.mark.parametrize(
    ("seconds", "overhead"),
    [
        (10.0, MAX_OVERHEAD),
        (1e-6, -0.9),
    ],  # a stage would be too short; no chain is that much faster than the uncut model
)
def test_no_cut_is_made_where_it_is_not_worth_it(seconds: float, overhead: float, tmp_path: Path) -> None:
    told: list[float] = []
    report = build_program(
        LAYERS,
        (ROWS,),
        directory=tmp_path / "m",
        name="m",
        backends=("eager",),
        min_stage_seconds=seconds,
        max_overhead=overhead,
        progress=lambda _step, share: told.append(share),
    )
    assert len(report.stages) == 1
    assert report.overhead == {}
    assert told == sorted(told)
    assert (told[0], told[-1]) == (0.0, 1.0)


def test_a_model_that_does_nothing_gives_back_what_it_gets(tmp_path: Path) -> None:
    build_program(nn.Identity(), (torch.zeros(2, 3),), directory=tmp_path / "1", name="as-is", backends=["eager"])
    rows = torch.rand(4, 3)
    (found,) = load_program(ModelDirectory.open(tmp_path / "1")).run(rows)
    assert torch.equal(found, rows)


def test_the_report_prints_what_was_tried_and_chosen(built: BuildReport) -> None:
    rows = dict(built.rows())
    assert rows["chosen"] == "eager, the only one that was tried"
    assert rows["cut points"] == "8"
    assert "ms uncut at batch 1" in rows["backend eager"]


def test_the_report_says_why_a_backend_was_chosen() -> None:
    quick, wrong, slow = (
        Candidate("openvino", 1, seconds=0.001),
        Candidate("compile", 1, seconds=0.0008),
        Candidate("eager", 1, seconds=0.003),
    )
    refused: Candidate[int] = Candidate("other", refused="it is not installed")
    assert why_chosen(quick, [quick, slow, refused]) == "openvino, 3.0 times as fast as eager"
    assert why_chosen(quick, [quick, refused]) == "openvino, the only one that may be taken"
    told = "compile is faster, but not taken: a stage differs"
    passed = {"compile": "a stage differs"}
    assert why_chosen(quick, [wrong, quick, slow], passed) == f"openvino, 3.0 times as fast as eager; {told}"
    assert why_chosen(slow, [wrong, slow], passed) == f"eager, the only one that may be taken; {told}"


def test_a_backend_outside_the_tolerance_is_not_chosen(module: Branchy, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"eager: relative error .* is over 1\.0e-30"):
        build_program(module, (IMAGES,), directory=tmp_path / "m", name="m", backends=("eager",), tolerance=1e-30)
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"name": "../up"}, "letters, digits"),
        ({"version": "new"}, "a number"),
        ({"max_batch": 0}, "1 or more"),
        ({"tolerance": 0.0}, "above 0"),
        ({"backends": ("tpu",)}, "no backend 'tpu'"),
        ({"backends": ("openvino-bf16",)}, "state the tolerance"),
        ({"backends": ("openvino-int8",)}, "state the tolerance"),
    ],
)
def test_settings_without_sense_are_refused(
    module: Branchy, tmp_path: Path, setting: dict[str, object], says: str
) -> None:
    settings: dict[str, object] = {"name": "m", "directory": tmp_path / "m"} | setting
    with pytest.raises(ConfigError, match=says):
        build_program(module, (IMAGES,), **settings)  # type: ignore[arg-type]


def test_a_module_that_cannot_be_exported_leaves_no_directory(tmp_path: Path) -> None:
    with pytest.raises(ExportError):
        build_program(DependsOnValues(), (torch.randn(3, 4),), directory=tmp_path / "m", name="m")
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"format": 9}, "format 9"),
        ({"cuts": ["nowhere"]}, "cannot be cut"),
        ({"cuts": ["x", "x"]}, "cannot be cut"),
        ({"max_batch": 0}, "max_batch 0"),
        ({"outputs": []}, "no inputs or outputs"),
        ({"outputs": [{"name": "other", "dtype": "float32", "shape": [3]}]}, "different tensors"),
        ({"name": 3}, "is invalid"),
        ({"extra": 3, "stages": "os.system"}, None),
    ],
)
def test_a_model_file_that_does_not_fit_is_refused(
    built: BuildReport, fields: dict[str, object], says: str | None
) -> None:
    directory = changed(built.directory, MODEL, **fields)
    if says is None:
        assert load_program(directory).spec.stages == 9
        return
    with pytest.raises(RepositoryError, match=says):
        load_program(directory)


def test_weights_of_another_shape_are_refused_at_load(built: BuildReport) -> None:
    weights = {name: tensor[:1] for name, tensor in read_tensors(built.directory, WEIGHTS).items()}
    with pytest.raises(RepositoryError, match="stage 0 of"):
        load_program(built.directory.write_files({WEIGHTS: tensor_bytes(weights)}))


def test_a_pickle_in_place_of_the_weights_or_the_graph_is_refused(built: BuildReport, tmp_path: Path) -> None:
    torch.save({"weight": torch.ones(1)}, tmp_path / "weights.pt")
    data = (tmp_path / "weights.pt").read_bytes()
    for file in (WEIGHTS, GRAPH, MODEL, PROFILE):
        with pytest.raises(RepositoryError):
            load_program(built.directory.write_files({file: data}))
        built = replace(built, directory=built.directory)
    assert "pickle" not in Path(load.__file__).read_text()


def test_what_a_model_is_for_is_stored_with_further_files_and_stays_where_files_change(tmp_path: Path) -> None:
    text, other = RawInput("text", Media.TEXT), RawInput("text_pair", Media.TEXT, optional=True)
    about = About(Task.CLASSIFY, (text, other), ("no", "yes", "perhaps"), Activation.SOFTMAX)
    directory = build_program(
        LAYERS,
        {"x": ROWS},
        directory=tmp_path / "1",
        name="answers",
        backends=["eager"],
        about=about,
        files={"tokenizer.json": b"{}"},
    ).directory
    assert read_model(directory).spec().about == about
    assert directory.read("tokenizer.json") == b"{}"
    entered = directory.write_files(files_with_entry(directory))
    assert read_model(entered).about == about
    assert entered.read("tokenizer.json") == b"{}"


@pytest.mark.parametrize("names", [("x",), ("text", "text"), ("",), ("a b",)])
def test_raw_inputs_that_no_build_writes_are_refused(names: tuple[str, ...], built: BuildReport) -> None:
    raw = [{"name": name, "media": "text"} for name in names]
    with pytest.raises(RepositoryError, match=r"raw inputs .*: build it again"):
        read_model(changed(built.directory, MODEL, about={"task": "classify", "raw": raw}))
