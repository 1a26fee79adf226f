"""Model directories that somebody made or altered with bad intent: each is refused by name, and nothing in it runs."""

import json
import os
import pickle
import zipfile
from collections.abc import Callable
from copy import deepcopy
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latebind.domain.config import EngineConfig
from latebind.domain.errors import LatebindError, QueryError, RepositoryError
from latebind.engine.crew import load_model
from latebind.repository.directory import ModelDirectory, write_bytes
from latebind.repository.listing import Repository, find_queries, find_served
from tests.queries.file.test_language import tensor
from tests.server.hostile.handmade import GRAPH, LINEAR, MODEL, PROFILE, TENSOR, WEIGHT, Files, good, tensors


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


def model(**change: object) -> Files:
    return {**good(), "model.json": json.dumps({**MODEL, **change}).encode()}


def graph(**change: object) -> Files:
    return {**good(), "graph.json": json.dumps({**GRAPH, **change}).encode()}


def node(**change: object) -> Files:
    return graph(nodes=[{**LINEAR, **change}])


def profile(**change: object) -> Files:
    return {**good(), "profile.json": json.dumps({**PROFILE, **change}).encode()}


def weights(*given: Any, **more: Any) -> Files:
    return {**good(), "weights.safetensors": tensors(*given, **more)}


def wide(size: int) -> Files:
    """A model whose tensors have so many numbers."""
    tensor, kind = {**TENSOR, "shape": [size]}, {"dtype": "float32", "shape": [None, size]}
    relu = {"name": "linear", "op": "aten.relu.default", "args": [{"value": "x"}], "type": kind}
    changed = deepcopy(GRAPH)
    changed["inputs"][0]["shape"], changed["nodes"] = [size], [relu]
    files = model(inputs=[tensor], outputs=[{**tensor, "name": "y"}])
    return {**files, "graph.json": json.dumps(changed).encode()}


