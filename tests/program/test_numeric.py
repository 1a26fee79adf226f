"""What numpy computes of a graph is what torch computes, to the last bit; what it does not know is named."""

from math import inf, prod

import numpy as np
import pytest
import torch

from latebind.domain.model import TensorSpec
from latebind.program.arrays import array_of
from latebind.program.eager import in_eager
from latebind.program.graph import Argument, Constant, Graph, Node, TensorType, Value, Weight
from latebind.program.numeric import EVERY, FLOATING, LookUp, computed, lacking

INPUTS = tuple(TensorSpec(name, name, (3, 4)) for name in ("int64", "int32", "int8", "uint8", "bool", "float32"))
WIDE, NARROW, SMALL, BYTES, MASK, FLOATS = (Value(spec.name) for spec in INPUTS)
TABLE = Weight("table")
ROWS = 5

Case = tuple[str, tuple[Argument, ...], str, tuple[tuple[str, Argument], ...]]


def to(dtype: str) -> tuple[tuple[str, Argument], ...]:
    return (("dtype", Constant("dtype", dtype)),)


CASES: list[Case] = [
    *((f"aten.{name}.Tensor", (WIDE, NARROW), "bool", ()) for name in ("eq", "ne", "lt", "le", "gt", "ge")),
    *((f"aten.{name}.Scalar", (SMALL, 3), "bool", ()) for name in ("eq", "ne", "lt", "le", "gt", "ge")),
    *((f"aten.{name}.Tensor", (NARROW, WIDE), "int64", ()) for name in ("add", "sub", "mul")),
    *((f"aten.{name}.Tensor", (BYTES, BYTES), "uint8", ()) for name in ("add", "sub", "mul")),
    *((f"aten.{name}.Tensor", (SMALL, BYTES), "int16", ()) for name in ("add", "sub", "mul")),
    *((f"aten.{name}.Tensor", (FLOATS, FLOATS), "float32", ()) for name in ("add", "sub", "mul")),
    *((f"aten.{name}.Tensor", (WIDE, -7), "int64", ()) for name in ("add", "sub", "mul")),
    *((f"aten.bitwise_{name}.Tensor", (WIDE, NARROW), "int64", ()) for name in ("and", "or")),
    *((f"aten.logical_{name}.default", (MASK, MASK), "bool", ()) for name in ("and", "or")),
    ("aten.bitwise_not.default", (MASK,), "bool", ()),
    ("aten.logical_not.default", (MASK,), "bool", ()),
    ("aten.any.dim", (MASK, -1, True), "bool", ()),
    ("aten.cumsum.default", (MASK, 1), "int64", ()),
    ("aten.cumsum.default", (SMALL, 2), "int64", ()),
    ("aten.where.self", (MASK, WIDE, NARROW), "int64", ()),
    ("aten.masked_fill.Scalar", (WIDE, MASK, -3), "int64", ()),
    ("aten._to_copy.default", (WIDE,), "int32", to("int32")),
    ("aten._to_copy.default", (WIDE,), "float32", to("float32")),
    ("aten._to_copy.default", (WIDE,), "bool", to("bool")),
    ("aten._to_copy.default", (MASK,), "float32", to("float32")),
    ("aten.unsqueeze.default", (WIDE, -1), "int64", ()),
    ("aten.permute.default", (FLOATS, (0, 2, 1)), "float32", ()),
    ("aten.slice.Tensor", (FLOATS, 2, 1, 9223372036854775807, 2), "float32", ()),
    ("aten.select.int", (WIDE, 1, 2), "int64", ()),
    ("aten.expand.default", (WIDE, (2, -1, 3, 4)), "int64", ()),
    ("aten.view.default", (FLOATS, (-1, 12)), "float32", ()),
    ("aten.cat.default", ((FLOATS, FLOATS), 2), "float32", ()),
    ("aten.minimum.default", (WIDE, NARROW), "int64", ()),
    ("aten.arange.start_step", (1, 9, 2), "int64", to("int64")),
    ("aten.where.self", (MASK, FLOATS, FLOATS), "float32", ()),
    ("aten.masked_fill.Scalar", (FLOATS, MASK, -inf), "float32", ()),
    ("aten.full_like.default", (MASK, True), "bool", ()),
    ("aten.full_like.default", (FLOATS, 0.1), "float32", ()),
    ("aten.full.default", ((2, 3), 4), "int64", to("int64")),
]


