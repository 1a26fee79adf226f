"""Random small modules of whole, floating-point and boolean operators, built and asked as clients would.

`python -m tests.program.random_modules --count 2000` tries many; a test tries a few. Each module is built as by
default, but that times are counted by work (`tests.working`) and that torch.compile, which takes ten seconds a module,
is only tried with `--compile`. Then rows over the whole range of each dtype pass the frontend's checks and run: every
answer is the module's own, or the build, the frontend or the module refused.
"""

import argparse
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from latebind.domain.errors import ExportError, InvalidRequest
from latebind.domain.model import TensorSpec
from latebind.program.build import build_program
from latebind.program.export import export, run_module
from latebind.program.load import load_program
from latebind.program.program import Program
from latebind.program.verify import FAILURES, Judge
from latebind.server.calls import Tensor as WireTensor
from tests.working import measured_by_work

WIDTH = 6
DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float32", "float32", "float64")
SENT = 60  # rows
BACKENDS = ("openvino", "eager")  # where both pass, OpenVINO is taken: the work of both is the same, and it comes first
TABLE = torch.randn(WIDTH + 5, WIDTH, generator=torch.Generator().manual_seed(0))
SQUARE = torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(1))

Operator = Callable[[Tensor, Tensor, int], Tensor]


def _floating(x: Tensor) -> Tensor:
    return x if x.is_floating_point() else x.float()


def _whole(x: Tensor) -> Tensor:
    return x.long() if x.is_floating_point() or x.dtype == torch.bool else x


def _counting(x: Tensor) -> Tensor:
    """Return numbers that operators for numbers take."""
    return x.long() if x.dtype == torch.bool else x


def _places(x: Tensor, size: int) -> Tensor:
    return _whole(x).long() % size


def _each(names: str, make: Callable[[str], Operator]) -> dict[str, Operator]:
    return {name: make(name) for name in names.split()}


def _wide(x: Tensor) -> Tensor:
    return x.expand(-1, WIDTH)


OPERATORS: dict[str, Operator] = {
    # of floating-point numbers, of numbers, of two values, of a value and a number
    **_each(
        "exp log sqrt rsqrt reciprocal tanh sigmoid erf floor round nan_to_num isnan isinf",
        lambda name: lambda x, y, n: getattr(_floating(x), name)(),
    ),
    **_each(
        "gelu silu softplus leaky_relu hardtanh", lambda name: lambda x, y, n: getattr(functional, name)(_floating(x))
    ),
    **_each("abs neg relu", lambda name: lambda x, y, n: getattr(_counting(x), name)()),
    **_each("sign logical_not float double half long int bool", lambda name: lambda x, y, n: getattr(x, name)()),
    **_each("softmax log_softmax", lambda name: lambda x, y, n: getattr(_floating(x), name)(1)),
    **_each("sum amax amin", lambda name: lambda x, y, n: _wide(getattr(x, name)(1, keepdim=True))),
    **_each("any all", lambda name: lambda x, y, n: _wide(getattr(x.bool(), name)(1, keepdim=True))),
    **_each("maximum minimum", lambda name: lambda x, y, n: getattr(torch, name)(*_alike(x, y))),
    **_each("logical_and logical_or", lambda name: lambda x, y, n: getattr(x, name)(y)),
    "layer_norm": lambda x, y, n: functional.layer_norm(_floating(x), x.shape[1:]),
    "linear": lambda x, y, n: _floating(x) @ SQUARE.to(_floating(x).dtype),
    "mean": lambda x, y, n: _wide(_floating(x).mean(1, keepdim=True)),
    "cumsum": lambda x, y, n: x.cumsum(1),
    "clamp": lambda x, y, n: _counting(x).clamp(-n, n),
    "add": lambda x, y, n: x + y,
    "sub": lambda x, y, n: _counting(x) - _counting(y),
    "mul": lambda x, y, n: x * y,
    "div": lambda x, y, n: x / y,
}
OPERATORS |= {
    "add_number": lambda x, y, n: x + n,
    "mul_number": lambda x, y, n: x * n,
    "large_number": lambda x, y, n: _counting(x) - 1_700_000_000,
    "divide_number": lambda x, y, n: x / n,
    "floor_divide": lambda x, y, n: _counting(x) // n,
    "remainder": lambda x, y, n: _counting(x) % n,
    "fmod": lambda x, y, n: torch.fmod(_counting(x), n),
    "divide_by_other": lambda x, y, n: _counting(x) // _counting(y),
    "and": lambda x, y, n: _whole(x) & n,
    "or": lambda x, y, n: _whole(x) | n,
    "xor": lambda x, y, n: _whole(x) ^ n,
    "not": lambda x, y, n: ~_whole(x),
    "shift": lambda x, y, n: _whole(x) >> (n % 5),
    "less": lambda x, y, n: x < y,
    "less_number": lambda x, y, n: x < n,
    "equal": lambda x, y, n: x == y,
    "where": lambda x, y, n: torch.where(x > n, *_alike(x, y)),
    "masked_fill": lambda x, y, n: _counting(x).masked_fill(y > n, 1),
    "embedding": lambda x, y, n: functional.embedding(_places(x, len(TABLE)), TABLE).mean(1),
    "embedding_of_ids": lambda x, y, n: functional.embedding(_whole(x).long(), TABLE).mean(1),
    "gather": lambda x, y, n: torch.gather(x, 1, _places(y, WIDTH)),
    "gather_ids": lambda x, y, n: torch.gather(x, 1, _whole(y).long()),
    "take_along": lambda x, y, n: torch.take_along_dim(x, _places(y, WIDTH), 1),
    "one_hot": lambda x, y, n: functional.one_hot(_places(x, WIDTH), WIDTH).sum(1),
    "one_hot_ids": lambda x, y, n: functional.one_hot(_whole(x).long(), WIDTH).sum(1),
    "scatter": lambda x, y, n: x.scatter(1, _places(y, WIDTH), n > 3),
    "flip": lambda x, y, n: x.flip(1),
    "roll": lambda x, y, n: x.roll(n, 1),
    "cat": lambda x, y, n: torch.cat(_alike(x, y), 1)[:, n % WIDTH :][:, :WIDTH],
    "sort": lambda x, y, n: x.sort(1).values,
    "argsort": lambda x, y, n: x.argsort(1),
    "topk": lambda x, y, n: _counting(x).topk(WIDTH, 1).indices,
    "argmax": lambda x, y, n: _wide(_counting(x).argmax(1, keepdim=True)),
    "uint8": lambda x, y, n: x.to(torch.uint8),
}


