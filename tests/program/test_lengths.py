"""Models whose rows differ in size: export, stages, verification over the range, and whether rows share a batch."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from latebind.domain.errors import ConfigError, ExportError
from latebind.domain.sizes import Dim, Size
from latebind.program.backends import compile_graph, compile_stages, exact_backends
from latebind.program.build import BuildReport, build_program
from latebind.program.cut import cut_points, find_carries, split, with_carries
from latebind.program.eager import in_eager
from latebind.program.export import export, export_any_size, run_module
from latebind.program.lengths import buckets_of, distinct, resized, tried_sizes
from latebind.program.load import load_program
from latebind.program.padding import together, turned
from latebind.program.program import Program
from latebind.program.verify import relative_error
from tests.program.modules import Reader

QUICK = [name for name in exact_backends() if name != "compile"]
L = Dim("L", 1, 24)
Sized = Mapping[str, Sequence[Size]]
WORDS: Sized = {"words": ["L"], "counts": ["L"]}


def sentences(rows: int, length: int) -> dict[str, Tensor]:
    counts = torch.ones(rows, length, dtype=torch.int64)
    counts[0, length // 2 + 1 :] = 0
    return {"words": torch.randint(0, 20, (rows, length)), "counts": counts}


class Tagger(nn.Module):
    """Tags each word by itself and those around it; reads words in one direction or in both."""

    def __init__(self, *, both: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(20, 8)
        self.lstm = nn.LSTM(8, 8, batch_first=True, bidirectional=both)
        self.head = nn.Linear(16 if both else 8, 5)

    def forward(self, words: Tensor) -> Tensor:
        """Map `(B, L) int64` to `(B, L, 5) float32`."""
        out: Tensor = self.head(self.lstm(self.words(words))[0])
        return out


class Unmasked(nn.Module):
    """Takes the mean over all words, whether padding or not."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, words: Tensor) -> Tensor:
        out: Tensor = self.head(self.words(words).mean(1))
        return out


class Weighed(nn.Module):
    """Weighs the words that count against each other. Where none does, all weigh the same, and so would padding."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.head = nn.Linear(8, 1)

    def forward(self, words: Tensor, counts: Tensor) -> Tensor:
        """Map `(B, L) int64` twice to `(B, 8) float32`."""
        x = self.words(words)
        weights = self.head(x).masked_fill(counts[:, :, None] == 0, -1e30).softmax(1)
        out: Tensor = (weights * x).sum(1)
        return out


class Unet(nn.Module):
    """Halves an image twice and doubles it again, beside what it was."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1)])
        self.up = nn.ModuleList([nn.ConvTranspose2d(8, 4, 2, 2), nn.ConvTranspose2d(8, 2, 2, 2)])

    def forward(self, image: Tensor) -> Tensor:
        """Map `(B, 2, H, W) float32` to the same."""
        wide = torch.relu(self.down[0](image))
        half = nn.functional.max_pool2d(wide, 2)
        quarter = nn.functional.max_pool2d(torch.relu(self.down[1](half)), 2)
        again = torch.cat([self.up[0](quarter), half], 1)
        out: Tensor = self.up[1](again)
        return out


