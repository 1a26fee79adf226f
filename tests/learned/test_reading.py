"""What lookups read where rows differ in size: the same alone and beside longer rows, whatever is filled up."""

import numpy as np
import pytest
import torch

from latebind.domain.model import TensorSpec
from latebind.domain.sizes import Dim
from latebind.learned.reading import Reading, reading
from latebind.program.graph import Graph, Node, TensorType, Value

WIDTH, LONGEST = 5, 40


def taken(*sizes: int | str, dtype: str = "float32", largest: int = LONGEST) -> Graph:
    shape = tuple(size if isinstance(size, int) else largest for size in sizes)
    named = tuple(sizes) if any(isinstance(size, str) for size in sizes) else ()
    return Graph((TensorSpec("x", dtype, shape, sizes=named),), (), (), (Dim("L", 1, largest),))


def carrying(*, masked: bool) -> Graph:
    """A stage that takes words with one number more, which it compares with 0 or takes as it is."""
    words = TensorType("float32", (None, "L", WIDTH))
    number = TensorType("float32", (None, "L"))
    nodes = [
        Node("words", "aten.slice.Tensor", (Value("x"), 2, 0, WIDTH), (), words),
        Node("number", "aten.select.int", (Value("x"), 2, WIDTH), (), number),
    ]
    if masked:
        nodes.append(Node("kept", "aten.ne.Scalar", (Value("number"), 0), (), TensorType("bool", (None, "L"))))
    spec = TensorSpec("x", "float32", (LONGEST, WIDTH + 1), sizes=("L", WIDTH + 1))
    return Graph((spec,), tuple(nodes), (), (Dim("L", 1, LONGEST),))


@pytest.mark.parametrize(
    ("graph", "axes", "width"),
    [
        (taken(7, 3), (), 0),
        (taken("L"), (1,), 2),
        (taken("L", WIDTH), (1,), 2 * WIDTH),
        (taken(6, "2*L"), (2,), 12),
        (taken(6, "L", 8), (2, 3), 12),  # an image is pooled as a whole
        (taken(6, "L", "L//2"), (2, 3), 12),
        (taken("L", 4, 3), (1,), 24),
        (taken("L", dtype="int64"), (), 0),
    ],
)
def test_what_varies_is_pooled_to_means_and_maxima(graph: Graph, axes: tuple[int, ...], width: int) -> None:
    found = reading(graph, pads=True)
    assert found.axes == axes
    if not axes:
        assert found.shape == graph.inputs[0].shape
        return
    assert found.shape == (width,)
    shape = graph.inputs[0].shape_of({"L": 10})
    rows = torch.randn(3, *shape)
    wanted = torch.cat([rows.mean(axes).reshape(3, -1), rows.amax(axes).reshape(3, -1)], dim=1)
    torch.testing.assert_close(found(rows), wanted)


def test_a_row_is_read_alike_alone_and_beside_longer_ones_bit_for_bit_whatever_is_filled_up() -> None:
    read = reading(taken("L", WIDTH), pads=True)
    random = np.random.default_rng(0)
    for filled in (0.0, 1e30, np.nan):
        lengths = random.integers(1, LONGEST + 1, 20).tolist()
        rows = [torch.randn(length, WIDTH) for length in lengths]
        batch = torch.full((len(rows), max(lengths), WIDTH), filled)
        for place, row in enumerate(rows):
            batch[place, : len(row)] = row
        found = read(batch, [tuple(row.shape) for row in rows])
        for place, row in enumerate(rows):
            assert torch.equal(found[place], read(row[None])[0])


@pytest.mark.parametrize("pads", [True, False])
@pytest.mark.parametrize("masked", [True, False])
def test_what_a_client_has_filled_up_and_masked_does_not_count(masked: bool, pads: bool) -> None:
    read = reading(carrying(masked=masked), pads=pads)
    assert read.width == WIDTH
    assert read.marks == (
        slice(WIDTH, WIDTH + 1) if masked or pads else ()
    )  # else a number that is 0 may count all the same
    row = torch.randn(1, 9, WIDTH + 1)
    row[..., WIDTH] = 1.0
    alone = read(row)
    assert alone.shape == (1, 2 * WIDTH)
    longer = torch.cat([torch.full((1, 4, WIDTH + 1), 7.0), row, torch.full((1, 3, WIDTH + 1), torch.nan)], dim=1)
    longer[:, :4, WIDTH] = longer[:, -3:, WIDTH] = 0.0  # on both sides
    if read.marks:
        torch.testing.assert_close(read(longer), alone)
        torch.testing.assert_close(read(longer, [(16, WIDTH + 1)]), alone)
    hidden = row.clone()
    hidden[..., WIDTH] = 0.0
    assert bool((read(hidden) == 0).all()) == bool(read.marks)


def test_an_activation_that_is_read_as_it_is_carries_nothing() -> None:
    graph = carrying(masked=True)
    whole = Node("whole", "aten.relu.default", (Value("x"),), (), TensorType("float32", (None, "L", WIDTH + 1)))
    found = reading(Graph(graph.inputs, (*graph.nodes, whole), (), graph.dims), pads=True)
    assert found == Reading((2 * (WIDTH + 1),), (1,))
