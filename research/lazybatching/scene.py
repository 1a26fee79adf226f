"""What is simulated: networks on the paper's accelerator or models measured here, and the lengths of sentences."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from latebind.domain.config import ServedModel
from latebind.domain.errors import ConfigError
from latebind.program.stored import read_spec_and_costs
from latebind.repository.directory import ModelDirectory
from latebind.repository.listing import find_models
from latebind.simulation.workloads import Lengths
from research.hardware.networks import NETWORKS
from research.sides import alone

UNLIMITED = 1 << 30  # requests that may wait
LONGEST = 50  # words; longer ones are cut
DRAWN = 10_000
MEDIAN, SPREAD = 20.0, 0.55  # of words of English news, lognormal
RATIO_SPREAD = 0.2  # of words of a translation over those of its sentence
ONE: Sequence[tuple[int, int]] = ((1, 1),)  # of a network whose stages all run once


@dataclass(frozen=True, slots=True)
class Sentences:
    """`profiled` are lengths of answers that a policy may know before; requests are drawn from the pairs `asked`.

    `told` says in words where they are from.
    """

    profiled: tuple[int, ...]
    asked: Lengths
    told: str

    @classmethod
    def of(cls, pairs: NDArray[np.int64], source: str) -> "Sentences":
        """Take the first half of `pairs` `(N, 2)` for the profile and the other to ask for."""
        cut = np.clip(pairs, 1, LONGEST)
        half = len(cut) // 2
        over = int((pairs > LONGEST).any(axis=1).sum())
        told = f"{len(cut):,} pairs {source}" + (f", {over:,} of them cut to {LONGEST} words" if over else "")
        return cls(tuple(sorted(cut[:half, 1].tolist())), [(int(a), int(b)) for a, b in cut[half:]], told)


def read_sentences(given: str | None) -> Sentences:
    """Return lengths from an array `(N, 2)` of words in and out, given as `FILE.npz:ARRAY`; None: drawn ones.

    The array may be left out where the file has only one of that shape. Raises `ConfigError` for a file without such
    an array, or with several of which none is named: one of them taken in silence gave figures of another language.
    """
    if given is None:
        random = np.random.default_rng(0)
        words = MEDIAN * np.exp(SPREAD * random.standard_normal(DRAWN))
        translated = words * np.exp(RATIO_SPREAD * random.standard_normal(DRAWN))
        return Sentences.of(np.rint(np.stack([words, translated], axis=1)).astype(np.int64), "drawn like those of news")
    before, colon, after = given.rpartition(":")
    file, name = (before, after) if colon and before.endswith(".npz") else (given, None)
    try:
        with np.load(file) as arrays:
            found = {each: arrays[each] for each in arrays.files}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} is no .npz file of lengths: {error}") from None
    pairs = {each: array for each, array in found.items() if _has_lengths(array)}
    choice = (
        f"name one, as in --lengths {file}:{min(pairs)}; it has {', '.join(sorted(pairs))}"
        if pairs
        else "give words in and words out, a row for each pair"
    )
    if name is not None and name not in pairs:
        raise ConfigError(f"{file} has no array {name!r} (N, 2) of whole numbers of words: {choice}")
    if name is None and len(pairs) != 1:
        raise ConfigError(f"{file} has {'several arrays' if pairs else 'no array'} (N, 2) of lengths: {choice}")
    chosen = name or next(iter(pairs))
    return Sentences.of(pairs[chosen].astype(np.int64), f"of {chosen} in {file}")


def _has_lengths(array: NDArray[np.generic]) -> bool:
    whole = np.issubdtype(array.dtype, np.integer)
    return whole and array.ndim == 2 and array.shape[1] == 2 and len(array) > 1


@dataclass(frozen=True, slots=True)
class Scene:
    """Networks by name. `measured` ones stand beside those of LazyBatching's accelerator."""

    sentences: Sentences
    measured: Mapping[str, ServedModel] = field(default_factory=dict)

    def served(self, network: str) -> ServedModel:
        """Return the network as a scheduler knows it."""
        found = self.measured.get(network)
        return found or NETWORKS[network]().served(output_steps=self.sentences.profiled)

    def recurrent(self, network: str) -> bool:
        """Tell whether it has stages that repeat."""
        return bool(self.served(network).spec.kinds)

    def lengths(self, network: str) -> Lengths:
        """Return tokens in and out, to draw requests from.

        Of a measured model as many come in as go out, the latter as its profile has them.
        """
        served = self.served(network)
        if not served.spec.kinds:
            return ONE
        if network in self.measured:
            return [(steps, steps) for steps in served.costs.output_steps]
        return self.sentences.asked

    def capacity(self, network: str) -> float:
        """Return how many requests a second it answers one after another, by profile."""
        return 1.0 / alone(self.served(network), self.lengths(network))


def measured_models(repository: Path) -> dict[str, ServedModel]:
    """Return the models of a folder by name, with the costs that `build` measured. Raises as `find_models` does."""
    known = (read_spec_and_costs(ModelDirectory.open(path)) for path in find_models(repository))
    return {spec.name: ServedModel(spec, costs, max_queued=UNLIMITED) for spec, costs in known}