class Speech(nn.Module):
    """Convolutions with strides over time, of which a score is the mean."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv1d(1, 8, 10, 5), nn.GELU(), nn.Conv1d(8, 8, 3, 2), nn.GELU())
        self.attend = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, sound: Tensor) -> Tensor:
        frames = self.layers(sound[:, None]).transpose(1, 2)
        out: Tensor = self.head(self.attend(frames).mean(1))
        return out


def short() -> Reader:
    module = Reader()
    del module.blocks[1:]
    return module


def words(rows: int) -> dict[str, Tensor]:
    return {"words": torch.randint(0, 20, (rows, 7))}


FAST = ("reader", "unmasked", "weighed")
# What makes a module and rows of it, its dimensions and sizes, and whether rows of several sizes share a batch.
Kind = tuple[Callable[[], nn.Module], Callable[[int], dict[str, Tensor]], Sequence[Dim], Sized, bool]
MODELS: Mapping[str, Kind] = {
    "reader": (short, lambda rows: sentences(rows, 7), [L], WORDS, True),
    "tagger": (Tagger, words, [L], {"words": ["L"]}, True),
    "tagger of both directions": (partial(Tagger, both=True), words, [L], {"words": ["L"]}, False),
    "unmasked": (Unmasked, words, [L], {"words": ["L"]}, False),
    "weighed": (Weighed, lambda rows: sentences(rows, 7), [L], WORDS, False),
    "unet": (
        Unet,
        lambda rows: {"image": torch.randn(rows, 2, 8, 12)},
        [Dim("H", 4, 32, 4), Dim("W", 4, 32, 4)],
        {"image": [2, "H", "W"]},
        False,
    ),
    "speech": (Speech, lambda rows: {"sound": torch.randn(rows, 80)}, [Dim("T", 40, 400)], {"sound": ["T"]}, False),
}


def compare(module: nn.Module, program: Program, examples: Mapping[str, Tensor], count: int) -> None:
    """Compare a program with its module at sizes over the whole range, for one row and for several."""
    for sizes in tried_sizes(program.spec.dims, count, seed=7):
        rows = resized(tuple(examples.values()), program.spec.inputs, sizes)
        for some in (tuple(tensor[:1] for tensor in rows), rows):
            with torch.inference_mode():
                found = program.run(*some)
            expected = run_module(module, dict(zip(examples, some, strict=True)))
            assert relative_error(found, expected) < 1e-5, sizes
            shapes = [tuple(tensor.shape[1:]) for tensor in found]
            assert shapes == [spec.shape_of(sizes) for spec in program.spec.outputs]


def build(
    module: nn.Module,
    examples: Mapping[str, Tensor],
    directory: Path,
    dims: Sequence[Dim],
    sizes: Sized,
    backends: Sequence[str],
) -> BuildReport:
    return build_program(
        module.eval(),
        examples,
        directory=directory,
        name="model",
        dims=dims,
        sizes=sizes,
        backends=backends,
        min_stage_seconds=0.0,
        max_overhead=None,
        max_batch=4,
    )


@pytest.mark.parametrize(
    "kind", [kind if kind in FAST else pytest.param(kind, marks=pytest.mark.slow) for kind in MODELS]
)
def test_stages_answer_as_the_module_does_at_any_size(tmp_path: Path, kind: str) -> None:
    make, rows, dims, sizes, pads = MODELS[kind]
    module, examples = make(), rows(3)
    report = build(module, examples, tmp_path, dims, sizes, QUICK)
    assert report.cut_points > 0
    for backend in QUICK:
        program = load_program(report.directory, backend=backend)
        assert (program.spec.dims, program.spec.pads) == (tuple(dims), pads)
        compare(module, program, examples, 4)


@pytest.mark.parametrize("backend", QUICK)
def test_rows_of_different_sizes_are_answered_together_as_alone_wherever_they_join(backend: str) -> None:
    torch.manual_seed(1)
    module, examples = Reader().eval(), sentences(4, 7)
    graph, weights = export(module, examples, dims=[L], sizes=WORDS)
    whole = with_carries(graph, turned(graph, weights, find_carries(graph)))
    graphs = split(whole, cut_points(whole)[::3])
    assert len(graphs) >= 4
    stages = compile_stages(graphs, weights, backend=backend, threads=1)
    rows = [tuple(sentences(1, length).values()) for length in (1, 5, 24, 23, 2)]
    for joins in ([0, 0, 0, 0, 0], [0, 1, 1, 2, 3], [3, 2, 1, 0, 0]):
        found = together(stages, graphs, graph.inputs, rows, joins)
        for row, answer in zip(rows, found, strict=True):
            assert relative_error(answer, run_module(module, row)) < 1e-5


class ByPlaces(nn.Module):
    """Attention whose mask is found by the places of pairs of words, as in transformers; `turned`, the last first."""

    def __init__(self, *, turned: bool = False) -> None:
        super().__init__()
        self.turned = turned

    def forward(self, words: Tensor, counts: Tensor) -> Tensor:
        """Map `(B, L, D) float32` and `(B, L) int64` to `(B, L, D) float32`."""
        rows, places = torch.arange(words.shape[0])[:, None, None, None], torch.arange(words.shape[1])
        keys = places.flip(0) if self.turned else places
        mask = (places[:, None] >= 0)[None, None] & (counts != 0)[rows, keys[None, None, None]]
        mask = mask.expand(words.shape[0], -1, words.shape[1], -1)
        return nn.functional.scaled_dot_product_attention(words[:, None], words[:, None], words[:, None], mask)[:, 0]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("sizes", [{"words": ["L", 8], "counts": ["L"]}, None])
def test_a_mask_found_by_places_becomes_that_of_the_words(turned: bool, sizes: Sized | None) -> None:
    module = ByPlaces(turned=turned)
    examples = {"words": torch.randn(3, 7, 8), "counts": sentences(3, 7)["counts"]}
    graph, weights = export(module, examples, dims=[L] if sizes else (), sizes=sizes)
    ops = {node.op for node in graph.nodes}
    assert ("aten.index.Tensor" in ops) == turned
    for length in (1, 7, 24) if sizes else (7,):
        rows = torch.randn(4, length, 8), sentences(4, length)["counts"]
        assert relative_error(in_eager(graph, weights)(*rows), run_module(module, rows)) < 1e-6


@pytest.mark.slow
@pytest.mark.skipif("compile" not in exact_backends(), reason="torch.compile needs a C++ compiler")
def test_a_compiled_stage_takes_any_size() -> None:
    module = Unmasked().eval()
    graph, weights = export(module, words(3), dims=[L], sizes={"words": ["L"]})
    stage = compile_graph(graph, weights, backend="compile", threads=1)
    for rows, length in ((1, 1), (1, 5), (3, 1), (3, 24), (2, 7)):
        given = torch.randint(0, 20, (rows, length))
        assert relative_error(stage(given), run_module(module, (given,))) < 1e-5


class OneByOne(nn.Module):
    """Adds words up in a loop, which an export takes for as many as it sees; `masked`, those that count."""

    def __init__(self, *, masked: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.masked = masked
        self.words = nn.Embedding(20, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, words: Tensor, counts: Tensor) -> dict[str, Tensor]:
        """Map `(B, L) int64` twice to `(B, 3)`, `(B, L, 8)` and `(B, L // 2) float32`."""
        x = self.words(words)
        if self.masked:
            x = x.masked_fill(counts[:, :, None] == 0, 0.0)
        whole, places = torch.zeros(words.shape[0], 8), words.shape[1]
        for place in range(places):  # one by one
            whole = whole + x[:, place]
        return {"class": self.head(whole / 10), "words": x, "pairs": x[:, : places // 2 * 2 : 2, 0]}


def test_where_code_fixes_a_length_rows_are_padded_to_one_of_several(tmp_path: Path) -> None:
    module, examples = OneByOne(masked=True), sentences(3, 7)
    report = build(module, examples, tmp_path, [L], WORDS, QUICK)
    told = dict(report.lines)
    assert told["a graph for each"] == "L of 8, 10, 12, 15, 19, 24; rows are padded to the next"
    assert "test_lengths.py, line" in told["because"]
    assert "# one by one" in told["because"]
    for backend in QUICK:
        program = load_program(report.directory, backend=backend)
        assert (program.spec.dims, program.spec.pads) == ((L,), True)
        compare(module, program.twin(), examples, 8)
    rows = [tuple(sentences(1, length).values()) for length in (1, 5, 24, 23, 9)]
    found = together(program.stages, program.graphs, program.spec.inputs, rows, [0] * len(rows))
    for row, answer in zip(rows, found, strict=True):
        assert relative_error(answer, run_module(module, row)) < 1e-5


def test_where_filling_up_changes_answers_each_of_a_few_sizes_has_a_graph(tmp_path: Path) -> None:
    module, dim = OneByOne(masked=False), Dim("L", 3, 24, 3)
    report = build(module, sentences(3, 6), tmp_path / "few", [dim], WORDS, ["eager"])
    program = load_program(report.directory)
    assert (len(program.graphs[0].buckets), program.spec.pads) == (8, False)
    compare(module, program, sentences(3, 6), 8)
    with pytest.raises(ExportError, match=r"# one by one.*changes their answers: declare at most 16 sizes"):
        build(module, sentences(3, 6), tmp_path / "many", [L], WORDS, ["eager"])
    both = [Dim("L", 1, 5), Dim("W", 1, 4)]
    assert not (tmp_path / "many").exists()
    with pytest.raises(ConfigError, match=r"L=1..5 and W=1..4 have more than 16 sizes"):
        buckets_of(both)
    assert [each["L"] * each["W"] for each in buckets_of([both[0], Dim("W", 2, 4, 2)])] == [
        2,
        4,
        4,
        6,
        8,
        8,
        10,
        12,
        16,
        20,
    ]


class Positions(nn.Module):
    """Has a position for each of so many words."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.positions = nn.Parameter(torch.zeros(1, 7, 8))

    def forward(self, words: Tensor) -> Tensor:
        out: Tensor = (self.words(words) + self.positions).mean(1)  # it has 7 words
        return out


