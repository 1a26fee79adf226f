"""Makes a trained network ready to run behind a stage: exports it, quantises it where that is faster, compiles it."""

from dataclasses import dataclass
from functools import lru_cache, partial

import torch
from torch import Tensor

from latebind.learned.head import Head, Selector
from latebind.learned.lookup import LookupFunction, compile_lookup_files
from latebind.learned.networks import Predictor, make_predictor
from latebind.learned.quantise import quantise
from latebind.learned.stored import FEATURES, LookupFiles
from latebind.program.export import Exported, trace
from latebind.program.measure import interleaved
from latebind.program.program import Program

RUNS = 25
FORMS = 64  # graphs of predictors that are remembered, by kind and shape


@dataclass(frozen=True, slots=True)
class Compiled:
    """A lookup as data, as a function, and the median seconds of a call at batch 1, in a loop of its own."""

    files: LookupFiles
    function: LookupFunction
    seconds: float


def compile_lookup(predictor: Predictor, selector: Selector, rows: Tensor, program: Program) -> Compiled:
    """Return a trained lookup in its fastest form for the backend of `program`.

    `rows` `(N, ...) float32` are activations like those that it will see: they set the quantisation ranges.
    """
    one = rows[:1].contiguous()
    exported = export_features(predictor, tuple(one.shape[1:]))
    plain = LookupFiles(exported.graph, exported.weights, Head.of(predictor.answer, selector))
    forms = {"plain": (plain, _compile(plain, program))}
    if program.backend.startswith("openvino"):  # other backends compute the coarse numbers in float32
        quantised = LookupFiles(*quantise(plain.graph, plain.weights, rows), plain.head)
        if quantised.graph != plain.graph:
            forms["bytes"] = (quantised, _compile(quantised, program))
    rounds = interleaved({name: partial(function, one) for name, (_, function) in forms.items()}, RUNS)
    fastest = min(forms, key=rounds.median)
    return Compiled(*forms[fastest], rounds.median(fastest))


def export_features(predictor: Predictor, shape: tuple[int, ...]) -> Exported:
    """Return the graph and weights that compute a predictor's features from activations `(B, *shape)`.

    Predictors of a kind differ only in their weights. So only the first is traced, which takes a second.
    """
    form = _form(predictor.kind, shape)
    own = {name: tensor.detach().contiguous() for name, tensor in predictor.features.state_dict().items()}
    return Exported(form.graph, form.weights | own).simplified()


@lru_cache(FORMS)
def _form(kind: str, shape: tuple[int, ...]) -> Exported:
    """Return the graph of a kind, with those of its tensors that are the same in all predictors of that kind."""
    with torch.random.fork_rng():
        features = make_predictor(shape, 1, kind).features.eval()
    features.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # as it is trained
    traced = trace(features, (torch.zeros(1, *shape),), output_names=(FEATURES,))
    return Exported(
        traced.graph, {name: traced.weights[name] for name in traced.weights.keys() - features.state_dict()}
    )


def _compile(files: LookupFiles, program: Program) -> LookupFunction:
    return compile_lookup_files(files, backend=program.backend, threads=program.threads)
