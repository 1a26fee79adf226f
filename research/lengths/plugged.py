"""Policies on requests of different lengths in the same server, live: what `simulated` has on the virtual clock."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from urllib.request import urlopen

import numpy as np
from numpy.typing import NDArray

from latebind.bench.client import past
from latebind.bench.rounds import Progress
from latebind.bench.statistics import Interval, ratio_of_means
from latebind.cli.console import Rows
from latebind.domain.errors import ConfigError
from latebind.program.load import load_program
from latebind.repository.directory import ModelDirectory
from latebind.simulation.workloads import Arrival
from research.evaluation import Found
from research.lengths.costs import Measured
from research.lengths.peers import MODEL, Asked, Loop, Side, Texts, all_of, as_records, latebind_side
from research.lengths.simulated import FIXED, OURS, Scene, played
from research.lengths.simulated import sides as policies
from research.peers.servers import Served
from research.sides import Side as Policy

MIX = "texts"
FEW = ("late", "lazy+", "first come(16)", "sorted(8)", "budget(256)", "programme(8)", "programme(16)")


def compare_policies(
    wanted: Sequence[str],
    repository: Path,
    directory: ModelDirectory,
    texts: Texts,
    folder: Path,
    *,
    loads: Sequence[float],
    rounds: int,
    seconds: float,
    seed: int,
    on_progress: Progress,
) -> Found:
    """Send calls at Poisson times to servers that differ in their policy; one worker has a core of its own.

    Capacity and deadline are those of the simulation, by the profile of the model, so its figures stand beside these.
    """
    program = load_program(directory)
    spec = program.spec
    longest = spec.dims[0].most
    costs = Measured("the profile of the model", longest, program.costs.stages)
    scene = Scene(costs, {MIX: tuple([tokens.numel() for tokens in texts.tokens])}, spec.max_batch)
    every = {one.label: one for one in policies(spec.max_batch)}
    if unknown := [label for label in wanted if label not in every]:
        raise ConfigError(f"there is no policy {unknown[0]!r}: take some of {', '.join(every)}")
    some = {label: every[label] for label in wanted or FEW if label in every}
    given = {label: _served(one, repository, folder, longest) for label, one in some.items()}
    capacity, allowed = scene.capacity(MIX), scene.allowed(MIX)
    rates = {load: load * capacity for load in loads}
    with all_of(given, texts, Loop(directory), seed) as here:
        asked = here.at_rates(rates, allowed, rounds, seconds, seed, on_progress)
        padding = {label: _padding(here.served[label]) for label in some}
    would = _simulated(some, scene, rates, allowed, rounds, seconds, seed)
    told = {
        "model": str(directory.path),
        "workers": 1,
        "capacity": capacity,
        "allowed": allowed,
        "lengths": [tokens.numel() for tokens in texts.tokens],
        "loads": as_records(asked, rates),
        "simulated": as_records(would, rates),
        "padding": padding,
        "why rows are padded": scene.why_padded(MIX),
    }
    title = f"policies, one worker, capacity {capacity:.0f} a second, {allowed * 1e3:.0f} ms allowed"
    padded: Rows = [{"side": label, "tokens run over tokens": f"{ratio:.2f}"} for label, ratio in padding.items()]
    return Found({title: _table(asked, would, some), f"padding: {scene.why_padded(MIX)}": padded}, raw=told)


def _simulated(
    some: Mapping[str, Policy],
    scene: Scene,
    rates: Mapping[float, float],
    allowed: float,
    rounds: int,
    seconds: float,
    seed: int,
) -> Asked:
    """Return what becomes of the same calls at the same times on the virtual clock, without a frontend."""
    lengths, last = scene.mixes[MIX], len(scene.costs.stages) - 1
    found: Asked = {load: {label: [] for label in some} for load in rates}
    for number in range(rounds):
        for load, rate in rates.items():
            times, random = past(seconds, rate, Random(f"{seed} {number} {load}")), Random(f"{seed} {number} {load}")
            rows = [lengths[random.randrange(len(lengths))] for _ in times]
            calls = [Arrival(at, MODEL, allowed, last, length) for at, length in zip(times, rows, strict=True)]
            for label, side in some.items():
                figures = played(calls, side, scene, allowed=allowed)
                found[load][label].append((figures.in_time, figures.mean))
    return found


def _padding(served: Served) -> float:
    """Return what a server tells of padding since it began: tokens run over tokens of the rows."""
    with urlopen(f"{served.url}/metrics", timeout=10) as reply:  # noqa: S310  (our own server on loopback)
        lines = reply.read().decode().splitlines()
    return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith("latebind_padding_ratio{")), 1.0)


def _served(one: Policy, repository: Path, folder: Path, longest: int) -> Side:
    """Return a server with this policy, whose clients fill up rows where the policy stands for fixed lengths."""
    name = "".join(letter if letter.isalnum() else "-" for letter in one.label)
    file = folder / f"{name}.toml"
    policy = one.policy
    lines = {"name": policy.name, "max_batch": policy.max_batch, "window": policy.window, "shed": policy.shed}
    said = "\n".join(f"{key} = {json.dumps(value)}" for key, value in lines.items())
    file.write_text(f"[engine]\nworkers = 1\ncores = [1]\n\n[policy]\n{said}\n")
    padded = longest if FIXED in one.kinds else 0
    return latebind_side(repository, ["--config", str(file)], folder / f"{name}.log", longest=padded)


def _table(asked: Asked, would: Asked, some: Mapping[str, Policy]) -> Rows:
    rows: Rows = []
    for load, by_side in asked.items():
        shares, means = (
            {label: np.array([found[place] for found in each]) for label, each in by_side.items()} for place in range(2)
        )
        others = [label for label in by_side if OURS not in some[label].kinds]
        best = max(others, key=lambda label: float(shares[label].mean()), default="")
        for label in by_side:
            rows.append(
                {
                    "load": f"{load:g}",
                    "side": label,
                    "in time": f"{shares[label].mean():.3f}",
                    "mean ms": f"{means[label].mean() * 1e3:.1f}",
                    "simulated / live, in time": _times(would[load][label], by_side[label], 0),
                    "simulated / live, mean": _times(would[load][label], by_side[label], 1),
                    "best baseline": best,
                    "in time over its": str(_over(shares, label, best)),
                    "mean over its": str(_over(means, label, best)),
                }
            )
    return rows


def _times(would: Sequence[tuple[float, float]], did: Sequence[tuple[float, float]], place: int) -> str:
    return str(ratio_of_means([found[place] for found in would], [found[place] for found in did]))


def _over(figures: Mapping[str, NDArray[np.float64]], label: str, best: str) -> Interval | str:
    return ratio_of_means(figures[label], figures[best]) if best else ""
