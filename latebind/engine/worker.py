"""Runs stages for one worker: gathers inputs, keeps activations, asks lookups, and writes outputs to slots."""

import logging
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Condition, Lock, Thread
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import ref

import msgspec
import numpy as np

from latebind.adaptation.controller import BUILT, number_of
from latebind.domain.actions import Run
from latebind.domain.events import Exited, StageDone
from latebind.engine.loaded import LoadedModel
from latebind.engine.shared import By, Owners
from latebind.engine.slots import Shape, Shapes, SizedSlots, Sizes, SlotMemory, front, longest, shapes_of
from latebind.engine.staging import HostStaging, Stream
from latebind.learned.head import Head
from latebind.learned.lookup import Lookup
from latebind.program.arrays import computing, copied, filled, run_lengths, stacked
from latebind.program.pieces import NotResident

if TYPE_CHECKING:
    from latebind.sequence.program import Decoding

logger = logging.getLogger(__name__)

Rows = Any  # an array on the host, a tensor on a device

# How many lookups aside of one worker wait for the one that runs. If lookups are slower than stages, the oldest is
# dropped: its network has come furthest, so an answer would save it the least.
MOST_WAITING: Final = 2


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Batch:
    """Inputs of a stage, each `(B, ...)`, and the request that each row belongs to; some may have ended.

    Where rows differ in size, `sizes` are those of each, and `shapes` gives the shapes of a row's tensors by its sizes.
    They are padded to the longest row.
    """

    requests: tuple[int, ...]
    tensors: tuple[Rows, ...]
    sizes: tuple[Sizes, ...] = ()
    shapes: Shapes | None = None

    def cut(self, places: Sequence[int]) -> tuple[Rows, ...]:
        """Return the tensors of all rows, with only the padding that the rows at `places` need."""
        assert self.shapes is not None, "all rows have one size"
        shapes = self.shapes(longest([self.sizes[place] for place in places]))
        rows = len(self.requests)
        return tuple([tensor[front((rows, *shape))] for tensor, shape in zip(self.tensors, shapes, strict=True)])

    def some(self, requests: tuple[int, ...]) -> "Batch":
        """Return a copy of the rows of these requests, of a single tensor."""
        numbers = {request: place for place, request in enumerate(self.requests)}
        places = [numbers[request] for request in requests]
        if self.shapes is None:
            (activation,) = self.tensors
            return Batch(requests, (activation[places],))
        (activation,) = self.cut(places)
        return Batch(requests, (activation[places],), tuple([self.sizes[place] for place in places]), self.shapes)

    def alone(self, place: int) -> "Batch":
        """Return a copy of a row by itself."""
        tensors = self.tensors if self.shapes is None else self.cut((place,))
        row = tuple([copied(tensor[place : place + 1]) for tensor in tensors])
        return Batch(self.requests[place : place + 1], row, self.sizes[place : place + 1], self.shapes)

    def row(self, request: int) -> Rows:
        """Return the row of one request, of a single tensor."""
        place = self.requests.index(request)
        (activation,) = self.tensors if self.shapes is None else self.cut((place,))
        return activation[place]

    def own_shapes(self) -> tuple[Shape, ...]:
        """Return the unpadded shape of each row of a single tensor; nothing if none is padded."""
        if self.shapes is None or len(set(self.sizes)) == 1:
            return ()
        return tuple([self.shapes(size)[0] for size in self.sizes])

    def check(self) -> None:
        """Raise `ValueError` if tensors do not have the shapes specified for their rows."""
        if self.shapes is not None:
            wanted = self.shapes(longest(self.sizes))
            found = tuple([tuple(tensor.shape[1:]) for tensor in self.tensors])
            if found != wanted:
                raise ValueError(f"rows of sizes {longest(self.sizes)} came out as {found}, not as {wanted}")


def joined(batches: Mapping[int, Batch]) -> Batch:
    """Return the rows of requests, each of a batch, as one batch: shorter ones are padded with zeros."""
    requests, rows = tuple(batches), [batch.row(request) for request, batch in batches.items()]
    shapes = next(iter(batches.values())).shapes
    if shapes is None:
        return Batch(requests, (stacked(rows),))
    sizes = tuple([batch.sizes[batch.requests.index(request)] for request, batch in batches.items()])
    if len(set(sizes)) == 1:
        return Batch(requests, (stacked(rows),), sizes, shapes)
    (shape,) = shapes(longest(sizes))
    whole = filled(rows[0], (len(rows), *shape))
    for place, row in enumerate(rows):
        whole[place][front(row.shape)] = row
    return Batch(requests, (whole,), sizes, shapes)