NAMES = ["", "..", "../up", "/etc", "a/b", "a\nb", "a b", ".hidden", "-rf", "ü", "a\0", "a" * 129, "a\u202eb"]
SIGNED: dict[str, Files] = {
    **{f"the name {name!a:.20}": model(name=name) for name in NAMES},
    "a version that is a path": model(version="../1"),
    "a version that is none": model(version="latest"),
    "a version with a line feed": model(version="1\n"),
    "a version of 1000 digits": model(version="9" * 1000),
    "a largest batch of 0": model(max_batch=0),
    "a largest batch of 2 to the 62": model(max_batch=2**62),
    "a format of the future": model(format=2),
    "a backend that is a module": model(backend="os.system"),
    "a backend that is a path": model(backend="../../evil.so"),
    "a cut that is nowhere": model(cuts=["nowhere"]),
    "a cut twice": model(cuts=["linear", "linear"]),
    "10,000 cuts": model(cuts=["linear"] * 10_000),
    "other tensors than the graph": model(inputs=[{**TENSOR, "shape": [8]}]),
    "a tensor below zero": model(inputs=[{**TENSOR, "shape": [-4]}]),
    "a dtype of objects": model(inputs=[{**TENSOR, "dtype": "object"}]),
    "no inputs": model(inputs=[]),
    "no outputs": model(outputs=[]),
    "a model that is a list": {**good(), "model.json": b"[]"},
    "a model of 100,000 brackets": {**good(), "model.json": b"[" * 100_000},
    "a model that is no UTF-8": {**good(), "model.json": b'{"name": "\xff"}'},
    "a tensor of 4 terabytes": wide(2**40),
    "a tensor past 64 bits": wide(2**64),
    "an operator that opens files": node(op="aten.from_file.default"),
    "an operator of another library": node(op="torchvision.read_file.default"),
    "an operator that is Python": node(op="os.system"),
    "an operator with dunders": node(op="aten.__class__.__init__"),
    "an operator that looks up": node(op="aten.relu.__globals__"),
    "an operator that shows unwritten memory": node(op="aten.empty.memory_format", args=[[4, 4]]),
    "an operator that addresses memory": node(op="aten.as_strided.default", args=[{"value": "x"}, [9999], [1]]),
    "an operator that writes to its input": node(op="aten.relu_.default", args=[{"value": "x"}]),
    "an operator that draws numbers": node(op="aten.rand.default", args=[[4, 4]]),
    "an operator of 100 kB": node(op="a" * 100_000),
    "an operator without a name": node(op=""),
    "a constant that is an attribute": node(args=[{"value": "x"}, {"dtype": "__class__"}]),
    "a constant of an unknown kind": node(args=[{"eval": "1"}, {"weight": "weight"}]),
    "another device": node(args=[{"value": "x"}, {"device": "cuda"}]),
    "a value that nobody makes": node(args=[{"value": "y"}, {"weight": "weight"}]),
    "a value of itself": node(args=[{"value": "linear"}, {"weight": "weight"}]),
    "a weight that is not there": node(args=[{"value": "x"}, {"weight": "none"}]),
    "a weight that is a path": node(args=[{"value": "x"}, {"weight": "../../x"}]),
    "too few arguments": node(args=[]),
    "arguments 50 deep": node(args=[json.loads("[" * 50 + "]" * 50)]),
    "a view past the end": node(op="aten.slice.Tensor", args=[{"value": "x"}, 99, 0, 2**62]),
    "a shape that is a lie": node(type={"dtype": "float32", "shape": [None, 5]}),
    "a node twice": graph(nodes=[LINEAR, LINEAR]),
    "a node with the name of the input": graph(nodes=[{**LINEAR, "name": "x"}]),
    "an output that nobody makes": graph(outputs=[["y", "nothing"]]),
    "no nodes": graph(nodes=[]),
    "a field that nobody knows": graph(code="import os"),
    "a graph 100,000 deep": {**good(), "graph.json": b'{"nodes":' + b"[" * 100_000},
    "a profile without stages that are there": profile(stages=[{"batches": [], "seconds": []}]),
    "a profile that goes backwards": profile(stages=[{"batches": [2, 1], "seconds": [1, 1]}]),
    "weights without a header": {**good(), "weights.safetensors": b""},
    "weights with half a length": {**good(), "weights.safetensors": b"\1\0\0"},
    "a header of 2 to the 63": weights(said=2**63),
    "a header of 2 to the 64 less one": weights(said=2**64 - 1),
    "a header longer than the file": weights(said=10_000),
    "a header of nothing": weights(said=0),
    "a header that is a list": weights([]),
    "a header 100,000 deep": weights(b"[" * 100_000),
    "a weight past the end": weights({"weight": {**WEIGHT["weight"], "data_offsets": [0, 6400]}}),
    "a weight at a negative place": weights({"weight": {**WEIGHT["weight"], "data_offsets": [-64, 0]}}),
    "a weight that ends before it begins": weights({"weight": {**WEIGHT["weight"], "data_offsets": [64, 0]}}),
    "a weight of another size": weights({"weight": {**WEIGHT["weight"], "shape": [4, 400]}}),
    "a weight whose size overflows": weights({"weight": {**WEIGHT["weight"], "shape": [2**32, 2**32, 4, 4]}}),
    "a weight of a dtype that is none": weights({"weight": {**WEIGHT["weight"], "dtype": "OBJECT"}}),
    "two weights in one place": weights({"weight": WEIGHT["weight"], "other": WEIGHT["weight"]}),
    "weights that are cut off": weights(data=bytes(32)),
    "weights with something behind": weights(data=bytes(640)),
}


@pytest.mark.parametrize("files", SIGNED.values(), ids=SIGNED.keys())
def test_a_directory_that_is_wrong_under_a_manifest_that_is_right_is_refused(tmp_path: Path, files: Files) -> None:
    ModelDirectory.create(tmp_path / "tiny", files)
    with pytest.raises(LatebindError) as refusal:
        load(tmp_path / "tiny")
    assert len(str(refusal.value)) < 2000


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


def test_files_that_nobody_asked_for_are_never_opened(tmp_path: Path, ran: Path) -> None:
    extra = {"data.pkl": pickled(ran), "model.pt": archive(ran), "setup.py": b"raise SystemExit", "x.npy": objects(ran)}
    ModelDirectory.create(tmp_path / "tiny", {**good(), **extra})
    load(tmp_path / "tiny")
    assert not ran.exists()


# Altered behind the manifest's back -----------------------------------------------------------------------------------


