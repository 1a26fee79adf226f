"""What `build` decides by measuring: which backend to use, and how many stages are affordable."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from statistics import median

from torch import Tensor

from latebind.domain.errors import LatebindError
from latebind.program.backends import BACKENDS, StageFunction
from latebind.program.carry import find_carries, with_carries
from latebind.program.cut import cut_points, fusion_safe_points, split
from latebind.program.device import synchronize
from latebind.program.export import Exported
from latebind.program.graph import Graph
from latebind.program.join import join_by_bytes, join_by_seconds
from latebind.program.load import compile_graph, compile_stages
from latebind.program.measure import Rounds, compared, interleaved, median_seconds, run_chain, time_call, with_batch
from latebind.program.settings import StageLimits
from latebind.program.verify import relative_error

RUNS, FEWEST_RUNS = 41, 7  # of each side in a comparison
COMPARED_SECONDS = 1.0  # a side's time in a comparison, unless the fewest runs take longer
PROBE_STAGES = 8  # in the chain on which the cost of a cut is measured


@dataclass(frozen=True, slots=True)
class Candidate:
    """A backend that was tried: seconds of the uncut model at batch 1 and its error, or why it was refused.

    It does as the module does for numbers up to `largest`; inf also for infinities and NaN. `spread` is how many times
    as long as the quick runs of the candidates the slow ones took.
    """

    backend: str
    seconds: float = 0.0
    error: float = 0.0
    refused: str | None = None
    uncut: StageFunction | None = None
    largest: float = inf
    spread: float = 1.0


@dataclass(frozen=True, slots=True)
class Chain:
    """A model cut and compiled: stages, their graphs, and the chain's time over the uncut model's by batch size.

    `whole` is the graph that was cut into `graphs`: the model's, with what activations carry at the cuts.
    """

    backend: str
    cuts: tuple[int, ...]
    whole: Graph
    graphs: tuple[Graph, ...]
    stages: tuple[StageFunction, ...]
    overhead: dict[int, float]

    @property
    def worst(self) -> float:
        """The largest `overhead`; 1 if the model is not cut."""
        return max(self.overhead.values(), default=1.0)


@dataclass(frozen=True, slots=True)
class Tuner:
    """An exported model with real rows of input, on which backends and cuts are tried."""

    exported: Exported
    rows: tuple[Tensor, ...]
    expected: tuple[Tensor, ...]
    tolerance: float
    max_batch: int
    threads: int

    def try_backend(self, name: str) -> Candidate:
        """Compile the uncut model and compare its outputs with the module's own."""
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
        """Return the candidates with their interleaved times at batch 1, fastest first, refused ones last."""
        one = with_batch(self.rows, 1)
        calls = {c.backend: _call(c.uncut, one) for c in candidates if c.uncut is not None}
        if not calls:
            return tuple(candidates)
        found = compared(calls, min(_runs(call) for call in calls.values()))
        timed = [
            c if c.uncut is None else replace(c, seconds=found.median(c.backend), spread=found.spread)
            for c in candidates
        ]
        return tuple(sorted(timed, key=lambda c: (c.refused is not None, c.seconds)))

    def seconds(self, candidate: Candidate) -> float:
        """Return the seconds of the uncut model at batch 1, measured now."""
        assert candidate.uncut is not None, f"{candidate.backend} was refused"
        return median_seconds(_call(candidate.uncut, with_batch(self.rows, 1)))

    def cut(self, candidate: Candidate, limits: StageLimits) -> Chain:
        """Return the model cut into stages that keep within `limits` on this backend.

        The overhead limit holds at batch 1 and at `max_batch`. The cost of one cut is measured on a chain of a few
        stages, which gives the number of affordable cuts; while the resulting chain takes too long, it gets one stage
        less.
        """
        graph = self.cuttable()
        points = cut_points(graph)
        if limits.seconds <= 0 and limits.bytes <= 0:
            return self._compile(candidate, points)
        points = fusion_safe_points(graph, points)
        points = join_by_bytes(points, self._piece_bytes(points), limits.bytes)
        if limits.seconds <= 0:
            return self._compile(candidate, points)
        pieces = self._piece_seconds(points)
        stages = max(1, int(candidate.seconds / limits.seconds))
        if limits.overhead is None or stages == 1 or not points:
            return self._compile(candidate, join_by_seconds(points, pieces, stages))
        chain = self._compile(candidate, join_by_seconds(points, pieces, min(stages, PROBE_STAGES)))
        each = (chain.worst - 1.0) / max(1, len(chain.stages) - 1)
        stages = min(stages, 1 + int(limits.overhead / each)) if each > 0 else stages
        cuts = join_by_seconds(points, pieces, stages)
        if cuts != chain.cuts:
            chain = self._compile(candidate, cuts)
        while chain.cuts and chain.worst > 1.0 + limits.overhead:  # the estimate was too optimistic
            chain = self._compile(candidate, join_by_seconds(points, pieces, len(chain.stages) - 1))
        return chain

    def cuttable(self) -> Graph:
        """Return the model's graph with all that activations may carry, and so with all its cut points."""
        return with_carries(self.exported.graph, find_carries(self.exported.graph))

    def _piece_bytes(self, points: Sequence[int]) -> tuple[int, ...]:
        """Return the bytes of the weights that each piece between two points reads."""
        weights = self.exported.weights
        pieces = split(self.cuttable(), points)
        return tuple(sum(weights[name].nbytes for name in piece.weights()) for piece in pieces)

    def _piece_seconds(self, points: Sequence[int]) -> tuple[float, ...]:
        """Return the seconds of each piece run eagerly; relative to each other, other backends take about the same."""
        graphs = split(self.cuttable(), points)
        stages = compile_stages(graphs, self.exported.weights, backend="eager", threads=self.threads)
        passed = with_batch(self.rows, 1)
        seconds = []
        for stage in stages:
            seconds.append(median_seconds(_call(stage, passed)))
            passed = stage(*passed)
        return tuple(seconds)

    def _compile(self, candidate: Candidate, points: tuple[int, ...]) -> Chain:
        assert candidate.uncut is not None, f"{candidate.backend} was refused"
        if not points:
            return Chain(candidate.backend, (), self.exported.graph, (self.exported.graph,), (candidate.uncut,), {})
        whole, places = self._carrying(points)
        graphs = split(whole, places)
        stages = compile_stages(graphs, self.exported.weights, backend=candidate.backend, threads=self.threads)
        overhead = {
            batch: overhead_of(stages, candidate.uncut, with_batch(self.rows, batch))
            for batch in sorted({1, self.max_batch})
        }
        return Chain(candidate.backend, points, whole, graphs, stages, overhead)

    def _carrying(self, points: Sequence[int]) -> tuple[Graph, tuple[int, ...]]:
        """Return the graph that carries values only at these points of `cuttable`, and where these points are in it."""
        cuttable = self.cuttable()
        names = [cuttable.nodes[point].name for point in points]
        graph = self.exported.graph
        whole = with_carries(graph, [carry for carry in find_carries(graph) if carry.name in names])
        places = {node.name: place for place, node in enumerate(whole.nodes)}
        return whole, tuple(places[name] for name in names)


def overhead_of(stages: Sequence[StageFunction], uncut: StageFunction, inputs: tuple[Tensor, ...]) -> float:
    """Return the chain's time over the uncut model's: the median ratio of paired, interleaved runs."""
    seconds = chain_and_uncut(stages, uncut, inputs, _runs(_call(uncut, inputs))).seconds
    return median(a / b for a, b in zip(seconds["chain"], seconds["uncut"], strict=True))


def chain_and_uncut(
    stages: Sequence[StageFunction], uncut: StageFunction, inputs: tuple[Tensor, ...], runs: int
) -> Rounds:
    """Return the seconds of `runs` interleaved calls of "chain" and "uncut"."""
    calls: dict[str, Callable[[], object]] = {"chain": lambda: run_chain(stages, inputs), "uncut": _call(uncut, inputs)}
    return interleaved(calls, runs)


def _call(stage: StageFunction, inputs: tuple[Tensor, ...]) -> Callable[[], object]:
    return lambda: stage(*inputs)


def _runs(call: Callable[[], object]) -> int:
    """Return how many runs to compare: fewer if a run takes long."""
    synchronize(call())
    return max(FEWEST_RUNS, min(RUNS, int(COMPARED_SECONDS / time_call(call))))
