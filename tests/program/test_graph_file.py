from typing import Any

import msgspec
import pytest
import torch

from latebind.domain.errors import RepositoryError
from latebind.program.eager import in_eager, rebuild
from latebind.program.graph import Constant, Graph, Node, Value, graph_from_json, graph_to_json
from latebind.program.operators import resolve

WORDS = [{"name": "L", "least": 1, "most": 8, "step": 1}]  # a named dimension
GOOD: dict[str, Any] = {
    "format": 1,
    "inputs": [{"name": "x", "dtype": "float32", "shape": [4]}],
    "nodes": [
        {
            "name": "a",
            "op": "aten.relu.default",
            "args": [{"value": "x"}],
            "type": {"dtype": "float32", "shape": [None, 4]},
        }
    ],
    "outputs": [["y", "a"]],
}


def written(**changes: Any) -> bytes:
    """The small valid graph with some fields replaced; `op` and `args` replace those of its node."""
    node = GOOD["nodes"][0] | {
        key: changes.pop(key) for key in ("op", "args", "name", "kwargs", "type") if key in changes
    }
    return msgspec.json.encode(GOOD | {"nodes": [node]} | changes)


def test_the_small_graph_that_the_hostile_ones_are_made_from_is_valid() -> None:
    graph = graph_from_json(written())
    assert torch.equal(in_eager(graph, {})(torch.tensor([[-1.0, 2, -3, 4]]))[0], torch.tensor([[0.0, 2, 0, 4]]))


def test_sizes_in_terms_of_named_dimensions_survive() -> None:
    taken = [{"name": "x", "dtype": "float32", "shape": ["L", 2]}]
    graph = graph_from_json(
        written(dims=WORDS, inputs=taken, type={"dtype": "float32", "shape": [None, "(L + 1) // 2", 2]})
    )
    assert graph_from_json(graph_to_json(graph)) == graph
    (x,), (y,) = graph.inputs, graph.output_specs()
    assert (x.sizes, x.shape, y.sizes, y.shape) == (("L", 2), (8, 2), ("(L + 1) // 2", 2), (4, 2))
    assert [y.shape_of({"L": size}) for size in (1, 2, 3)] == [(1, 2), (1, 2), (2, 2)]


def bucket(size: int, **changes: Any) -> dict[str, Any]:
    """The small graph for rows of a fixed size."""
    taken = [{"name": "x", "dtype": "float32", "shape": [size]}]
    found: dict[str, Any] = msgspec.json.decode(written(inputs=taken, type={"dtype": "float32", "shape": [None, size]}))
    return found | changes


def of_buckets(*buckets: dict[str, Any], **changes: Any) -> bytes:
    taken = [{"name": "x", "dtype": "float32", "shape": ["L"]}]
    return msgspec.json.encode(GOOD | {"inputs": taken, "nodes": [], "dims": WORDS, "rungs": buckets} | changes)


def test_graphs_for_some_sizes_survive_as_one_and_rows_are_filled_up_to_the_next() -> None:
    graph = graph_from_json(of_buckets(bucket(3), bucket(8)))
    assert graph_from_json(graph_to_json(graph)) == graph
    assert [spec.sizes for spec in graph.output_specs()] == [("L",)]
    run = in_eager(graph, {})
    for size in (1, 3, 4, 8):
        rows = torch.randn(2, size)
        assert torch.equal(run(rows)[0], rows.relu())
    with pytest.raises(ValueError, match="larger than any"):
        run(torch.randn(2, 9))


@pytest.mark.parametrize(
    "data",
    [
        of_buckets(bucket(3), bucket(7)),
        of_buckets(bucket(3), bucket(8, outputs=[["z", "a"]])),
        of_buckets(bucket(3), bucket(8), nodes=bucket(8)["nodes"]),
        of_buckets(bucket(3), bucket(8), dims=[]),
        of_buckets(bucket(3), bucket(8) | {"rungs": [bucket(8)]}),
        of_buckets(bucket(3), bucket(8, inputs=[{"name": "x", "dtype": "float32", "shape": []}])),
        of_buckets(bucket(3), bucket(8, nodes=[])),
        of_buckets(bucket(2) | {"nodes": bucket(5)["nodes"]}, bucket(4), bucket(8)),
    ],
)
def test_graphs_for_some_sizes_that_are_not_the_same_for_each_are_refused(data: bytes) -> None:
    with pytest.raises(RepositoryError, match=r"of the graph|do not fit"):
        graph_from_json(data)


def test_infinities_and_torch_constants_survive() -> None:
    node = Node("a", "aten.full_like.default", (Value("x"), float("-inf")), (("dtype", Constant("dtype", "float64")),))
    graph = graph_from_json(written())
    changed = Graph(graph.inputs, (node, *(n for n in graph.nodes if n.name != "a")), ())
    read = msgspec.json.decode(graph_to_json(changed))["nodes"][0]
    assert read["args"][1] == {"float": "-inf"}
    assert read["kwargs"] == {"dtype": {"dtype": "float64"}}