class Activations:
    """The activations of one worker, for its thread alone. The `owners` of rows keep them, and they end with these.

    A stage that raised leaves its inputs here: its requests may run it again, apart.
    """

    def __init__(self, owners: Owners) -> None:
        self._live = owners.live
        self._last: ref[Batch] | None = None  # the output of the last stage, in memory that the stage will reuse

    def keep(self, batch: Batch) -> None:
        """Keep the output of a stage for those of its requests that have not ended."""
        for request in batch.requests:
            if (owner := self._live.get(request)) is not None:
                owner.activation = batch
        self._last = ref(batch)

    def put_aside(self, but: Collection[int] = ()) -> None:
        """Copy the rows of the last output that requests other than `but` continue from: another batch is to run.

        Each row is a copy by itself, to be freed by itself.
        """
        last = None if self._last is None else self._last()
        if last is None:
            return
        for place, request in enumerate(last.requests):
            owner = self._live.get(request)
            if owner is not None and owner.activation is last and request not in but:
                owner.activation = last.alone(place)

    def take(self, action: Run) -> Batch:
        """Return what the requests of `action` continue from, in their order.

        Requests that a lookup aside has answered since the scheduler decided have ended: they are left out, and perhaps
        none is left. The batch stays kept until `keep` replaces it.
        """
        owners = [(one, self._live.get(one)) for one in action.requests]
        kept = {one: batch for one, owner in owners if owner is not None and (batch := owner.activation) is not None}
        requests, last = tuple(kept), None if self._last is None else self._last()
        if not kept:
            return Batch((), ())
        if last is None or any(batch is not last for batch in kept.values()):
            self.put_aside()
            batch = joined(kept)
        else:
            self.put_aside(but=kept)
            if requests == last.requests:
                return last
            batch = last.some(requests)
        self.keep(batch)
        return batch


