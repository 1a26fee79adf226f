"""What simulations run on: networks on the paper's accelerator or models measured here, and the lengths of answers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from latebind.domain.config import ServedModel
from latebind.program.stored import read_spec_and_costs
from latebind.repository.directory import ModelDirectory
from latebind.repository.listing import find_models
from latebind.simulation.workloads import Lengths
from research.hardware.networks import NETWORKS
from research.lazybatching.sentences import ONE, Sentences
from research.live.sides import alone

UNLIMITED = 1 << 30  # requests that may wait


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
