"""Decisions that `build` takes by measuring: which backend, and how many stages it can have at little cost."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from torch import Tensor

from latebind.domain.errors import LatebindError
from latebind.program.backends import BACKENDS, StageFunction
from latebind.program.carry import carried, loads
from latebind.program.cut import cut_points, good_points, split
from latebind.program.device import settle
from latebind.program.export import Exported
from latebind.program.graph import Graph
from latebind.program.join import heavy, join
from latebind.program.load import compile_graph, compile_stages
from latebind.program.measure import interleaved_seconds, median_seconds, run_chain, time_call, with_batch
from latebind.program.verify import relative_error

RUNS, FEWEST_RUNS = 41, 7  # of each side when two are compared
COMPARED_SECONDS = 1.0  # how long a side may run for that, beyond the fewest
PROBE_STAGES = 8  # of the chain on which the cost of a cut is measured


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
    """A model cut and compiled: stages, their graphs, and its time over the uncut model's by batch size.

    `whole` is the graph that `graphs` are parts of: the model's, with what activations carry at the cuts.
    """

    backend: str
    cuts: tuple[int, ...]
    whole: Graph
    graphs: tuple[Graph, ...]
    stages: tuple[StageFunction, ...]
    overhead: dict[int, float]

    @property
    def worst(self) -> float:
        """The largest of `overhead`; 1 if the model is not cut."""
        return max(self.overhead.values(), default=1.0)


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
        runs = min((_runs(call) for call in calls.values()), default=0)
        times = {name: median(found) for name, found in interleaved_seconds(calls, runs).items()}
        timed = [Candidate(c.backend, times.get(c.backend, 0.0), c.error, c.refused, c.uncut) for c in candidates]
        return tuple(sorted(timed, key=lambda c: (c.refused is not None, c.seconds)))

    def cut(
        self, candidate: Candidate, min_stage_seconds: float, max_overhead: float | None, min_stage_bytes: int = 0
    ) -> Chain:
        """Return the model cut into stages worth `min_stage_seconds` on average on this backend; 0 keeps every cut.

        Each has weights of at least `min_stage_bytes`, which alone decide where `min_stage_seconds` is 0.

        `max_overhead` limits how much longer than the uncut model the chain may take (0.04: 4 %) at batch 1
        and at `max_batch`: the cost of one cut is measured on a chain of a few stages, no more cuts are made than fit,
        and one less as long as the chain that results takes longer. None sets no limit.
        """
        graph = self.cuttable()
        points = cut_points(graph)
        if min_stage_seconds <= 0 and min_stage_bytes <= 0:
            return self._compile(candidate, points)
        points = good_points(graph, points)
        points = heavy(points, self._piece_bytes(points), min_stage_bytes)
        if min_stage_seconds <= 0:
            return self._compile(candidate, points)
        pieces = self._piece_seconds(points)
        stages = max(1, int(candidate.seconds / min_stage_seconds))
        if max_overhead is None or stages == 1 or not points:
            return self._compile(candidate, join(points, pieces, stages))
        chain = self._compile(candidate, join(points, pieces, min(stages, PROBE_STAGES)))
        each = (chain.worst - 1.0) / max(1, len(chain.stages) - 1)
        stages = min(stages, 1 + int(max_overhead / each)) if each > 0 else stages
        cuts = join(points, pieces, stages)
        if cuts != chain.cuts:
            chain = self._compile(candidate, cuts)
        while chain.cuts and chain.worst > 1.0 + max_overhead:  # the estimate was too hopeful
            chain = self._compile(candidate, join(points, pieces, len(chain.stages) - 1))
        return chain

    def cuttable(self) -> Graph:
        """Return the model's graph with all that activations may carry, so with all places where it can be cut."""
        return carried(self.exported.graph, loads(self.exported.graph))

    def _piece_bytes(self, points: Sequence[int]) -> tuple[int, ...]:
        """Return the bytes of weights that each piece between two points reads."""
        weights = self.exported.weights
        pieces = split(self.cuttable(), points)
        return tuple(sum(weights[name].nbytes for name in piece.weights()) for piece in pieces)

    def _piece_seconds(self, points: Sequence[int]) -> tuple[float, ...]:
        """Return what each piece between two points takes run eagerly: its share is about the same elsewhere."""
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
        """Return the graph that carries something at these points of `cuttable` only, and where they are in it."""
        cuttable = self.cuttable()
        names = [cuttable.nodes[point].name for point in points]
        graph = self.exported.graph
        whole = carried(graph, [load for load in loads(graph) if load.name in names])
        places = {node.name: place for place, node in enumerate(whole.nodes)}
        return whole, tuple(places[name] for name in names)


def overhead_of(stages: Sequence[StageFunction], uncut: StageFunction, inputs: tuple[Tensor, ...]) -> float:
    """Return the chain's time over the uncut model's: the median ratio of paired, interleaved runs."""
    seconds = chain_and_uncut(stages, uncut, inputs, _runs(_call(uncut, inputs)))
    return median(a / b for a, b in zip(seconds["chain"], seconds["uncut"], strict=True))


def chain_and_uncut(
    stages: Sequence[StageFunction], uncut: StageFunction, inputs: tuple[Tensor, ...], runs: int
) -> dict[str, list[float]]:
    """Return the seconds of `runs` calls of "chain" and "uncut" each, taken in turn."""
    calls: dict[str, Callable[[], object]] = {"chain": lambda: run_chain(stages, inputs), "uncut": _call(uncut, inputs)}
    return interleaved_seconds(calls, runs)


def _call(stage: StageFunction, inputs: tuple[Tensor, ...]) -> Callable[[], object]:
    return lambda: stage(*inputs)


def _runs(call: Callable[[], object]) -> int:
    """Return how many runs to compare: fewer of what takes long."""
    settle(call())
    return max(FEWEST_RUNS, min(RUNS, int(COMPARED_SECONDS / time_call(call))))
