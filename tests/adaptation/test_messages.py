"""Answers and samples cross as bytes, in whatever pieces they come."""

from latebind.adaptation.messages import Answered, AnsweredReader, Unusable, pack_answered, pack_unusable
from latebind.adaptation.sampling import Draw
from latebind.domain.model import ModelSpec, TensorSpec

ANSWERS: list[Answered | Unusable] = [
    Answered(0, 3, 77, 0),
    Answered(1, 65_535, 1 << 31, 7, Draw(shows=True), row=bytes(range(12))),
    Answered(0, 0, 0, -1, Draw(shows=False, weight=20.0), row=b"ab"),
    Answered(1, 2, 9, 999_999_999, Draw(shows=False, weight=1.25), row=bytes(12), end=bytes(range(16))),
    Answered(1, 1, 1, 0),
    Unusable(1, 12),
    Answered(0, 1, 1, 0),
]


def model(name: str, size: int) -> ModelSpec:
    rows = TensorSpec("x", "uint8", (size,))
    return ModelSpec(name, "1", (rows,), (TensorSpec("y", "float32", (4,)),), stages=2, max_batch=1)


def test_answers_arrive_whole_from_pieces_of_any_size() -> None:
    data = b"".join(pack_unusable(told) if isinstance(told, Unusable) else pack_answered(told) for told in ANSWERS)
    for size in (1, 7, 1_000):
        reader = AnsweredReader([model("small", 2), model("large", 12)])
        pieces = [data[start : start + size] for start in range(0, len(data), size)]
        assert [answered for piece in pieces for answered in reader.feed(piece)] == ANSWERS
