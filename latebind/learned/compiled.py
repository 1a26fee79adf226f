"""From a trained network to what runs behind a stage: exported, in eight bits where that is faster, compiled."""

from dataclasses import dataclass
from statistics import median

from torch import Tensor, nn

from latebind.learned.lookup import LookupFunction, lookup_backend
from latebind.learned.quantise import has_bytes, quantise
from latebind.learned.stored import ANSWERS, SCORE, LookupFiles
from latebind.program.export import export
from latebind.program.load import compile_graph
from latebind.program.measure import interleaved_seconds
from latebind.program.program import Program

RUNS = 25


@dataclass(frozen=True, slots=True)
class Compiled:
    """A lookup as data, as a function, and the median seconds of a call at batch 1, alone and hot."""

    files: LookupFiles
    function: LookupFunction
    seconds: float


def compile_lookup(network: nn.Module, rows: Tensor, program: Program) -> Compiled:
    """Return `network`, from activations to answers and score, in its fastest form for the backend of `program`.

    `rows` `(N, ...) float32` are activations that it will see: they set the ranges of numbers in eight bits.
    """
    one = rows[:1].contiguous()
    exported = export(network.eval(), (one,), output_names=(ANSWERS, SCORE))
    plain = LookupFiles(exported.graph, exported.weights)
    forms = {"plain": (plain, _compile(plain, program))}
    if program.backend.startswith("openvino") and has_bytes():
        quantised = LookupFiles(*quantise(plain.graph, plain.weights, rows))
        if quantised.graph != plain.graph:
            forms["bytes"] = (quantised, _compile(quantised, program))
    times = interleaved_seconds({name: lambda f=form[1]: f(one) for name, form in forms.items()}, RUNS)  # type: ignore[misc]
    seconds = {name: median(found) for name, found in times.items()}
    fastest = min(seconds, key=lambda name: seconds[name])
    return Compiled(*forms[fastest], seconds[fastest])


def _compile(files: LookupFiles, program: Program) -> LookupFunction:
    return compile_graph(
        files.graph, dict(files.weights), backend=lookup_backend(program.backend), threads=program.threads
    )
