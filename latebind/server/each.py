"""Rows of different sizes in one call: grouped by size, answered by one version, and split again for the reply."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
from msgspec.structs import replace

from latebind.domain.errors import Failed, InvalidRequest, LatebindError, Unavailable
from latebind.domain.model import ModelSpec, TensorSpec
from latebind.preprocessing.preprocessor import Prepared
from latebind.server.gateway import NO_DIMS, Answer, Array, Claim, Gateway, array_dtype, as_numbers
from latebind.server.tracing import TracedCall


class Part(NamedTuple):
    """Rows of equal sizes, by their numbers in the call, that share a claim; `dims` are their named dimensions."""

    rows: Sequence[int]
    dims: Mapping[str, int]


def parts_of(spec: ModelSpec, rows: Sequence[Prepared], most: int) -> list[Part]:
    """Return the rows of a call in parts of at most `most` rows of the same sizes, the largest rows first.

    Raises `InvalidRequest` for rows that the model does not take.
    """
    names = [tensor.name for tensor in spec.inputs]
    alike: dict[tuple[tuple[int, ...], ...], list[int]] = {}
    for number, row in enumerate(rows):
        try:
            shapes = tuple([row.tensors[name].shape for name in names])
        except KeyError as error:
            raise Failed(f"{spec.name}: preprocessing does not make its input {error}: build the model again") from None
        alike.setdefault(shapes, []).append(number)
    found = []
    for shapes, numbers in sorted(alike.items(), reverse=True):
        try:
            dims = spec.dims_of(dict(zip(names, shapes, strict=True)))
        except ValueError as error:
            raise InvalidRequest(f"row {numbers[0]}: tensor {error}") from None
        for tensor in spec.inputs:
            _check(tensor, numbers, [rows[number].tensors[tensor.name] for number in numbers])
        for begin in range(0, len(numbers), most):
            found.append(Part(numbers[begin : begin + most], dims or NO_DIMS))
    return found


def _check(tensor: TensorSpec, rows: Sequence[int], arrays: Sequence[Array]) -> None:
    """Raise unless these rows' arrays, all of one shape, have values that the input allows."""
    dtype = array_dtype(tensor.dtype)
    if any(array.dtype != dtype for array in arrays):
        raise Failed(f"input {tensor.name!r} is not made with dtype {tensor.dtype}: build the model again")
    if not tensor.is_limited or not arrays[0].size:
        return
    arrays = [as_numbers(array, tensor.dtype) for array in arrays]
    values = np.stack(arrays)
    if not tensor.allows(values.min().item(), values.max().item()):
        for number, array in zip(rows, arrays, strict=True):
            if not tensor.allows(array.min().item(), array.max().item()):
                found = f"{array.min()} to {array.max()}: they must be {tensor.range()}"
                raise InvalidRequest(f"row {number}: tensor {tensor.name!r} has values from {found}")


def write(part: Part, rows: Sequence[Prepared], places: Mapping[str, Sequence[Array]]) -> None:
    """Write the rows of a part into their places, those of a claim."""
    for name, some in places.items():
        for place, number in zip(some, part.rows, strict=True):
            place[...] = rows[number].tensors[name]