class Failures:
    """Logs models that raise: each kind of failure once with its traceback, then only how often.

    A kind is what failed, the type of error and the line that raised it. Thread-safe.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._counts = Counter[tuple[str, str]]()
        self._counting = Lock()

    def log(self, what: str, error: Exception, request: str = "") -> None:
        """Count a failure of `what`; log the first of its kind, and the tenth, the hundredth and so on.

        `request` says whose it was. What differs between requests belongs there, not in `what`.
        """
        lines = [f"{frame.f_code.co_filename}:{line}" for frame, line in traceback.walk_tb(error.__traceback__)]
        kind = what, " at ".join([type(error).__name__, *lines[-1:]])
        with self._counting:
            self._counts[kind] += 1
            count = self._counts[kind]
        if count == 1:
            self._logger.error("%s failed%s", what, request, exc_info=error)
        elif str(count).strip("0") == "1":
            self._logger.error("%s has failed %d times with %s", what, count, kind[1])


class Asked(NamedTuple):
    """A lookup, by this `version` of the learned caches, of an activation `(B, ...)` behind `action.stage`.

    `shapes` are the unpadded ones of its rows, if some are padded, and `levels` the thresholds of each row, if rows
    differ in how sure an answer must be.
    """

    lookup: Lookup
    version: int
    action: Run
    activation: Rows
    shapes: tuple[Shape, ...]
    levels: Sequence[Mapping[str, float]]


class Aside:
    """Lookups on a thread beside a worker, while the network runs on (GATI, section 6), performed by `look_up`.

    Few wait (`MOST_WAITING`), and those whose requests have all been answered, according to the `owners`, are skipped.
    If a lookup raises, the network answers.
    """

    def __init__(self, owners: Owners, look_up: Callable[[Asked], tuple[int, ...]]) -> None:
        self._owners = owners
        self._look_up = look_up
        self._failures = Failures(logger)
        self._waiting: deque[Asked] = deque(maxlen=MOST_WAITING)
        self._changed = Condition()  # guards `_waiting` and `_closed`
        self._closed = False
        self._thread: Thread | None = None

    def start(self, report: Callable[[Exited], None]) -> None:
        """Perform lookups as they are asked for, until this is closed; call `report` with the requests answered."""
        self._thread = Thread(target=self._serve, args=(report,), name="lookups", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Return when the lookup under way has ended; those that wait are dropped."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def ask(self, asked: Asked) -> None:
        """Queue a lookup; nobody else may change its activation."""
        with self._changed:
            self._waiting.append(asked)
            self._changed.notify()

    def perform(self) -> Exited | None:
        """Perform the next useful lookup, if one waits; return the requests that it answers, if any."""
        with self._changed:
            while self._waiting:
                asked = self._waiting.popleft()
                if self._owners.any_unanswered(asked.action.requests):
                    break
            else:
                return None
        action = asked.action
        try:
            answered = self._look_up(asked)
        except NotResident:  # it was evicted from memory while it waited for its turn
            return None
        except Exception as error:
            what = f"a lookup of {action.model} behind stage {action.stage}"
            self._failures.log(what, error, ": the network answers")
            return None
        return Exited(action.worker, action.stage, answered) if answered else None

    def _serve(self, report: Callable[[Exited], None]) -> None:
        """Root of the thread."""
        with computing():
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._waiting or self._closed)
                    if self._closed:
                        return
                if (exited := self.perform()) is not None:
                    report(exited)


def left_of(action: Run, requests: tuple[int, ...]) -> Run:
    """Return an action for these of its requests only."""
    places = [action.requests.index(request) for request in requests]
    slots, levels = ([rows[place] for place in places] if rows else [] for rows in (action.slots, action.levels))
    return msgspec.structs.replace(action, requests=requests, slots=tuple(slots), levels=tuple(levels))


def _decoding(model: LoadedModel, sized: SizedSlots) -> "Decoding":
    """Return the requests of a sequence model that a worker decodes."""
    from latebind.sequence.program import Decoding, SequenceProgram  # noqa: PLC0415  (with torch)

    assert isinstance(model.program, SequenceProgram)
    return Decoding(model.program, sized.first, partial(sized.row, number=1))


class Caches(NamedTuple):
    """The learned caches that a worker uses for a model: lookups by stage, their version, and thresholds by level."""

    version: int
    lookups: Mapping[int, Lookup]
    levels: Sequence[Mapping[str, float]]


class Worker:
    """One stream of execution. `run` is called by one thread at a time.

    Without `stream` it computes on the CPU. All workers of an engine share the owners of `memory`; the driver notifies
    these when a request ends.
    """

    def __init__(self, models: Mapping[str, LoadedModel], memory: SlotMemory, *, stream: Stream | None = None) -> None:
        self._models = models
        self.owners = memory.owners
        self._stream = stream or HostStaging(list(models), memory)
        self._slots = memory.by_name
        self._shapes = {
            name: [shapes_of(model.spec, graph.inputs) for graph in model.program.graphs]
            for name, model in models.items()
            if model.spec.dims
        }  # of what each stage takes, where rows differ in size
        on_host = isinstance(self._stream, HostStaging)  # which gives arrays
        self._chains: dict[str, Sequence[Callable[..., tuple[Rows, ...]]]] = {
            name: model.program.calls if on_host else model.program.stages for name, model in models.items()
        }
        self._sequences = {
            name: _decoding(model, sized)
            for name, model in models.items()
            if model.spec.kinds and (sized := self._slots[name].sized) is not None
        }
        self._caches = {
            name: Caches(number_of(BUILT), model.lookups, model.promises.thresholds) for name, model in models.items()
        }
        self._activations = Activations(self.owners)
        asides = any(model.costs.aside for model in models.values())
        self._aside = Aside(self.owners, self._look_up) if asides else None

    def report_exits_to(self, report: Callable[[Exited], None]) -> None:
        """Perform lookups aside from now on, and call `report`, on a thread of its own, for requests they answer."""
        if self._aside is not None:
            self._aside.start(report)

    def close(self) -> None:
        """Wait for a lookup aside that is under way."""
        if self._aside is not None:
            self._aside.close()

    def adopt(
        self,
        model: str,
        version: int,
        heads: Mapping[str, tuple[Head, float]] | None,
        levels: Sequence[Mapping[str, float]] = (),
    ) -> None:
        """Use these heads and thresholds, by name, from the next stage on; None: those of `build`. Thread-safe.

        `levels` are the thresholds by level, for a model whose requests have levels. `version` is noted with each
        answer from then on.
        """
        built = self._models[model].lookups
        if heads is not None:
            adopted = {stage: lookup.with_heads(heads) for stage, lookup in built.items()}
            built = {stage: lookup for stage, lookup in adopted.items() if lookup is not None}
        self._caches[model] = Caches(version, built, levels)

    def run(self, action: Run) -> StageDone:
        """Run one stage. Requests whose answer is complete have it in their slots and are reported once as exited.

        If this raises, no request has an answer from it, and it may run again for any of them.
        """
        sequence = self._sequences.get(action.model)
        if sequence is None:
            with self._stream.running():
                return self._run_chain(action)
        if action.stage == 0:
            self.owners.begin(action, sequence.ended)
            sequence.read(action.slots)
            return StageDone(action.worker)
        complete = set(sequence.step(action.slots))
        rows = zip(action.requests, action.slots, strict=True)
        return StageDone(action.worker, tuple([request for request, slot in rows if slot in complete]))

    def _run_chain(self, action: Run) -> StageDone:
        """Run a stage and ask the learned cache behind it. With lookups aside, no exits are reported here."""
        stages, sized = self._chains[action.model], self._slots[action.model].sized
        if action.stage == 0:
            self._activations.put_aside()
            if len(stages) > 1:  # else nothing is kept, and one stage answers
                self.owners.begin(action)
            batch = Batch(action.requests, self._stream.inputs(action)) if sized is None else self._read(sized, action)
        else:
            batch = self._activations.take(action)
            if not batch.requests:
                return StageDone(action.worker)
            if batch.requests != action.requests:  # lookups aside have answered the others
                action = left_of(action, batch.requests)
        results = stages[action.stage](*batch.tensors) if sized is None else self._of_sizes(action, batch)
        if action.stage + 1 == len(stages):
            self._end(action, results, batch.sizes)
            return StageDone(action.worker)
        if sized is None:
            output = Batch(batch.requests, results)
        else:
            output = Batch(batch.requests, results, batch.sizes, self._shapes[action.model][action.stage + 1])
            output.check()
        caches = self._caches[action.model]
        lookup = caches.lookups.get(action.stage)
        levels = [caches.levels[level] for level in action.levels]
        exited: tuple[int, ...] = ()
        seconds = 0.0
        if lookup is None or not lookup.there or (levels and not any(levels)):
            self._activations.keep(output)
        elif self._aside is not None and self._models[action.model].costs.aside:
            asked = Asked(lookup, caches.version, action, copied(results[0]), output.own_shapes(), levels)
            self._stream.wait()  # another thread reads it
            self._activations.keep(output)
            self._aside.ask(asked)
        else:
            begun = time.monotonic()
            exited = self._look_up(Asked(lookup, caches.version, action, results[0], output.own_shapes(), levels))
            seconds = time.monotonic() - begun
            self._activations.keep(output)  # not before: if the lookup raises, the stage runs again from its inputs
        return StageDone(action.worker, exited, seconds)

    def _of_sizes(self, action: Run, batch: Batch) -> tuple[Rows, ...]:
        """Return a stage's results for rows whose sizes may differ."""
        stage, sizes = self._chains[action.model][action.stage], set(batch.sizes)
        if len(sizes) == 1:
            return stage(*batch.tensors)
        if self._models[action.model].spec.one_size:
            raise ValueError(f"rows of {action.model} with sizes {sizes} ran together: its rows need one size")
        return run_lengths(stage, [length for (length,) in batch.sizes], batch.tensors)

    def _read(self, sized: SizedSlots, action: Run) -> Batch:
        """Return the inputs of requests whose rows differ in size."""
        sizes = sized.sizes(action.slots)
        tensors = self._stream.there(sized.padded(action.slots, sizes), sized.spec.inputs)
        return Batch(action.requests, tensors, sizes, self._shapes[action.model][0])

    def _look_up(self, asked: Asked) -> tuple[int, ...]:
        """Write the answers of hits into the slots of requests that have none yet, and return these requests."""
        answers, hits = asked.lookup(asked.activation, asked.shapes, asked.levels)
        action, slots = asked.action, self._slots[asked.action.model]
        with self.owners.answering(By.LOOKUP, action.requests, np.flatnonzero(hits).tolist()) as places:
            for place in places:
                if slots.sized is None:
                    slots.outputs[0][action.slots[place]] = answers[place]
                else:
                    slots.sized.write(action.slots[place], [answers[place]])
                slots.versions[action.slots[place]] = asked.version
                slots.promised[action.slots[place]] = self._promised(action, place)
        return tuple([action.requests[place] for place in places])

    def _promised(self, action: Run, place: int) -> float:
        """Return the fidelity promised for the answer to a request: that of its level, wherever it leaves.

        The promise may not depend on where a request leaves: those that leave late are the hard ones.
        """
        return self._models[action.model].promises.fidelity[action.levels[place] if action.levels else 0]

    def _end(self, action: Run, results: Sequence[Rows], sizes: Sequence[Sizes]) -> None:
        """Write the outputs of the network into the slots of the requests that have no answer yet."""
        sized = self._slots[action.model].sized
        outputs = [] if sized is None else self._stream.back(results)
        if sized is not None:
            sized.check(outputs, sizes)
        places: Sequence[int] = range(len(action.requests))
        slots: Sequence[int] = action.slots
        if self._models[action.model].lookups:
            with self.owners.answering(By.NETWORK, action.requests, places) as found:
                if len(found) < len(places):
                    places, slots = found, [slots[place] for place in found]
            self._slots[action.model].versions[list(slots)] = self._caches[action.model].version
            self._slots[action.model].promised[list(slots)] = [self._promised(action, place) for place in places]
        if sized is None:
            self._stream.answer(action.model, slots, results, places)
            return
        for slot, place in zip(slots, places, strict=True):
            sized.write(slot, [output[place] for output in outputs])
