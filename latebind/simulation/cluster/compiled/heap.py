"""A heap of the events that are due on machines. Each machine has a fixed slot for every kind of event.

Events that are due at the same time are handled in the order in which they were scheduled. Scheduling an event again
replaces it.
"""

from latebind.simulation.cluster.compiled import views as of
from latebind.simulation.cluster.compiled.compile import compiled
from latebind.simulation.cluster.compiled.views import State


@compiled
def schedule(s: State, slot: int, time: float) -> None:
    """Schedule the event of a slot at `time`."""
    tally = of.tally(s)[0]
    place = of.event_places(s)[slot]
    if place < 0:
        place = tally.due
        tally.due += 1
    tally.order += 1
    rise(s, place, slot, time, tally.order)
    sink(s, of.event_places(s)[slot])


@compiled
def call_off(s: State, slot: int) -> None:
    """Remove the event of a slot, if there is one."""
    place = of.event_places(s)[slot]
    if place < 0:
        return
    of.event_places(s)[slot] = -1
    tally = of.tally(s)[0]
    tally.due -= 1
    last = tally.due
    if place < last:
        rise(s, place, of.event_slots(s)[last], of.event_times(s)[last], of.event_orders(s)[last])
        sink(s, of.event_places(s)[of.event_slots(s)[place]])


@compiled
def rise(s: State, place: int, slot: int, time: float, order: int) -> None:
    """Put an event at a free place, or move it up until its parent is due before it."""
    while place > 0:
        above = (place - 1) >> 1
        if of.event_times(s)[above] < time or (of.event_times(s)[above] == time and of.event_orders(s)[above] < order):
            break
        put(s, place, of.event_slots(s)[above], of.event_times(s)[above], of.event_orders(s)[above])
        place = above
    put(s, place, slot, time, order)


@compiled
def sink(s: State, place: int) -> None:
    """Move an event down until none of its children is due before it."""
    slot, time, order = of.event_slots(s)[place], of.event_times(s)[place], of.event_orders(s)[place]
    due = of.tally(s)[0].due
    while True:
        below = 2 * place + 1
        if below >= due:
            break
        if below + 1 < due and goes_before(s, below + 1, of.event_times(s)[below], of.event_orders(s)[below]):
            below += 1
        if not goes_before(s, below, time, order):
            break
        put(s, place, of.event_slots(s)[below], of.event_times(s)[below], of.event_orders(s)[below])
        place = below
    put(s, place, slot, time, order)


@compiled
def goes_before(s: State, place: int, time: float, order: int) -> bool:
    """Tell whether the event at a place is due before another event."""
    there = of.event_times(s)[place]
    return bool(there < time or (there == time and of.event_orders(s)[place] < order))


@compiled
def put(s: State, place: int, slot: int, time: float, order: int) -> None:
    """Write an event to a place."""
    of.event_slots(s)[place], of.event_times(s)[place], of.event_orders(s)[place] = slot, time, order
    of.event_places(s)[slot] = place
