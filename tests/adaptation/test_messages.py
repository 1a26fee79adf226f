"""Answers and samples cross as bytes, in whatever pieces they come."""

from latebind.adaptation.messages import Answered, AnsweredReader, pack_answered
from latebind.adaptation.sampling import Draw
from latebind.domain.model import ModelSpec, TensorSpec

ANSWERS = [
    Answered(0, 3, 77),
    Answered(1, 65_535, 1 << 31, Draw(shows=True), row=bytes(range(12))),
    Answered(0, 0, 0, Draw(shows=False, weight=20.0), row=b"ab"),
    Answered(1, 2, 9, Draw(shows=False, weight=1.25), row=bytes(12), end=bytes(range(16))),
    Answered(1, 1, 1),
]


def model(name: str, size: int) -> ModelSpec:
    rows = TensorSpec("x", "uint8", (size,))
    return ModelSpec(name, "1", (rows,), (TensorSpec("y", "float32", (4,)),), stages=2, max_batch=1)


def test_answers_arrive_whole_from_pieces_of_any_size() -> None:
    data = b"".join(map(pack_answered, ANSWERS))
    for size in (1, 7, 1_000):
        reader = AnsweredReader([model("small", 2), model("large", 12)])
        pieces = [data[start : start + size] for start in range(0, len(data), size)]
        assert [answered for piece in pieces for answered in reader.feed(piece)] == ANSWERS
