"""Tables of live runs."""

from collections.abc import Mapping, Sequence
from math import inf

import numpy as np
from numpy.typing import NDArray

from latebind.bench.statistics import ratio_of_means
from latebind.cli.console import Rows
from research.mcache.leaks import Leaks
from research.mcache.live.asked import Call
from research.mcache.live.cold import First, Start
from research.mcache.live.crowd import Crowds, longest_wait, throughput
from research.mcache.live.sides import LRU, Setting
from research.mcache.live.trace import Block, Blocks, Plan
from research.mcache.live.zoo import Zoo

NEIGHBOURS = 5  # requests that are resampled together: those who come next to each other wait for the same loads
MOST_LEFT = 16_000_000  # bytes that loads may leave behind


def zoo_rows(zoo: Zoo) -> Rows:
    """Return the memory and the loading time of each model."""
    return [
        {
            "model": name,
            "MB": round(model.size / 1e6, 1),
            "stages": model.spec.stages,
            "largest batch": model.spec.max_batch,
            "loads in ms": round(model.seconds * 1e3),
        }
        for name, model in zoo.models.items()
    ]


def trace_rows(blocks: Blocks, seed: int) -> Rows:
    """Return latencies and ratios of mean latency to both kinds of LRU, paired request by request."""
    return [
        {
            "side": name,
            "requests": len(_seconds(some)),
            "mean ms": round(float(_seconds(some).mean()) * 1e3, 1),
            "p50": round(float(np.percentile(_seconds(some), 50)) * 1e3, 1),
            "p99": round(float(np.percentile(_seconds(some), 99)) * 1e3, 1),
            **{f"mean / {base}": _ratio(some, blocks[base], seed) for base in (LRU,) if base in blocks},
            "lost": sum(block.lost for block in some),
        }
        for name, some in blocks.items()
    ]


def load_rows(blocks: Mapping[str, Sequence[Block]]) -> Rows:
    """Return what each side loaded, and from where. A load of `late` is one piece."""
    return [
        {
            "side": name,
            "loads": sum(block.loads for block in some),
            "GB read": round(sum(block.read for block in some) / 1e9, 2),
            "of it from the page cache": f"{_share(some):.1%}",
        }
        for name, some in blocks.items()
    ]


def memory_rows(blocks: Mapping[str, Sequence[Block]]) -> Rows:
    """Return how much larger each engine was at most than with nothing loaded, beside what models may take."""
    return [
        {
            "side": name,
            "budget MB": round(max(block.budget for block in some) / 1e6, 1),
            "weights MB at most": round(max(max(block.growth.weights) for block in some) / 1e6, 1),
            "weights above it": _above([block.growth.weights for block in some], [block.budget for block in some]),
            "with slots and batches MB": round(max(block.budget + block.beside for block in some) / 1e6, 1),
            "process MB at most": round(max(max(block.growth.all) for block in some) / 1e6, 1),
            "process above it": _above([b.growth.all for b in some], [b.budget + b.beside for b in some]),
        }
        for name, some in blocks.items()
    ]


def crowd_rows(crowds: Crowds, plan: Plan, setting: Setting, seed: int) -> Rows:
    """Return answers a second, their ratio to LRU in order, and the longest wait."""
    rows: Rows = []
    for share, sides in crowds.items():
        base = np.array([throughput(block, plan) for block in sides[LRU]]) if LRU in sides else None
        for name, some in sides.items():
            through = np.array([throughput(block, plan) for block in some])
            rows.append(
                {
                    "memory": f"{share:.0%}",
                    "side": name,
                    "answers a second": round(float(through.mean()), 2),
                    f"over {LRU}": _over(through, base, seed),
                    "longest wait s": round(max(map(longest_wait, some)), 2),
                    "bound s": setting.patience,
                    "lost": sum(block.lost for block in some),
                }
            )
    return rows


def cold_rows(firsts: Sequence[First]) -> Rows:
    """Return the median of the first answers of each model, by how it starts, and what of a whole start that is."""
    rows: Rows = []
    for model in dict.fromkeys(one.model for one in firsts):
        whole = _median(firsts, model, Start.WHOLE)
        for start in Start:
            some = [one for one in firsts if one.model == model and one.start is start]
            if some:
                seconds = _median(firsts, model, start)
                read = sum(one.read for one in some)
                rows.append(
                    {
                        "model": model,
                        "start": str(start),
                        "times": len(some),
                        "of it there": f"{np.mean([one.there for one in some]):.0%}",
                        "first answer ms": round(seconds * 1e3, 1),
                        "of a whole start": f"{seconds / whole:.2f}",
                        "from the page cache": f"{sum(one.cached for one in some) / read:.1%}" if read else "",
                    }
                )
    return rows


def leak_rows(leaks: Leaks) -> Rows:
    """Return what loads and unloads leaked."""
    return [
        {
            "loads": leaks.rounds,
            "model MB": round((leaks.loaded - leaks.before) / 1e6, 1),
            "left behind MB": round(leaks.left / 1e6, 2),
            "at most": round(MOST_LEFT / 1e6),
            "95 % back after s": "never" if leaks.back is None else round(leaks.back, 3),
            "ms each": round(leaks.seconds * 1e3, 1),
        }
    ]


def _seconds(blocks: Sequence[Block]) -> NDArray[np.float64]:
    """Return the seconds of those who were answered."""
    return np.array([call.seconds for call in _calls(blocks) if call.seconds < inf])


def _calls(blocks: Sequence[Block]) -> list[Call]:
    return [call for block in blocks for call in block.calls]


def _ratio(blocks: Sequence[Block], base: Sequence[Block], seed: int) -> str:
    ours, theirs = (np.array([call.seconds for call in _calls(one)]) for one in (blocks, base))
    answered = np.isfinite(ours) & np.isfinite(theirs)
    return str(ratio_of_means(ours[answered], theirs[answered], block=NEIGHBOURS, seed=seed))


def _over(through: NDArray[np.float64], base: NDArray[np.float64] | None, seed: int) -> str:
    return "" if base is None else str(ratio_of_means(through, base, seed=seed))


def _share(blocks: Sequence[Block]) -> float:
    return sum(block.cached for block in blocks) / max(1, sum(block.read for block in blocks))


def _above(grown: Sequence[Sequence[int]], budgets: Sequence[int]) -> str:
    above = sum(size > budget for sizes, budget in zip(grown, budgets, strict=True) for size in sizes)
    return f"{above} of {sum(map(len, grown))} samples"


def _median(firsts: Sequence[First], model: str, start: Start) -> float:
    return float(np.median([one.seconds for one in firsts if one.model == model and one.start is start] or np.nan))
