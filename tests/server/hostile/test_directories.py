"""Model directories that somebody made or altered with bad intent: each is refused by name, and nothing in it runs."""

import json
import math
import os
import pickle
import zipfile
from collections.abc import Callable, Iterator
from copy import deepcopy
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from latebind.adaptation.versions import ABOUT, CURRENT, FORMAT, Versions
from latebind.domain.config import EngineConfig
from latebind.domain.errors import LatebindError, QueryError, RepositoryError
from latebind.engine.loaded import load_model
from latebind.learned.metadata import LIST, read_caches
from latebind.program import graph
from latebind.program.graph import MOST_BYTES, read_graph_file
from latebind.program.load import open_program
from latebind.program.metadata import read_spec_and_costs
from latebind.queries.file.definition import read_query
from latebind.repository.directory import (
    GRAPH,
    MANIFEST,
    MODEL,
    PROFILE,
    WEIGHTS,
    ModelDirectory,
    entry_of,
    json_bytes,
    write_bytes,
)
from latebind.repository.listing import Repository, find_queries
from latebind.repository.tensors import MOST_HEADER
from latebind.sequence.stored import load_sequence
from tests.server.hostile.handmade import GRAPH as GOOD_GRAPH
from tests.server.hostile.handmade import MODEL as GOOD_MODEL
from tests.server.hostile.handmade import PROFILE as GOOD_PROFILE
from tests.server.hostile.handmade import WEIGHT, Files, good, tensors


def load(path: Path) -> None:
    load_model(path, EngineConfig())