class FirstWords(nn.Module):
    """Takes texts of more than four words."""

    def forward(self, words: Tensor) -> Tensor:
        if words.shape[1] > 4:
            return words[:, :4].float()
        return words.float().sum(1, keepdim=True)


class Picks(nn.Module):
    """Says something of the word at a place."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(20, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, words: Tensor, at: Tensor) -> Tensor:
        """Map `(B, L) int64` and `(B, 1) int64` to `(B, 3) float32`."""
        x = torch.tanh(self.head(self.words(words)))
        return x[torch.arange(words.shape[0]), at[:, 0]]


def test_a_place_past_the_end_of_a_row_raises_though_longer_rows_have_it(tmp_path: Path) -> None:
    module, examples = Picks().eval(), {**words(3), "at": torch.zeros(3, 1, dtype=torch.int64)}
    report = build(module, examples, tmp_path, [L], {"words": ["L"]}, ["eager"])
    program = load_program(report.directory)
    assert not program.spec.pads
    assert (program.spec.inputs[1].least, program.spec.inputs[1].limit) == (-24, 24)  # of the longest row
    with pytest.raises(ExportError, match=r"with L=1 .*index 6 is out of bounds.* such as 0 for a position"):
        build(module, {**words(3), "at": torch.full((3, 1), 6)}, tmp_path, [L], {"words": ["L"]}, ["eager"])
    for length in (1, 7, 24):
        given = torch.randint(0, 20, (2, length))
        last = torch.tensor([[length - 1], [-length]])
        with torch.inference_mode():
            found = program.run(given, last)
        assert relative_error(found, run_module(module, (given, last))) < 1e-5
        with pytest.raises((IndexError, RuntimeError)), torch.inference_mode():
            program.run(given, torch.full((2, 1), length))


class ButNotSix(nn.Module):
    """Takes texts of any other length."""

    def forward(self, words: Tensor) -> Tensor:
        if words.shape[1] == 6:
            raise ValueError("six words")
        return words.float().sum(1, keepdim=True)


class Table(nn.Module):
    """Looks up a position for each word, of which it has sixteen."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Embedding(16, 8)

    def forward(self, words: Tensor) -> Tensor:
        out: Tensor = self.places(torch.arange(words.shape[1])) + words[..., None]  # too long for the table
        return out