def link_out(path: Path) -> None:
    (path.parent / "stolen").write_bytes((path / "graph.json").read_bytes())
    (path / "graph.json").unlink()
    (path / "graph.json").symlink_to(path.parent / "stolen")


def link_the_manifest(path: Path) -> None:
    (path / "manifest.json").rename(path.parent / "manifest.json")
    (path / "manifest.json").symlink_to(path.parent / "manifest.json")


def pipe(path: Path) -> None:
    (path / "graph.json").unlink()
    os.mkfifo(path / "graph.json")


def device(path: Path) -> None:
    (path / "graph.json").unlink()
    (path / "graph.json").symlink_to("/dev/zero")


def loop(path: Path) -> None:
    (path / "graph.json").unlink()
    (path / "graph.json").symlink_to(path / "graph.json")


def folder(path: Path) -> None:
    (path / "graph.json").unlink()
    (path / "graph.json").mkdir()


def truncate(path: Path) -> None:
    os.truncate(path / "weights.safetensors", 100)


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
    "a link that leads out": link_out,
    "a manifest that is a link": link_the_manifest,
    "a pipe that never ends": pipe,
    "a device that never ends": device,
    "a link to itself": loop,
    "a folder for a file": folder,
    "weights that were cut off": truncate,
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


@pytest.mark.parametrize("version", ["", "..", "../1", "1/../../../elsewhere/secret/1", "1\n", "-1", "*", "0x1"])
def test_a_version_that_leads_out_of_the_repository_finds_nothing(unchanged: Path, version: str) -> None:
    with pytest.raises(LatebindError):
        Repository(unchanged).open("tiny", version)


def test_a_model_behind_a_link_that_leads_out_is_not_served(repository: Path) -> None:
    (repository / "linked").symlink_to(repository.parent / "elsewhere" / "secret")
    (repository / "tiny" / "2").symlink_to(repository.parent / "elsewhere" / "secret" / "1")
    assert [listed.path for listed in Repository(repository).models()] == [repository / "tiny" / "1"]
    with pytest.raises(RepositoryError, match="leads out of the repository"):
        Repository(repository).open("linked")


def test_a_link_to_itself_is_no_model(repository: Path) -> None:
    (repository / "round").symlink_to(repository / "round")
    assert [listed.name for listed in Repository(repository).models()] == ["tiny"]
    with pytest.raises(LatebindError):
        Repository(repository).open("round")


def test_a_link_within_the_repository_is_followed(repository: Path) -> None:
    (repository / "tiny" / "2").symlink_to(repository / "tiny" / "1")
    assert Repository(repository).open("tiny").path == repository / "tiny" / "2"


def test_a_query_behind_a_link_that_leads_out_is_refused(repository: Path) -> None:
    (repository / "passwd.query.toml").symlink_to("/etc/passwd")
    with pytest.raises(RepositoryError, match="leads out of the repository"):
        find_queries(repository)


EXPRESSIONS = [
    "image.__class__",
    "__import__('os').system('true')",
    "().__class__.__bases__[0].__subclasses__()",
    "open('/etc/passwd')",
    "eval('1')",
    "(lambda: 1)()",
    "[c for c in [1]]",
    "9 ** 9 ** 9 ** 9",
    "'a' * 10 ** 10",
    "flag if flag else flag; import os",
    "f'{image.__init__.__globals__}'",
    "image := 1",
    "(" * 5000 + "flag" + ")" * 5000,
    "flag" + " and flag" * 100_000,
]


@pytest.mark.parametrize("expression", EXPRESSIONS, ids=lambda text: text[:40])
def test_a_query_with_python_for_an_expression_is_refused(expression: str) -> None:
    with pytest.raises(QueryError):
        tensor(expression)


@pytest.mark.parametrize(
    "text",
    [b"\xff\xfe", b"nodes = 1", b"[nodes", b"a.b.c=1\n" * 1000, b"x = " + b"[" * 5000, b"[nodes.a]\nmodels=['../x']"],
    ids=lambda text: repr(text[:20]),
)
def test_a_query_file_that_is_none_is_refused(repository: Path, text: bytes) -> None:
    (repository / "evil.query.toml").write_bytes(text)
    with pytest.raises(LatebindError):
        find_served(repository, ["evil"])