@pytest.mark.parametrize(
    "name",
    [
        "aten.from_file.default",
        "aten.relu_.default",
        "aten.add.out",
        "aten.resize_.default",
        "aten.empty.memory_format",
        "aten.as_strided.default",
        "aten.rand.default",
        "aten.randn.default",
        "aten.convolution_backward.default",
        "aten._local_scalar_dense.default",
        "aten.nothing.default",
        "aten.relu",
        "aten.relu.default.__class__",
        "aten.__init__.__globals__",
        "prims.add.default",
        "mkldnn._linear_pointwise.default",
        "os.system",
        "__import__",
        "eval",
        "",
    ],
)
def test_an_operator_off_the_list_is_refused_by_name(name: str) -> None:
    with pytest.raises(RepositoryError, match="not on the list of operators"):
        graph_from_json(written(op=name))


def test_every_operator_that_resolves_is_a_pure_aten_operator() -> None:
    listed = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")]
    allowed = []
    for name in listed:
        base, _, overload = name.removeprefix("aten::").partition(".")
        try:
            allowed.append(resolve(f"aten.{base}.{overload or 'default'}"))
        except RepositoryError:
            continue
    assert 200 < len(allowed) < 500
    assert not [op for op in allowed if op._schema.is_mutable]  # type: ignore[attr-defined]
    assert not [op for op in allowed if "file" in str(op)]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"not json", "not valid"),
        (b"[]", "not valid"),
        (b'{"format": 1}', "not valid"),
        (b"\xff\xfe", "not valid"),
        (b"[" * 100_000, "not valid"),
        (written(format=2), "format 2"),
        (written(extra=1), "not valid"),
        (written(inputs=[]), "'x', which no earlier node computes"),
        (written(inputs=[{"name": "x", "dtype": "object", "shape": [4]}]), "dtype 'object'"),
        (written(inputs=[{"name": "x", "dtype": "float32", "shape": [-4]}]), r"shape \[-4\]"),
        (written(outputs=[["y", "nowhere"]]), "'nowhere', which is not a tensor"),
        (written(outputs=[]), "no input or no output"),
        (written(args=[{"value": "later"}]), "'later', which no earlier node computes"),
        (written(args=[{"value": "a"}]), "'a', which no earlier node computes"),
        (written(args=[{"value": "x", "weight": "w"}]), "no known form"),
        (written(args=[{"value": 3}]), "unknown constant"),
        (written(args=[{"weight": "../../etc/passwd"}]), "unknown constant"),
        (written(args=[{"device": "cuda"}]), "unknown constant"),
        (written(args=[{"dtype": "Tensor"}]), "unknown constant"),
        (written(args=[{"memory_format": "load"}]), "unknown constant"),
        (written(args=[{"call": "os.system"}]), "unknown constant"),
        (written(args=[[[[[[1]]]]]]), "no known form"),
        (written(dims=[WORDS[0] | {"most": 0}]), "are invalid"),
        (written(dims=WORDS * 2), "are invalid"),
        (written(dims=WORDS, inputs=[{"name": "x", "dtype": "float32", "shape": ["2*L"]}]), r"shape \['2\*L'\]"),
        (written(dims=WORDS, inputs=[{"name": "x", "dtype": "float32", "shape": ["M"]}]), r"shape \['M'\]"),
        (written(dims=WORDS, type={"dtype": "float32", "shape": [None, "M + 1"]}), "not supported"),
        (written(dims=WORDS, type={"dtype": "float32", "shape": [None, "L - 2"]}), "not supported"),
        (written(dims=WORDS, type={"dtype": "float32", "shape": [None, "L ** 2"]}), "not supported"),
        (written(dims=WORDS, type={"dtype": "float32", "shape": [None, "L // 0"]}), "not supported"),
        (written(dims=WORDS, type={"dtype": "float32", "shape": [None, "(" * 5000 + ")" * 5000]}), "not supported"),
        (written(name="x"), "twice"),
        (written(name="a\nimport os"), "not a valid name"),
    ],
)
def test_a_broken_or_hostile_graph_file_is_refused(data: bytes, says: str) -> None:
    with pytest.raises(RepositoryError, match=says):
        graph_from_json(data)


def test_text_of_the_file_never_reaches_generated_code() -> None:
    graph = graph_from_json(written(name="exec", args=[{"value": "x"}], outputs=[["print", "exec"]]))
    assert "exec" not in rebuild(graph, {}).code


def test_a_missing_weight_is_named() -> None:
    graph = graph_from_json(written(op="aten.add.Tensor", args=[{"value": "x"}, {"weight": "bias"}]))
    with pytest.raises(RepositoryError, match="'bias'"):
        rebuild(graph, {})
