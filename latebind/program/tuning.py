"""Decisions that `build` takes by measuring: which backend, and how many stages it can have at little cost."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from torch import Tensor

from latebind.domain.errors import LatebindError
from latebind.program.backends import BACKENDS, StageFunction
from latebind.program.cut import cut_points, good_points, split
from latebind.program.export import Exported
from latebind.program.graph import Graph
from latebind.program.join import join
from latebind.program.load import compile_graph, compile_stages
from latebind.program.measure import interleaved_seconds, median_seconds, run_chain, with_batch
from latebind.program.verify import relative_error

RUNS = 25  # of each side when two are compared
COARSER = 1.4  # by which stages grow when cutting turns out to cost too much


@dataclass(frozen=True, slots=True)
class Candidate:
    """A backend that was tried: seconds of the uncut model at batch 1, its error, or why it was not taken."""

    backend: str
    seconds: float = 0.0
    error: float = 0.0
    refused: str | None = None
    uncut: StageFunction | None = None


@dataclass(frozen=True, slots=True)
class Chain:
    """A model cut and compiled: stages, their graphs, and its time over the uncut model's by batch size."""

    backend: str
    graphs: tuple[Graph, ...]
    stages: tuple[StageFunction, ...]
    overhead: dict[int, float]


@dataclass(frozen=True, slots=True)
class Tuner:
    """An exported model with real rows of input, on which backends and cuts are tried out."""

    exported: Exported
    rows: tuple[Tensor, ...]
    expected: tuple[Tensor, ...]
    tolerance: float
    max_batch: int
    threads: int

    def try_backend(self, name: str) -> Candidate:
        """Compile the uncut model and compare it with the module's own outputs."""
        reason = BACKENDS[name].unavailable()
        if reason is not None:
            return Candidate(name, refused=reason)
        try:
            uncut = compile_graph(self.exported.graph, self.exported.weights, backend=name, threads=self.threads)
            error = relative_error(uncut(*self.rows), self.expected)
        except (LatebindError, RuntimeError, TypeError) as failure:
            return Candidate(name, refused=" ".join(str(failure).split())[:300])
        if not error <= self.tolerance:
            return Candidate(name, error=error, refused=f"relative error {error:.1e} is over {self.tolerance:.1e}")
        return Candidate(name, error=error, uncut=uncut)

    def time_candidates(self, candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
        """Return the candidates with their times at batch 1, measured in turn; the fastest first, refused ones last."""
        one = with_batch(self.rows, 1)
        calls = {c.backend: _call(c.uncut, one) for c in candidates if c.uncut is not None}
        times = {name: median(found) for name, found in interleaved_seconds(calls, RUNS).items()}
        timed = [Candidate(c.backend, times.get(c.backend, 0.0), c.error, c.refused, c.uncut) for c in candidates]
        return tuple(sorted(timed, key=lambda c: (c.refused is not None, c.seconds)))

    def cut(self, candidate: Candidate, min_stage_seconds: float, max_overhead: float | None) -> Chain:
        """Return the model cut into stages of at least `min_stage_seconds` on this backend.

        Stages grow until the chain takes no more than 1 + `max_overhead` times the uncut model at batch 1 and at
        `max_batch`. With a minimum of 0 every cut point is kept and nothing grows.
        """
        points = cut_points(self.exported.graph)
        minimum = min_stage_seconds
        if minimum > 0:
            points = good_points(self.exported.graph, points)
        pieces = self._piece_seconds(points, candidate.seconds)
        while True:
            kept = join(points, pieces, minimum)
            chain = self._compile(candidate, kept)
            if minimum <= 0 or max_overhead is None or max(chain.overhead.values(), default=1.0) <= 1 + max_overhead:
                return chain
            while join(points, pieces, minimum) == kept:
                minimum *= COARSER

    def _piece_seconds(self, points: Sequence[int], whole: float) -> tuple[float, ...]:
        """Return what each piece between two points takes: its share in eager's time, of the backend's `whole`."""
        graphs = split(self.exported.graph, points)
        stages = compile_stages(graphs, self.exported.weights, backend="eager", threads=self.threads)
        passed = with_batch(self.rows, 1)
        seconds = []
        for stage in stages:
            seconds.append(median_seconds(_call(stage, passed)))
            passed = stage(*passed)
        return tuple(part * whole / sum(seconds) for part in seconds)

    def _compile(self, candidate: Candidate, points: Sequence[int]) -> Chain:
        graphs = split(self.exported.graph, points)
        stages = compile_stages(graphs, self.exported.weights, backend=candidate.backend, threads=self.threads)
        overhead = {}
        if points and candidate.uncut is not None:
            for batch in sorted({1, self.max_batch}):
                overhead[batch] = overhead_of(stages, candidate.uncut, with_batch(self.rows, batch))
        return Chain(candidate.backend, graphs, stages, overhead)


def overhead_of(stages: Sequence[StageFunction], uncut: StageFunction, inputs: tuple[Tensor, ...]) -> float:
    """Return the chain's time over the uncut model's: the median ratio of paired, interleaved runs."""
    seconds = chain_and_uncut(stages, uncut, inputs, RUNS)
    return median(a / b for a, b in zip(seconds["chain"], seconds["uncut"], strict=True))


def chain_and_uncut(
    stages: Sequence[StageFunction], uncut: StageFunction, inputs: tuple[Tensor, ...], runs: int
) -> dict[str, list[float]]:
    """Return the seconds of `runs` calls of "chain" and "uncut" each, taken in turn."""
    calls: dict[str, Callable[[], object]] = {"chain": lambda: run_chain(stages, inputs), "uncut": _call(uncut, inputs)}
    return interleaved_seconds(calls, runs)


def _call(stage: StageFunction, inputs: tuple[Tensor, ...]) -> Callable[[], object]:
    return lambda: stage(*inputs)
