"""A query file that is right, models that it names, and reading what tests write."""

from collections.abc import Mapping
from pathlib import Path

from latebind.domain.model import ModelSpec, StageKind, TensorSpec
from latebind.domain.sizes import Dim
from latebind.queries.file.definition import read_query
from latebind.queries.file.wiring import DefinedQuery

IMAGE = TensorSpec("image", "float32", (3, 32, 32))
SMALL = TensorSpec("input", "float32", (3, 16, 16))
SCORES = TensorSpec("output", "float32", (10,))
BOX = TensorSpec("box", "float32", (4,))
PIXELS = TensorSpec("input", "uint8", (3, 16, 16))
TEXT = TensorSpec("ids", "int64", (512,), sizes=("L",))
TOLD = TensorSpec("words", "int64", (128,), sizes=("T",))
TAGS = TensorSpec("tags", "float32", (128, 3), sizes=("T", 3))
HALF = TensorSpec("half", "float32", (64, 3), sizes=("T//2", 3))
ROWS = TensorSpec("tags", "float32", (64, 3), sizes=("N", 3))
WORDS = TensorSpec("words", "int64", (12,), padding=0, limit=500)


def model(name: str, takes: TensorSpec, *gives: TensorSpec, max_batch: int = 8) -> ModelSpec:
    return ModelSpec(name, "1", (takes,), gives, 2, max_batch)


MODELS = {
    spec.name: spec
    for spec in (
        model("gate", IMAGE, SCORES, BOX),
        model("cars-small", SMALL, SCORES),
        model("cars-large", SMALL, SCORES, max_batch=4),
        model("animals", SMALL, SCORES),
        model("pixels", PIXELS, SCORES),
        model("thrice", SMALL, TensorSpec("output", "float32", (3,))),
        model("reader", WORDS, SCORES),
        model("other-reader", TensorSpec("words", "int64", (12,), padding=1), SCORES),
        model("small-reader", TensorSpec("words", "int64", (12,), padding=0, limit=100), SCORES),
        model("odd", TensorSpec("x.1", "float32", (3, 16, 16)), TensorSpec("y.1", "float32", (2,))),
        ModelSpec("texts", "1", (TEXT,), (SCORES,), 2, 8, dims=(Dim("L", 1, 512),)),
        ModelSpec("tagger", "1", (TOLD,), (TAGS, HALF), 2, 8, dims=(Dim("T", 4, 128),)),
        ModelSpec("even-judge", "1", (ROWS,), (SCORES,), 2, 8, dims=(Dim("N", 2, 64, 2),)),
        ModelSpec("judge", "1", (ROWS,), (SCORES,), 2, 8, dims=(Dim("N", 2, 64),)),
        ModelSpec("translator", "1", (WORDS,), (SCORES,), 2, 8, kinds=(StageKind.STATIC, StageKind.DECODER)),
    )
}

TRAFFIC = """\
deadline_ms = 80
planner = "equal"
replan = false

[inputs.image]
dtype = "float32"
shape = [3, 32, 32]

[conditions]
vehicle = "argmax(gate.output) in [0, 1, 8, 9] and max(softmax(gate.output)) > 0.5"

[nodes.gate]
models = ["gate"]

[nodes.cars]
models = ["cars-small", "cars-large"]
accuracy = [0.8, 0.9]
inputs.input = "crop_to(image, gate.box, 16, 16)"
when = "vehicle"

[nodes.animals]
models = ["animals"]
inputs.input = "resize(image, 16, 16)"
when = "not vehicle"

[outputs]
label = "first(cars.output, animals.output)"
"""


def read(
    folder: Path, text: str | bytes, *, name: str = "traffic", measured: Mapping[str, float] | None = None
) -> DefinedQuery:
    file = folder / f"{name}.query.toml"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_query(file, MODELS, measured or {})