class Window(nn.Module):
    """Looks at four words at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = nn.Conv1d(1, 2, 4)

    def forward(self, words: Tensor) -> Tensor:
        out: Tensor = self.looks(words.float()[:, None]).amax(2)  # too short for the window
        return out


@pytest.mark.parametrize(
    ("module", "dims", "sizes", "says"),
    [
        (ButNotSix(), [L], {"words": ["L"]}, r"exported: .* guard L != 6\. .*declare a range without them"),
        (Table(), [L], {"words": ["L"]}, r"with L=24 \(.*test_lengths.py, line \d+: .* # too long for the table"),
        (Window(), [L], {"words": ["L"]}, r"test_lengths.py, line \d+: .* # too short for the window"),
        (Positions(), [L], {"words": ["L"]}, r"test_lengths.py, line \d+: .* # it has 7 words.*fixes a size"),
        (
            FirstWords(),
            [L],
            {"words": ["L"]},
            r"test_lengths.py, line \d+: if words.shape\[1\] > 4.*5 <= L and L <= 24",
        ),
        (Unmasked(), [L, Dim("K", 1, 3)], {"words": ["L"]}, "no input has the dimension K"),
        (Unmasked(), [L], {"words": ["M"]}, "give a number or one of L"),
        (Unmasked(), [L], {"word": ["L"]}, "the inputs are words"),
        (Unmasked(), [Dim("L", 8, 24)], {"words": ["L"]}, "L=7: it must be 8 to 24"),
        (Unmasked(), [Dim("L", 0, 24)], {"words": ["L"]}, "L=0..24:1: a row has at least 1"),
        (Unmasked(), [Dim("L", 7, 7)], {"words": ["L"]}, "write 7 instead of L"),
    ],
)
def test_what_cannot_be_served_at_any_size_is_refused_with_the_line_or_the_range(
    module: nn.Module, dims: Sequence[Dim], sizes: Sized, says: str, tmp_path: Path
) -> None:
    with pytest.raises((ExportError, ConfigError), match=says):
        build(module, words(3), tmp_path, dims, sizes, ["eager"])
    assert not list(tmp_path.iterdir())


def test_a_module_that_raises_at_a_size_that_is_declared_is_refused_with_the_size_and_the_line(tmp_path: Path) -> None:
    examples = {"words": torch.zeros(2, 9, dtype=torch.int64)}
    says = r"inputs with L=9 \(.*test_lengths.py, line \d+: .* # it has 7 words.*write x.shape\[1\] where"
    with pytest.raises(ExportError, match=says):
        build(Positions(), examples, tmp_path, [L], {"words": ["L"]}, ["eager"])


@pytest.mark.skipif("openvino" not in exact_backends(), reason="OpenVINO is not installed")
def test_a_twin_answers_rows_of_any_size_too(tmp_path: Path) -> None:
    module, examples = Unmasked(), words(3)
    report = build(module, examples, tmp_path, [L], {"words": ["L"]}, ["openvino"])
    compare(module, load_program(report.directory).twin(), examples, 2)


def test_sizes_that_are_declared_alike_in_steps_are_exported_as_two_of_several_steps() -> None:
    dims = Dim("H", 32, 1024, 32), Dim("W", 32, 1024, 32)
    assert distinct(dims, {"H": 192, "W": 192}, 2) == {"H": 192, "W": 64}
    assert distinct(dims, {"H": 32, "W": 96}, 64) == {"H": 96, "W": 128}
    enlarges = nn.Sequential(nn.Conv2d(3, 8, 4, stride=4), nn.ReLU(), nn.PixelShuffle(2))
    rows = {"image": torch.randn(2, 3, 192, 192)}
    exported, fixed = export_any_size(enlarges.eval(), rows, dims=dims, sizes={"image": [3, "H", "W"]})
    assert not fixed
    assert [dim.name for dim in exported.graph.dims] == ["H", "W"]