class Superseded(Unavailable):
    """A call for a version that another has replaced meanwhile."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name} was replaced while this request arrived: read its metadata and send the request again"
        )


@dataclass(frozen=True, slots=True)
class Sending:
    """A call of several rows of the model `spec`: what all of its parts have in common.

    `check` raises unless a version that has replaced `spec` may answer, `give_back` releases the slots of an answered
    part, and `unclaimed` gets the error and the number of rows that got no slots.
    """

    gateway: Gateway
    spec: ModelSpec
    check: Callable[[ModelSpec], None]
    give_back: Callable[[Claim, Answer], None]
    unclaimed: Callable[[LatebindError, int], None]
    deadline: float
    priority: int
    followed: TracedCall | None

    async def answers(self, parts: Sequence[Part], rows: Sequence[Prepared]) -> list[Answer]:
        """Return the answer to each row. Raises what the gateway raises, and `Superseded`."""
        if len(parts) == 1:  # the usual case needs no task
            return one_by_one(await self._answered(await self._claimed(parts[0], rows)), self.spec.outputs)
        found: list[Answer | None] = [None] * len(rows)
        for part, answer in zip(parts, await self._all(parts, rows), strict=True):
            for number, own in zip(part.rows, one_by_one(answer, self.spec.outputs), strict=True):
                found[number] = own
        return cast(list[Answer], found)

    async def _all(self, parts: Sequence[Part], rows: Sequence[Prepared]) -> list[Answer]:
        """Return the answers to several parts.

        A part waits for its slots while others are with the engine, but none waits while it holds any: so calls do not
        block each other. One part waits at a time: a call takes one place in line, however many rows it has.
        """
        held: set[Claim] = set()  # claims to release here, unless that has been done
        tasks: list[asyncio.Task[Answer]] = []
        current: ModelSpec | None = None
        new = 0  # rows since the event loop had a turn
        try:
            async with asyncio.TaskGroup() as group:
                for part in parts:
                    claim = await self._claimed(part, rows)
                    held.add(claim)
                    if current is None:
                        current = claim.spec
                    elif claim.spec is not current and (current.steps or claim.spec != current):
                        # A query's models may have changed although clients see the same query.
                        raise Superseded(current.name)
                    tasks.append(group.create_task(self._answered(claim, held)))
                    new += len(part.rows)
                    if new >= self.spec.max_batch:  # a batch is complete: it goes to the engine now
                        new = 0
                        await asyncio.sleep(0)
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            for claim in held:
                claim.release()
        return [task.result() for task in tasks]

    async def _claimed(self, part: Part, rows: Sequence[Prepared]) -> Claim:
        """Return the slots of a part, filled."""
        try:
            claim = await self.gateway.claim(
                self.spec.name, len(part.rows), deadline=self.deadline, priority=self.priority, dims=part.dims
            )
        except LatebindError as error:
            self.unclaimed(error, len(part.rows))
            raise
        try:
            if claim.spec is not self.spec:
                self.check(claim.spec)
            write(part, rows, claim.rows)
        except BaseException:
            claim.release()
            raise
        return claim

    async def _answered(self, claim: Claim, held: set[Claim] | None = None) -> Answer:
        """Send a filled claim, release it, and return its answer."""
        if held is not None:
            held.discard(claim)
        trace = 0 if self.followed is None else self.followed.sends()
        try:
            answer = await claim.send(deadline=self.deadline, priority=self.priority, trace=trace)
        except BaseException:
            claim.release()
            raise
        self.give_back(claim, answer)
        return answer


def one_by_one(answer: Answer, outputs: Sequence[TensorSpec]) -> list[Answer]:
    """Split an answer into one for each row, as if each row had been a call of its own."""
    found = []
    for number in range(len(answer.left_at)):
        row = slice(number, number + 1)
        own = {name: rows[row] for name, rows in answer.outputs.items()}
        for tensor in outputs:
            if tensor.padding is not None:  # a sequence: up to this row's last token
                own[tensor.name] = own[tensor.name][:, : _written(own[tensor.name], tensor.padding)]
        about = answer.left_at[row], answer.waited[row], answer.ran[row], answer.steps[row], answer.spec, True
        found.append(Answer(own, *about, answer.caches[row], answer.promised[row]))
    return found


def _written(tokens: Array, padding: int) -> int:
    return int((tokens != padding).any(axis=0).nonzero()[0].max(initial=0)) + 1


def check_alike(rows: Sequence[Prepared], outputs: Sequence[TensorSpec]) -> None:
    """Raise `InvalidRequest` if the answers to these rows would differ in size, so that no tensor holds them all."""
    vary = [tensor.name for tensor in outputs if any(not isinstance(size, int) for size in tensor.sizes)]
    shapes = {tuple([array.shape for array in row.tensors.values()]) for row in rows} if vary else {()}
    if len(shapes) > 1:
        raise InvalidRequest(
            f"output {vary[0]!r} is as large as its row, and the {len(rows)} rows of this call differ in size: send "
            "each as a separate call, or request other outputs"
        )


def joined(answers: Sequence[Answer], outputs: Sequence[TensorSpec]) -> Answer:
    """Return the answers of single rows as one, with these outputs. Sequences are padded to the longest.

    Rows of other outputs have one shape (`check_alike`).
    """
    if len(answers) == 1:
        return answers[0]
    found = {}
    for tensor in outputs:
        arrays = [answer.outputs[tensor.name] for answer in answers]
        if tensor.padding is not None:
            whole = np.full((len(arrays), max(array.shape[1] for array in arrays)), tensor.padding, tensor.dtype)
            for row, array in zip(whole, arrays, strict=True):
                row[: array.shape[1]] = array[0]
            found[tensor.name] = whole
        else:
            found[tensor.name] = np.concatenate(arrays)
    several = {
        name: tuple([one for answer in answers for one in getattr(answer, name)])
        for name in ("left_at", "waited", "ran", "steps", "caches", "promised")
    }
    return replace(answers[0], outputs=found, **several)
