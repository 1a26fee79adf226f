"""Tables of `python -m research live`: means, live and simulated, which policy is ahead, and what could be reached."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from latebind.bench.statistics import ratio_of_means
from latebind.cli.console import Row, Rows
from research.live.played import Seconds
from research.live.tuning import tuned

OURS = "lazy+"
TUNED = "the best baseline, chosen by the other rounds"
OTHERS = ("GraphB(0, 64), leaving", "continuous", "lazy")  # no baselines of the paper's kind: shown, not compared with
NEAR = 0.15  # so far may simulated means be from live ones

Means = dict[str, list[float]]  # of each round, by side


@dataclass(frozen=True, slots=True)
class Block:
    """The outcome of one block under one policy: seconds of each request, live and in several simulated runs.

    `simulated` uses the costs of the calibrations around the block, `told_all` those of the block itself as well.
    """

    live: Seconds
    simulated: Sequence[Seconds]
    told_all: Sequence[Seconds]


@dataclass(frozen=True, slots=True)
class Floor:
    """A bound for all policies: seconds of a block's requests `alone`, and the `least` of `simulation.lower_bound`."""

    alone: Seconds
    least: Seconds


@dataclass(slots=True)
class LiveReport:
    """Blocks by load (a multiple of serial capacity) and policy, and seconds a request when there is always one more.

    `capacity` is what is answered serially, in requests a second; `allowed` the seconds after which an answer is late;
    `other_answers` how many differ from what the serial side answered to the same row. `floors` are of each block.
    """

    model: str
    seed: int
    capacity: float
    allowed: float
    other_answers: int = 0
    blocks: dict[float, dict[str, list[Block]]] = field(default_factory=dict)
    floors: dict[float, list[Floor]] = field(default_factory=dict)
    saturated: dict[str, list[float]] = field(default_factory=dict)

    def rows(self) -> Rows:
        """Return the latencies as rows of a table, and at each load `lazy+` against the baselines as tuned."""
        rows: Rows = []
        for load, sides in self.blocks.items():
            means = _live(sides)
            best = [sides[side][number] for number, side in enumerate(tuned(_baselines(means)))]
            for side, blocks in {**sides, TUNED: best}.items():
                live = np.concatenate([block.live for block in blocks])
                would = [_mean(block.simulated) for block in blocks]
                told_all = [_mean(block.told_all) for block in blocks]
                lives = [float(block.live.mean()) for block in blocks]
                rows.append(
                    {
                        "load": f"{load:.0%}",
                        "policy": side,
                        "mean ms": f"{live.mean() * 1e3:.2f}",
                        "p99 ms": f"{np.percentile(live, 99) * 1e3:.2f}",
                        "late": f"{(live > self.allowed).mean():.2%}",
                        "simulated ms": f"{np.mean(would) * 1e3:.2f}",
                        "live / simulated": self._ratio(lives, would),
                        "told all": self._ratio(lives, told_all),
                        f"over {OURS}": "" if side == OURS else self._ratio(lives, means[OURS]),
                    }
                )
        return rows

    def verdict_rows(self) -> Rows:
        """Return for each load who is ahead, live and simulated, and the share of the baseline that is left at least.

        What a request runs for alone no policy makes less; `least` is what one could reach that costs nothing itself.
        """
        return [self._verdict(load, sides) for load, sides in self.blocks.items()]

    def _verdict(self, load: float, sides: Mapping[str, Sequence[Block]]) -> Row:
        live, would = _live(sides), _simulated(sides)
        others, ours = _tuned_mean(live), float(np.mean(live[OURS]))
        ratios = [float(np.mean(live[side]) / np.mean(would[side])) for side in sides]
        near = sum([1.0 - NEAR <= ratio <= 1.0 + NEAR for ratio in ratios])
        floors = self.floors[load]
        alone = np.concatenate([one.alone for one in floors]).mean()
        least = np.concatenate([one.least for one in floors]).mean()
        return {
            "load": f"{load:.0%}",
            "quickest live": min(live, key=lambda side: float(np.mean(live[side]))),
            "simulated": min(would, key=lambda side: float(np.mean(would[side]))),
            f"{OURS} / tuned": f"{ours / others:.2f}",
            f"{OURS} / tuned, simulated": f"{np.mean(would[OURS]) / _tuned_mean(would):.2f}",
            f"means within {NEAR:.0%}": f"{near} of {len(sides)}",
            "alone / tuned": f"{alone / others:.2f}",
            "least / tuned": f"{least / others:.2f}",
        }

    def throughput_rows(self) -> Rows:
        """Return the throughputs as rows of a table, likewise."""
        if not self.saturated:
            return []
        best = [self.saturated[side][number] for number, side in enumerate(tuned(_baselines(self.saturated)))]
        return [
            {
                "policy": side,
                "requests a second": f"{1 / np.mean(seconds):.0f}",
                f"{OURS} over it": "" if side == OURS else self._ratio(seconds, self.saturated[OURS]),
            }
            for side, seconds in {**self.saturated, TUNED: best}.items()
        ]

    def _ratio(self, above: Sequence[float], below: Sequence[float]) -> str:
        """Return the ratio of means, paired by rounds, with an interval."""
        return str(ratio_of_means(above, below, seed=self.seed))


def _live(sides: Mapping[str, Sequence[Block]]) -> Means:
    return {side: [float(block.live.mean()) for block in blocks] for side, blocks in sides.items()}


def _simulated(sides: Mapping[str, Sequence[Block]]) -> Means:
    return {side: [_mean(block.simulated) for block in blocks] for side, blocks in sides.items()}


def _mean(runs: Sequence[Seconds]) -> float:
    return float(np.concatenate(runs).mean())


def _baselines(sides: Mapping[str, Sequence[float]]) -> dict[str, Sequence[float]]:
    return {side: figures for side, figures in sides.items() if side != OURS and side not in OTHERS}


def _tuned_mean(means: Means) -> float:
    """Return the mean of the best baseline, chosen for each round by the others."""
    return float(np.mean([means[side][number] for number, side in enumerate(tuned(_baselines(means)))]))
