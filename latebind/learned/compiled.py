"""From a trained network to what runs behind a stage: exported, in eight bits where that is faster, compiled."""

from dataclasses import dataclass
from functools import partial
from statistics import median

from torch import Tensor

from latebind.learned.head import Head, Selector
from latebind.learned.lookup import LookupFunction, compile_lookup_files
from latebind.learned.networks import Predictor
from latebind.learned.quantise import has_bytes, quantise
from latebind.learned.stored import FEATURES, LookupFiles
from latebind.program.export import export
from latebind.program.measure import interleaved_seconds
from latebind.program.program import Program

RUNS = 25


@dataclass(frozen=True, slots=True)
class Compiled:
    """A lookup as data, as a function, and the median seconds of a call at batch 1, alone and hot."""

    files: LookupFiles
    function: LookupFunction
    seconds: float


def compile_lookup(predictor: Predictor, selector: Selector, rows: Tensor, program: Program) -> Compiled:
    """Return a trained lookup in its fastest form for the backend of `program`.

    `rows` `(N, ...) float32` are activations that it will see: they set the ranges of numbers in eight bits.
    """
    one = rows[:1].contiguous()
    exported = export(predictor.features.eval(), (one,), output_names=(FEATURES,))
    plain = LookupFiles(exported.graph, exported.weights, Head.of(predictor.answer, selector))
    forms = {"plain": (plain, _compile(plain, program))}
    if program.backend.startswith("openvino") and has_bytes():
        quantised = LookupFiles(*quantise(plain.graph, plain.weights, rows), plain.head)
        if quantised.graph != plain.graph:
            forms["bytes"] = (quantised, _compile(quantised, program))
    times = interleaved_seconds({name: partial(function, one) for name, (_, function) in forms.items()}, RUNS)
    seconds = {name: median(found) for name, found in times.items()}
    fastest = min(seconds, key=lambda name: seconds[name])
    return Compiled(*forms[fastest], seconds[fastest])


def _compile(files: LookupFiles, program: Program) -> LookupFunction:
    return compile_lookup_files(files, backend=program.backend, threads=program.threads)