def graph_of(case: Case) -> Graph:
    op, args, dtype, kwargs = case
    return Graph(INPUTS, (Node("made", op, args, kwargs, TensorType(dtype, (None, 1))),), (("y", "made"),))


def rows() -> tuple[torch.Tensor, ...]:
    """Numbers over all of each dtype, and floats of all sizes."""
    generator, found = torch.Generator().manual_seed(0), list[torch.Tensor]()
    for spec in INPUTS:
        dtype: torch.dtype = getattr(torch, spec.dtype)
        shape = (ROWS, *spec.shape)
        if dtype == torch.bool:
            found.append(torch.rand(shape, generator=generator) < 0.5)
        elif dtype.is_floating_point:
            found.append(torch.randn(shape, generator=generator) * 10.0 ** torch.randint(-30, 30, shape))
        else:
            limits = torch.iinfo(dtype)
            drawn = torch.randint(max(limits.min, -(1 << 60)), min(limits.max, 1 << 60), shape, generator=generator)
            found.append(drawn.to(dtype))
    return tuple(found)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[2]}")
def test_it_computes_what_torch_does(case: Case) -> None:
    graph, given = graph_of(case), rows()
    assert lacking(graph) == ""
    with np.errstate(over="ignore"):
        (expected,), (found,) = in_eager(graph, {})(*given), computed(graph, {})(*map(array_of, given))
    assert found.dtype == array_of(expected).dtype
    np.testing.assert_array_equal(found, array_of(expected))


def test_every_operator_but_those_of_tables_is_tried() -> None:
    tried = {op for op, *_ in CASES}
    names = {name.rpartition(".")[0] for name in EVERY if name.startswith("aten.")}
    apart = {"aten.sym_size", "aten.clone", "aten.squeeze", "aten.maximum", "aten.scalar_tensor", "aten.gather"}
    assert names - {op.rpartition(".")[0] for op in tried} == {*apart, "aten.embedding"}


@pytest.mark.parametrize(
    "case",
    [
        ("aten.add.Tensor", (WIDE, NARROW), "int64", (("alpha", 2),)),
        ("aten.ne.Scalar", (WIDE, 0.5), "bool", ()),
        ("aten.add.Scalar", (BYTES, 300), "uint8", ()),
        ("aten.cumsum.default", (FLOATS, 1), "float32", ()),
        ("aten._to_copy.default", (FLOATS,), "int64", to("int64")),
        ("aten._to_copy.default", (WIDE,), "bfloat16", to("bfloat16")),
        ("aten.remainder.Scalar", (WIDE, 3), "int64", ()),
    ],
    ids=lambda case: f"{case[0]}-{case[2]}",
)
def test_what_it_does_not_compute_alike_it_lacks(case: Case) -> None:
    assert lacking(graph_of(case)) == case[0]
    assert set(FLOATING) <= set(EVERY)


def test_words_are_looked_up_and_those_of_no_row_refused() -> None:
    words = TensorSpec("words", "int64", (4,))
    made = Node("made", "aten.embedding.default", (TABLE, Value("words")), (), TensorType("float32", (None, 4, 3)))
    table = torch.randn(6, 3)
    stage = LookUp(Graph((words,), (made,), (("y", "made"),)), {"table": table.numpy()})
    given = np.array([[0, 5, 2, 2]])
    np.testing.assert_array_equal(stage(given)[0], table[torch.from_numpy(given)])
    for wrong in (-1, 6):
        with pytest.raises(IndexError):
            stage(np.array([[0, wrong, 0, 0]]))


def test_a_view_of_an_input_is_copied() -> None:
    flat = Node(
        "flat", "aten.view.default", (FLOATS, (-1, prod(INPUTS[-1].shape))), (), TensorType("float32", (None, 12))
    )
    given = [array_of(tensor) for tensor in rows()]
    (found,) = LookUp(Graph(INPUTS, (flat,), (("y", "flat"),)), {})(*given)
    assert not np.may_share_memory(found, given[-1])
