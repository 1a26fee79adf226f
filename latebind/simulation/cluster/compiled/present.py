"""Linked lists of the models in the memory of each machine (for eviction), and of the machines with each model."""

from latebind.simulation.cluster.compiled import views as of
from latebind.simulation.cluster.compiled.compile import compiled
from latebind.simulation.cluster.compiled.views import State


@compiled
def enter_memory(s: State, machine: int, lane: int) -> None:
    """Add a lane to the list of those whose models are in memory, at least in part."""
    m, a = of.machines(s)[machine], of.lanes(s)[lane]
    a.next_here, a.previous_here = m.here, 0
    if m.here:
        of.lanes(s)[m.here - 1].previous_here = lane + 1
    m.here = lane + 1


@compiled
def enter_holders(s: State, lane: int) -> None:
    """Add a lane to the list of those, on all machines, where its model is wholly in memory."""
    a, model = of.lanes(s)[lane], lane % of.settings(s)[0].models
    holder = of.holders(s)[model]
    a.next_holder, a.previous_holder = holder, 0
    if holder:
        of.lanes(s)[holder - 1].previous_holder = lane + 1
    of.holders(s)[model] = lane + 1


@compiled
def leave_memory(s: State, machine: int, lane: int) -> None:
    """Remove a lane from the list of those whose models are in memory."""
    a = of.lanes(s)[lane]
    if a.previous_here:
        of.lanes(s)[a.previous_here - 1].next_here = a.next_here
    else:
        of.machines(s)[machine].here = a.next_here
    if a.next_here:
        of.lanes(s)[a.next_here - 1].previous_here = a.previous_here


@compiled
def leave_holders(s: State, lane: int) -> None:
    """Remove a lane from the list of those where its model is wholly in memory."""
    a, model = of.lanes(s)[lane], lane % of.settings(s)[0].models
    if a.previous_holder:
        of.lanes(s)[a.previous_holder - 1].next_holder = a.next_holder
    else:
        of.holders(s)[model] = a.next_holder
    if a.next_holder:
        of.lanes(s)[a.next_holder - 1].previous_holder = a.previous_holder