def _alike(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    dtype = torch.promote_types(x.dtype, y.dtype)
    return x.to(dtype), y.to(dtype)


@dataclass(frozen=True, slots=True)
class Step:
    """An operator on two earlier values, counted from the last, and a number."""

    name: str
    first: int
    second: int
    number: int


class Steps(nn.Module):
    """Applies steps one after another to its inputs `(B, WIDTH)`; gives what the last makes."""

    def __init__(self, steps: Sequence[Step]) -> None:
        super().__init__()
        self._steps = tuple(steps)

    def forward(self, *inputs: Tensor) -> Tensor:
        values = list(inputs)
        for step in self._steps:
            operands = values[-1 - step.first % len(values)], values[-1 - step.second % len(values)]
            values.append(OPERATORS[step.name](*operands, step.number))
        return values[-1]


@dataclass(frozen=True, slots=True)
class Case:
    """A module by its steps, the dtypes of its inputs, and the seed of the rows that are sent."""

    dtypes: tuple[str, ...]
    steps: tuple[Step, ...]
    rows: int

    def __str__(self) -> str:
        steps = "; ".join(f"{step.name}({step.first}, {step.second}, {step.number})" for step in self.steps)
        return f"{', '.join(self.dtypes)}: {steps} (rows {self.rows})"


def cases() -> st.SearchStrategy[Case]:
    """Return a strategy of modules of 1 to 5 operators on 1 or 2 inputs."""
    near = st.integers(0, 2)
    step = st.builds(Step, st.sampled_from(sorted(OPERATORS)), near, near, st.sampled_from((1, 2, 3, 5, 7, 100)))
    dtypes = st.lists(st.sampled_from(DTYPES), min_size=1, max_size=2).map(tuple)
    return st.builds(Case, dtypes, st.lists(step, min_size=1, max_size=5).map(tuple), st.integers(0, 1 << 30))


def sent(dtypes: Sequence[str], number: int) -> tuple[Tensor, ...]:
    """Return rows to send: of any bits, of special values, of small and of normal numbers."""
    random = np.random.default_rng(number)
    return tuple(torch.stack([_row(dtype, kind, random) for kind in range(SENT)]) for dtype in dtypes)


def _row(dtype: str, kind: int, random: np.random.Generator) -> Tensor:
    size = np.dtype(dtype).itemsize * WIDTH
    if dtype == "bool":
        return torch.from_numpy(random.integers(0, 2, WIDTH).astype(bool))
    if kind % 4 == 0:
        return torch.from_numpy(np.frombuffer(random.bytes(size), dtype).copy())
    if kind % 4 == 1:
        return torch.from_numpy(random.choice(_special(dtype), 1 if kind % 8 == 1 else WIDTH).repeat(WIDTH)[:WIDTH])
    if kind % 4 == 2:
        return torch.from_numpy(random.integers(0, 12, WIDTH).astype(dtype))
    numbers = (random.standard_normal(WIDTH) * 10.0 ** random.integers(0, 5)).tolist()
    return torch.tensor(numbers).to(getattr(torch, dtype))


def _special(dtype: str) -> np.ndarray[tuple[int], np.dtype[np.generic]]:
    if not dtype.startswith("float"):
        known = np.iinfo(dtype)
        powers = [sign * (1 << power) + more for power in (7, 24, 31, 53) for sign in (1, -1) for more in (-1, 0, 1)]
        values = [known.min, known.max, known.max - 1, 0, 1, 1_700_000_000, 1_700_000_003, *powers]
        return np.array([value for value in values if known.min <= value <= known.max], dtype)
    limits = np.finfo(dtype)
    sizes = (limits.max, limits.min, limits.tiny, limits.smallest_subnormal)
    known_ones = (0.0, -0.0, 1.0, -1.0, 0.5, 2.0**12, 65504.0, np.inf, -np.inf, np.nan)
    return np.array([*map(float, sizes), *known_ones], dtype)


def tried(case: Case, *, backends: Sequence[str]) -> str:
    """Build a module, send rows, and return what came of it; raises `AssertionError` for a wrong answer."""
    module = Steps(case.steps).eval()
    names = [f"x{place}" for place in range(len(case.dtypes))]
    examples = {
        name: torch.ones(2, WIDTH, dtype=getattr(torch, dtype)) for name, dtype in zip(names, case.dtypes, strict=True)
    }
    try:
        run_module(module, tuple(examples.values()))
    except FAILURES:
        return "no module"  # its operators do not take these dtypes
    with tempfile.TemporaryDirectory() as folder, measured_by_work():
        try:
            build = build_program(
                module,
                tuple(examples.values()),
                directory=Path(folder) / "1",
                name="m",
                backends=backends,
                input_names=names,
            )
        except ExportError as error:
            return f"refused at build: {str(error).partition(':')[0][:60]}"
        program = load_program(build.directory)
        exported = export(module, tuple(examples.values()), input_names=names)
        rows = sent(case.dtypes, case.rows)
        answers = _ask(program, module, Judge(exported.graph, exported.weights, 1e-5), rows)
    wrong = [row for row, answer in enumerate(answers) if answer == "wrong"]
    assert not wrong, f"{case} on {build.backend} is wrong: {_told(program, module, _one(rows, wrong[0]))}"
    refused = sum(answer == "refused" for answer in answers)
    return f"served by {build.backend}" + (", all rows refused" if refused == len(answers) else "")


def _told(program: Program, module: nn.Module, row: tuple[Tensor, ...]) -> str:
    """Return a row, and what the program and the module make of it."""
    told = [str([tensor.tolist() for tensor in row])]
    for run in (program.run, lambda *one: run_module(module, one)):
        try:
            told.append(str(run(*row)[0].tolist()))
        except FAILURES as error:
            told.append(repr(error))
    return "\n    ".join(told)


def _one(rows: tuple[Tensor, ...], row: int) -> tuple[Tensor, ...]:
    return tuple(tensor[row : row + 1] for tensor in rows)


def _ask(program: Program, module: nn.Module, judge: Judge, rows: tuple[Tensor, ...]) -> list[str]:
    """Return of each row whether it was answered, refused, or raised in the module, or answered wrongly."""
    found = []
    for row in range(len(rows[0])):
        one = _one(rows, row)
        if _refused(program.spec.inputs, one):
            found.append("refused")
            continue
        try:
            expected = run_module(module, tuple(tensor.clone() for tensor in one))
        except FAILURES:
            expected = None
        try:
            answer = program.run(*one)
        except FAILURES:
            found.append("raised" if expected is None else "wrong")
            continue
        right = expected is not None and not bool(judge.differ(answer, one, expected).any())
        found.append("answered" if right else "wrong")
    return found


def _refused(specs: Sequence[TensorSpec], row: tuple[Tensor, ...]) -> bool:
    """Return whether the frontend refuses a row."""
    try:
        for spec, tensor in zip(specs, row, strict=True):
            WireTensor(spec).check((tensor.numpy(),))
    except InvalidRequest:
        return True
    return False


def main() -> None:
    """Try many modules, and print how many came to what; wrong ones are printed as they are found."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compile", action="store_true", help="try torch.compile too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    backends = (*(["compile"] if options.compile else []), *BACKENDS)
    counted: Counter[str] = Counter()

    @seed(options.seed)
    @settings(
        max_examples=options.count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases())
    def each(case: Case) -> None:
        try:
            counted[tried(case, backends=backends)] += 1
        except AssertionError as wrong:
            counted["WRONG"] += 1
            print(wrong, flush=True)
        if sum(counted.values()) % 20 == 0:
            print(dict(counted), flush=True)

    each()
    for what, times in counted.most_common():
        print(f"{times:6} {what}")


if __name__ == "__main__":
    main()
