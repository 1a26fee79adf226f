"""Models for the ledger, whose correct answers are known to the last bit, and a server with them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import torch
from torch import Tensor, nn

from latebind.bench.ledger.play import Target
from latebind.bench.ledger.questions import END, LONGEST, MARKS, TURN, WIDTH, WORDS
from latebind.bench.server import launched
from latebind.domain.costs import Curve
from latebind.domain.model import TensorSpec
from latebind.learned.head import Head
from latebind.learned.metadata import FORMAT, StoredCaches, StoredLookup
from latebind.learned.stored import LookupFiles, write_caches
from latebind.program.build import BuildReport, build_program
from latebind.program.graph import Graph, Node, TensorType, Value
from latebind.sequence.build import build_sequence

CHAIN, SLOW = (64, 3), (256, 6, 1024)  # width, depth, and copies of a row
LARGEST = 16  # rows of a batch
THRESHOLD = 15.0  # of the score, at most 16: one value far above all others is past it, digits alone are not
QUERY = """
[nodes.first]
models = ["affine"]
[nodes.second]
models = ["chain"]
inputs.x = "first.y"
[outputs]
y = "second.y"
"""


class Affine(nn.Module):
    """Multiplies its input by two and adds one."""

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, WIDTH) float32` to the same shape."""
        return x * 2.0 + 1.0


class Turning(nn.Module):
    """Linear layers that only move values to other places, so that answers are exact whatever the batch.

    With many `copies` of each row, a batch takes as long as its rows do one by one: the engine is what has too little
    time then, not what reads and writes messages.
    """

    def __init__(self, width: int, depth: int, copies: int = 0) -> None:
        super().__init__()
        one, self.copies = torch.eye(width), copies
        moving = [_linear(one.roll(1, dims=0)) for _ in range(depth)]
        self.layers = nn.ModuleList([_linear(one[:, :WIDTH]), *moving, _linear(_last(width, depth))])
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, WIDTH) float32` to the same values, `TURN` places on."""
        first, *between, last = self.layers
        x = first(x)
        if self.copies:
            x = x[:, None, :].repeat(1, self.copies, 1)
        for layer in between:
            x = layer(x)
        answer: Tensor = last(x[:, 0] if self.copies else x)
        return answer


class Backwards(nn.Module):
    """Returns the words of its input in reverse order, each shifted by its position in the answer."""

    padding, start, end = 0, 1, END
    longest_output = LONGEST + 1

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WORDS)
        nn.init.eye_(self.embedding.weight)
        self.blank: dict[str, tuple[int, ...]] = {}
        self.eval()

    def encode(self, tokens: Tensor, length: Tensor) -> dict[str, Tensor]:
        """Return the words `(B, L, WORDS)` one-hot, and their number."""
        return {"length": length, "words": self.embedding(tokens)}

    def step(self, token: Tensor, position: Tensor, **state: Tensor) -> dict[str, Tensor]:
        """Return the logits of the next word."""
        words, length = state["words"], state["length"]
        here = (torch.arange(words.shape[1]) == (length - 1 - position)[:, None]).to(words.dtype)
        numbers = torch.arange(WORDS, dtype=words.dtype)
        word = (words * here[:, :, None]).sum(dim=1) @ numbers
        moved = MARKS + torch.remainder(word - MARKS + position + 0 * token, WORDS - MARKS)
        wanted = torch.where(position >= length, float(END), moved)
        return {"logits": -((numbers - wanted[:, None]) ** 2)}


@contextmanager
def serving(folder: Path, models: Sequence[str], options: Sequence[str] = ()) -> Iterator[Target]:
    """Make these models in a folder and serve them with these options of `latebind serve`."""
    speaks_grpc = ("--grpc-port", "0") if find_spec("tritonclient") is not None else ()
    with launched(build(folder / "models", models), *speaks_grpc, *options, log=folder / "log") as server:
        yield Target("127.0.0.1", urlsplit(server.url).port or 80, server.grpc, server.process.pid)


def build(folder: Path, models: Sequence[str]) -> Path:
    """Make a repository with these models of `questions.KINDS`, and what they need, and return it."""
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    for name in sorted({*models, *(("affine", "chain") if "relay" in models else ())}):
        match name:
            case "affine":
                _build(Affine(), folder, name)
            case "chain":
                _with_cache(_build(Turning(*CHAIN), folder, name))
            case "slow":
                _build(Turning(*SLOW), folder, name)
            case "words":
                sentences = torch.zeros(4, LONGEST, dtype=torch.int64)
                for row, length in enumerate((8, 9, 10, LONGEST)):
                    sentences[row, :length] = torch.randint(MARKS, WORDS, (length,))
                place = folder / name / "1"
                build_sequence(
                    Backwards(), sentences, directory=place, name=name, backends=["eager"], max_batch=LARGEST
                )
            case "relay":
                (folder / "relay.query.toml").write_text(QUERY)
    return folder


def _build(module: nn.Module, folder: Path, name: str) -> BuildReport:
    return build_program(
        module,
        {"x": torch.randint(0, 16, (4, WIDTH)).float()},
        directory=folder / name / "1",
        name=name,
        backends=["eager"],
        min_stage_seconds=0.0,
        max_overhead=None,
        max_batch=LARGEST,
        output_names=["y"],
    )


def _with_cache(report: BuildReport) -> None:
    """Put a learned cache behind stage 1 that answers as the network does wherever one value is far above others."""
    width, depth = CHAIN
    assert len(report.stages) == depth + 2, "every layer is a stage"
    value = Node("value", "aten.mul.Tensor", (Value("x"), 1.0), (), TensorType("float32", (None, width)))
    graph = Graph((TensorSpec("x", "float32", (width,)),), (value,), (("features", "value"),))
    files = LookupFiles(graph, {}, Head.of(_linear(_last(width, 1))))
    seconds = Curve((1, LARGEST), (2e-5, 4e-5))
    lookup = StoredLookup(1, "turning", files.bytes, seconds, THRESHOLD, hit_rate=0.3, fidelity=1.0)
    caches = StoredCaches(FORMAT, 0.99, 0.95, 1.0, 1.0, 1000, (lookup,))
    write_caches(report.directory, caches, {lookup.name: files})


def _last(width: int, depth: int) -> Tensor:
    """Return what takes the values from where so many layers left them, `TURN` places on, `(WIDTH, width)`."""
    places = [(depth + (place - TURN) % WIDTH) % width for place in range(WIDTH)]
    return torch.eye(width)[places]


def _linear(weight: Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0])
    with torch.no_grad():
        layer.weight.copy_(weight)
        assert layer.bias is not None
        layer.bias.zero_()
    return layer
