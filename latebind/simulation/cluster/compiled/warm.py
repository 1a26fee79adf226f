"""Has everything compiled before it is needed: takes up to a minute once, and a moment where that has been done."""

from collections.abc import Callable

import numpy as np

from latebind.domain.config import ServedModel
from latebind.domain.costs import Curve, ModelCosts
from latebind.domain.footprint import Footprint
from latebind.domain.model import ModelSpec
from latebind.simulation.cluster.compiled.run import play
from latebind.simulation.cluster.fleet import ClusterModel, Fleet, MachineKind, Requests


def warm(tell: Callable[[str], None] = lambda line: None) -> None:
    """Play one request; `tell` is given a line about it first."""
    tell("compiling the simulation (up to a minute, the first time)")
    spec = ModelSpec("one", "1", (), (), 1, 1)
    served = ServedModel(spec, ModelCosts((Curve((1,), (0.001,)),)), footprint=Footprint((1,), (0.0,)))
    fleet = Fleet((MachineKind("one", 1),), (ClusterModel(served, 1.0),))
    play(fleet, Requests(np.zeros(1), np.zeros(1, dtype=np.int32), np.zeros(1, dtype=np.int16)))