class Payload:
    """Makes a file when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self._target = target

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return (Path.touch, (self._target,))


@pytest.fixture
def ran(tmp_path: Path) -> Path:
    """A file that is there once something of a directory was executed."""
    return tmp_path / "executed"


def test_the_directory_that_the_others_are_made_of_is_good(tmp_path: Path) -> None:
    ModelDirectory.create(tmp_path / "tiny", good())
    load(tmp_path / "tiny")


NAMES = ["", "..", "../up", "/etc", "a/b", "a\nb", "a b", ".hidden", "-rf", "ü", "a\0", "a" * 129, "a\u202eb"]


def pickled(target: Path) -> bytes:
    return pickle.dumps(Payload(target))


def archive(target: Path) -> bytes:
    """What `torch.save` writes: an archive with a pickle in it."""
    content = BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        file.writestr("archive/data.pkl", pickled(target))
        file.writestr("archive/version", "3\n")
    return content.getvalue()


def objects(target: Path) -> bytes:
    """What `numpy.save` writes of objects."""
    content = BytesIO()
    np.save(content, np.array([Payload(target)], dtype=object), allow_pickle=True)
    return content.getvalue()


@pytest.mark.parametrize("name", ["weights.safetensors", "graph.json", "model.json", "profile.json"])
@pytest.mark.parametrize("make", [pickled, archive, objects])
def test_a_file_that_is_a_pickle_is_not_unpickled(
    tmp_path: Path, ran: Path, name: str, make: Callable[[Path], bytes]
) -> None:
    ModelDirectory.create(tmp_path / "tiny", {**good(), name: make(ran)})
    with pytest.raises(RepositoryError):
        load(tmp_path / "tiny")
    assert not ran.exists()


# Altered behind the manifest's back -----------------------------------------------------------------------------------


def instead(make: Callable[[Path], object], name: str = "graph.json") -> Callable[[Path], None]:
    """Return what puts something else in the place of a file, which then lies beside the directory."""

    def alter(path: Path) -> None:
        (path / name).rename(path.parent / name)
        make(path / name)

    return alter


def link_out(file: Path) -> None:
    file.symlink_to(file.parent.parent / file.name)


def flip(path: Path) -> None:
    content = bytearray((path / "weights.safetensors").read_bytes())
    content[-1] ^= 1
    (path / "weights.safetensors").write_bytes(content)


def remanifest(**files: dict[str, object]) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        (path / "manifest.json").write_text(json.dumps({"format": 1, "files": files}))

    return write


ENTRY: dict[str, object] = {"bytes": 0, "sha256": "0" * 64}
ALTERED: dict[str, Callable[[Path], None]] = {
    "a link that leads out": instead(link_out),
    "a manifest that is a link": instead(link_out, "manifest.json"),
    "a pipe that never ends": instead(os.mkfifo),
    "a device that never ends": instead(lambda file: file.symlink_to("/dev/zero")),
    "a link to itself": instead(lambda file: file.symlink_to(file)),
    "a folder for a file": instead(Path.mkdir),
    "weights that were cut off": lambda path: os.truncate(path / "weights.safetensors", 100),
    "a bit that was flipped": flip,
    "a manifest that names a path": remanifest(**{"../../etc/passwd": ENTRY}),
    "a manifest that names an absolute path": remanifest(**{"/etc/passwd": ENTRY}),
    "a manifest that names a folder above": remanifest(**{"..": ENTRY}),
    "a manifest that names a hidden file": remanifest(**{".bashrc": ENTRY}),
    "a manifest with a zero byte": remanifest(**{"a\0b": ENTRY}),
    "a manifest of sizes below zero": remanifest(**{"graph.json": {**ENTRY, "bytes": -1}}),
    "a manifest with something more": remanifest(**{"graph.json": {**ENTRY, "run": "x"}}),
    "a manifest of 2 megabytes": lambda path: write_bytes(path / "manifest.json", b" " * (2 << 20)),
    "a manifest 100,000 deep": lambda path: write_bytes(path / "manifest.json", b"[" * 100_000),
    "a manifest that is not there": lambda path: (path / "manifest.json").unlink(),
}


@pytest.mark.parametrize("alter", ALTERED.values(), ids=ALTERED.keys())
def test_a_directory_that_was_altered_is_refused(tmp_path: Path, alter: Callable[[Path], None]) -> None:
    ModelDirectory.create(tmp_path / "tiny", good())
    alter(tmp_path / "tiny")
    with pytest.raises(RepositoryError):
        load(tmp_path / "tiny")


# The repository around it ---------------------------------------------------------------------------------------------


def make_repository(folder: Path) -> Path:
    """Make a repository with one model, and another model outside of it."""
    ModelDirectory.create(folder / "repository" / "tiny" / "1", good())
    ModelDirectory.create(folder / "elsewhere" / "secret" / "1", good())
    return folder / "repository"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return make_repository(tmp_path)


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_repository(tmp_path_factory.mktemp("unchanged"))


@pytest.mark.parametrize("name", [*NAMES, "../elsewhere/secret", "secret/../../elsewhere/secret", "~", "$HOME", "*"])
def test_a_name_that_leads_out_of_the_repository_finds_nothing(unchanged: Path, name: str) -> None:
    with pytest.raises(LatebindError):
        Repository(unchanged).open(name)


def test_a_model_behind_a_link_that_leads_out_is_not_served(repository: Path) -> None:
    (repository / "linked").symlink_to(repository.parent / "elsewhere" / "secret")
    (repository / "tiny" / "2").symlink_to(repository.parent / "elsewhere" / "secret" / "1")
    assert [listed.path for listed in Repository(repository).models()] == [repository / "tiny" / "1"]
    with pytest.raises(RepositoryError, match="leads out of the repository"):
        Repository(repository).open("linked")


def test_a_query_behind_a_link_that_leads_out_is_refused(repository: Path) -> None:
    (repository / "passwd.query.toml").symlink_to("/etc/passwd")
    with pytest.raises(RepositoryError, match="leads out of the repository"):
        find_queries(repository)


# Every file that a serving process reads ------------------------------------------------------------------------------


CURVE = {"batches": [1, 2], "seconds": [0.001, 0.002]}
LOOKUP = {"stage": 0, "kind": "pool(2)", "bytes": 64, "seconds": CURVE, "slower": 0.0, "before_sure": None}
USED = {**LOOKUP, "kind": "plain", "threshold": 2.5, "hit_rate": 0.5, "fidelity": 0.99}
CACHES = {
    "format": 4, "target": 0.97, "confidence": 0.95, "fidelity": 0.98, "lower": 0.97, "calibrated_on": 100,
    "lookups": [USED], "spare": [LOOKUP], "tail": None, "aside": False, "answers": 1_000,
}  # fmt: skip
VERSION = {
    "format": FORMAT, "made": 1.0, "base": "0" * 64, "reason": "a test", "thresholds": {"0-plain": 2.5},
    "fidelity": 0.98, "lower": 0.97, "confidence": 0.95, "rows": 500, "wrong": [0.1, 0.0, 0.0, 0.0],
    "seconds": [0.2, 0.1, 0.1, 0.1], "mix": {"0": 1.0},
}  # fmt: skip
CUT = {**GOOD_MODEL, "cuts": ["x"]}
ANYTHING: some.SearchStrategy[object] = some.one_of(
    some.sampled_from([-1, 0, 1, 2**31, 2**62, 2**63, 2**64, 10**40, -(10**40), 1e300, -1e300, 1e-320, -0.5, 0.5, 1.5]),
    some.sampled_from(["", "x", "..", "a\0b", "nan", "inf", "9" * 400, None, True, [], {}, [[]], [None], {"x": []}]),
    some.integers(-5, 70_000),
    some.floats(allow_nan=False, allow_infinity=False),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to everything inside."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inside:
        yield (*path, key)
        yield from places(one, (*path, key))


@some.composite
def spoiled(draw: some.DrawFn, value: Any) -> bytes:
    """The JSON of a value of which one or two parts are others, or missing."""
    found = deepcopy(value)
    for _ in range(draw(some.integers(1, 2))):
        if not (there := list(places(found))):
            break
        *way, last = draw(some.sampled_from(there))
        inside = found
        for key in way:
            inside = inside[key]
        if draw(some.booleans()):
            inside[last] = deepcopy(draw(ANYTHING))  # what is drawn is shared by all draws
        else:
            del inside[last]
    return json.dumps(found).encode()


def written(path: Path, files: Files) -> ModelDirectory:
    """A directory under a manifest that is right."""
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    (path / MANIFEST).write_bytes(
        json_bytes({"format": 1, "files": {name: entry_of(data) for name, data in files.items()}})
    )
    return ModelDirectory.open(path)


FOLDERS = count()


def refusal(use: Callable[[], object]) -> str | None:
    """Return why something is refused; None where it is not, or only for what it would run on."""
    try:
        use()
    except RepositoryError as error:
        return str(error)
    except LatebindError:
        return None
    return None


def used_or_refused(root: Path, files: Files, use: Callable[[ModelDirectory], object]) -> None:
    path = root / f"model-{next(FOLDERS)}"
    directory = written(path, files)
    why = refusal(lambda: use(directory))
    assert why is None or (str(path) in why and len(why) < 2_000), why


def load_directory(directory: ModelDirectory) -> None:
    loaded = load_model(directory.path, EngineConfig())
    assert math.isfinite(loaded.costs.remaining(0, loaded.spec.max_batch))
    read_spec_and_costs(directory)


ROOT = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@ROOT
@given(data=some.data(), name=some.sampled_from([MODEL, GRAPH, PROFILE]))
def test_a_model_is_served_or_refused(tmp_path: Path, data: some.DataObject, name: str) -> None:
    value = {MODEL: GOOD_MODEL, GRAPH: GOOD_GRAPH, PROFILE: GOOD_PROFILE}[name]
    used_or_refused(tmp_path, {**good(), name: data.draw(spoiled(value))}, load_directory)


@ROOT
@given(content=spoiled(CACHES))
def test_learned_caches_are_read_or_refused(tmp_path: Path, content: bytes) -> None:
    used_or_refused(tmp_path, {**good(), MODEL: json.dumps(CUT).encode(), LIST: content}, read_caches)


@ROOT
@given(content=spoiled(VERSION), current=some.binary(max_size=8) | some.sampled_from([b"000001", b"000002 by-hand"]))
def test_a_version_is_used_or_refused_and_there_is_always_one_to_begin_with(
    tmp_path: Path, content: bytes, current: bytes
) -> None:
    model = ModelDirectory(tmp_path, {LIST: entry_of(b"")})
    folder = tmp_path / f"adapted-{next(FOLDERS)}"
    there = Versions(folder, model)
    written(folder / "versions" / "000001", {ABOUT: content.replace(b"0" * 64, there.base.encode())})
    (folder / CURRENT).write_bytes(current)
    name, why = there.first()
    assert name in {"built", "none"}  # its heads are not there
    assert why or current.split()[:1] in ([b"built"], [b"none"])
    assert str(folder) in (refusal(lambda: there.version("000001")) or str(folder))


@ROOT
@given(data=some.data())
def test_a_sequence_model_is_served_or_refused(models: Path, tmp_path: Path, data: some.DataObject) -> None:
    directory = ModelDirectory.open(models / "backwards" / "1")
    files = {name: directory.read(name) for name in directory.files}
    name = data.draw(some.sampled_from([MODEL, PROFILE, "sequence.json"]))
    used_or_refused(tmp_path, {**files, name: data.draw(spoiled(json.loads(files[name])))}, load_sequence)


@ROOT
@given(text=some.text(max_size=60), key=some.sampled_from(["deadline_ms", "version", "planner", "replan"]))
def test_a_query_is_read_or_refused(tmp_path: Path, text: str, key: str) -> None:
    path = tmp_path / "q.query.toml"
    path.write_text(f"{key} = {text}\n[nodes.a]\nmodels = ['tiny']\n", encoding="utf-8", errors="replace")
    with pytest.raises(QueryError, match=r"q\.query\.toml"):
        read_query(path, {}, {})


def test_a_graph_of_too_many_nodes_is_refused_before_any_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph, "resolve", lambda name: pytest.fail(f"{name} is looked at"))
    node = {"name": "n", "op": "aten.relu.default", "args": [{"value": "x"}]}
    many = json.dumps({**GOOD_GRAPH, "nodes": [node] * 200_000}).encode()
    for number, content in enumerate((many, b" " * (MOST_BYTES + 1))):
        directory = written(tmp_path / str(number), {GRAPH: content})
        with pytest.raises(RepositoryError, match=str(tmp_path / str(number) / GRAPH)):
            read_graph_file(directory, GRAPH)


OTHER = {"dtype": "F32", "shape": [4, 4], "data_offsets": [32, 96]}


@pytest.mark.parametrize("use", [load_directory, open_program])
@pytest.mark.parametrize(
    "content",
    [
        tensors(json.dumps(WEIGHT).encode() + b" " * MOST_HEADER),
        tensors({**WEIGHT, "other": OTHER}, bytes(96)),
        tensors({**WEIGHT, "other": {**OTHER, "data_offsets": [128, 192]}}, bytes(192)),
        tensors({"other": WEIGHT["weight"]}),
    ],
    ids=["a description of more than 8 MiB", "weights that overlap", "a gap", "a weight that is lacking"],
)
def test_weights_that_no_build_writes_are_refused_however_they_are_loaded(
    tmp_path: Path, content: bytes, use: Callable[[ModelDirectory], object]
) -> None:
    directory = written(tmp_path / "tiny", {**good(), WEIGHTS: content})
    with pytest.raises(RepositoryError, match=WEIGHTS):
        use(directory)


def test_a_profile_that_nobody_measured_is_refused(tmp_path: Path) -> None:
    good_curve = {"batches": [1], "seconds": [1e-3]}
    curves = [*({"batches": [1], "seconds": [seconds]} for seconds in (-1e-3, 1e300)), {"batches": [0], "seconds": [1]}]
    grids = [{"lengths": [1], "curves": [curve]} for curve in curves]
    grids += [{"lengths": lengths, "curves": [good_curve]} for lengths in ([], [0], [1, 2])]
    wrong: list[dict[str, object]] = [{"stages": stages} for stages in ([], *zip(curves), *zip(grids))]
    wrong += [
        {"stages": [good_curve], "slopes": {stage: slope}} for stage, slope in (("3", good_curve), ("0", curves[0]))
    ]
    wrong += [{"load_seconds": -1.0}, {"weight_bytes": -1}]
    for number, change in enumerate(wrong):
        files = {**good(), PROFILE: json.dumps({**GOOD_PROFILE, **change}).encode()}
        with pytest.raises(RepositoryError, match=PROFILE):
            load_directory(written(tmp_path / str(number), files))
