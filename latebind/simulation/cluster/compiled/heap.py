"""What is due on machines, the soonest first: a heap in which each machine has a place for every kind of event.

Whatever is due at the same time goes in the order in which it was scheduled. Scheduling anew replaces.
"""

from latebind.simulation.cluster.compiled import views as of
from latebind.simulation.cluster.compiled.compile import compiled
from latebind.simulation.cluster.compiled.views import State


@compiled
def schedule(s: State, slot: int, time: float) -> None:
    """Have the event of a slot be due at `time`."""
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
    """Take the event of a slot out, if there is one."""
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
    """Put an event at a free place, or above where it goes before others."""
    while place > 0:
        above = (place - 1) >> 1
        if of.event_times(s)[above] < time or (of.event_times(s)[above] == time and of.event_orders(s)[above] < order):
            break
        put(s, place, of.event_slots(s)[above], of.event_times(s)[above], of.event_orders(s)[above])
        place = above
    put(s, place, slot, time, order)


@compiled
def sink(s: State, place: int) -> None:
    """Let an event go down below those that go before it."""
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
    """Tell whether what lies at a place goes before another."""
    there = of.event_times(s)[place]
    return bool(there < time or (there == time and of.event_orders(s)[place] < order))


@compiled
def put(s: State, place: int, slot: int, time: float, order: int) -> None:
    """Write an event to a place."""
    of.event_slots(s)[place], of.event_times(s)[place], of.event_orders(s)[place] = slot, time, order
    of.event_places(s)[slot] = place
