"""What the APIs of all tools share: which model is meant, running its rows, and scores from its logits.

Headers set the deadline and the priority of a call, because no API has both.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Final, NamedTuple, Self, TypeVar

import msgspec
import numpy as np
import orjson

from latebind.domain.errors import InvalidRequest, NotFinite, TooLarge
from latebind.domain.model import Activation, ModelSpec, Task
from latebind.preprocessing.preprocessor import Prepared, Reading
from latebind.preprocessing.text import TEXT, TextPreprocessor
from latebind.server.calls import WAITED_HEADER, Terms, check_schedule, with_time_waited
from latebind.server.each import Superseded
from latebind.server.faults import request_id
from latebind.server.gateway import Answer, Array
from latebind.server.limits import Limits, most_rows
from latebind.server.rest.infer import JSON_LINES, TRACEPARENT, Context, check_depth
from latebind.server.rest.messages import Reply
from latebind.server.rest.protocol import Request
from latebind.server.service import MICROSECOND, Service

T = TypeVar("T")

TIMEOUT: Final = b"latebind-timeout"  # seconds
PRIORITY: Final = b"latebind-priority"
CUT: Final = b"latebind-truncated"  # how many texts of the call were cut to what the model reads
REQUEST_ID: Final = b"x-request-id"
NUMBERS = 1 << 16  # that are written at a time, in about two milliseconds
LONGEST = 1e9  # seconds: anything longer is not accepted as a time-out

# One text or several, or the same in tokens of the model (`texts_or_ids`).
Texts = str | list[str | int | list[int]]
AtMost = Annotated[int, msgspec.Meta(ge=0)] | None


# Which model ----------------------------------------------------------------------------------------------------------


def chosen(service: Service, name: str | None, *tasks: Task, key: str = "") -> ModelSpec:
    """Return the model of this name, or the only one for one of these `tasks` if a call names none.

    Of several versions it is the next in turn, or the one of this `key`. It reads texts. Raises `NotFound`,
    `Unavailable`, and `InvalidRequest`, which lists the models that there are.
    """
    fit = [spec for spec in service.models() if spec.name == spec.public_name and _fits(spec, tasks)]
    if name:
        spec = service.chosen(name, key=key)
        if _fits(spec, tasks):
            return spec
        problem = f"model {name!r} {_unfit(spec)}"
    elif len(fit) == 1:
        return service.chosen(fit[0].name, key=key)
    else:
        problem = "the call names no `model`"
    names = ", ".join([spec.name for spec in fit[:20]])
    available = f"of which there are {names}" if names else "of which none is served"
    raise InvalidRequest(f"{problem}: ask one to {' or '.join(tasks)} texts, {available}")


def _fits(spec: ModelSpec, tasks: Sequence[Task]) -> bool:
    return spec.about.task in tasks and any(raw.name == TEXT for raw in spec.about.raw)


def _unfit(spec: ModelSpec) -> str:
    """Return why a model does not fit."""
    if spec.about.task and (read := [raw.name for raw in spec.about.raw]) and TEXT not in read:
        return f"reads {', '.join(read)}, not {TEXT}"
    if spec.steps and not spec.about.task:
        return "is a query whose first output is not always a model's answer to texts"
    return f"is one to {spec.about.task}" if spec.about.task else "takes only tensors"


class Named(msgspec.Struct):
    """The part of a body that names its model."""

    model: str | None = None


NAMED = msgspec.json.Decoder(Named)


def model_named(body: bytes) -> str:
    """Return the model that a body names; "" if it names none or is invalid, which is reported when it is read."""
    try:
        return NAMED.decode(body).model or ""
    except (ValueError, RecursionError):
        return ""


# What comes -----------------------------------------------------------------------------------------------------------


async def read_body(context: Context, request: Request, decoder: "msgspec.json.Decoder[T]") -> T:
    """Read the body as JSON. Raises what reading raises, `TooLarge` and `InvalidRequest`."""
    text, limits = await request.read(), context.limits
    if len(text) > limits.json_bytes:
        raise TooLarge(f"the body has {len(text)} bytes, more than {limits.json_bytes}: send fewer texts in a call")
    check_depth(text, limits.json_depth)
    try:
        found = decoder.decode(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the JSON is invalid for this call: {error!s:.200}") from None

    request.release()
    request.watch()
    return found


def texts_or_ids(given: Texts) -> tuple[list[str], list[list[int]]]:
    """Return the texts, or else the rows of tokens, of an input of either. Raises `InvalidRequest`."""
    items = [given] if isinstance(given, str) else given
    kinds = set(map(type, items))
    if kinds == {str}:
        return items, []  # type: ignore[return-value]
    if kinds == {int}:
        return [], [items]  # type: ignore[list-item]
    if kinds == {list}:
        return [], items  # type: ignore[return-value]
    if not items:
        raise InvalidRequest("the input is empty: send a text, or a list of texts")
    raise InvalidRequest("the input mixes texts, tokens and lists of tokens: send only one kind")


def _terms(fields: Mapping[bytes, bytes]) -> Terms:
    """Return the id and the schedule in the headers of a request. Raises `InvalidRequest`."""
    seconds, priority = _number(fields, TIMEOUT, float), int(_number(fields, PRIORITY, int))
    if seconds > LONGEST:
        raise InvalidRequest(f"the header {TIMEOUT.decode()} is not a number of seconds: leave it out, or send fewer")
    timeout = max(1, int(seconds / MICROSECOND)) if seconds else 0  # 0 is the default
    check_schedule(timeout, priority, None)
    terms = Terms(fields.get(REQUEST_ID, b"").decode("latin-1"), timeout, priority)
    return with_time_waited(terms, fields.get(WAITED_HEADER))


def _number(fields: Mapping[bytes, bytes], header: bytes, kind: type[float]) -> float:
    value = fields.get(header)
    try:
        number = kind(value) if value else 0
    except ValueError:
        number = -1
    if not number >= 0:
        raise InvalidRequest(f"the header {header.decode()} is not a number of 0 or more: leave it out, or send one")
    return number


# Asking ---------------------------------------------------------------------------------------------------------------


class Result(NamedTuple):
    """A model's answers to the rows of one call."""

    spec: ModelSpec
    rows: Sequence[Prepared]
    answers: Sequence[Answer]
    id: str  # of the call
    lines: bytes  # of the head of its reply
    ids: str  # the model's input that has the tokens, where texts are read by a tokenizer

    @property
    def tokens(self) -> int:
        """How many tokens were read."""
        return sum([row.used for row in self.rows])

    @property
    def usage(self) -> dict[str, int]:
        """The same in OpenAI's form."""
        return {"prompt_tokens": self.tokens, "total_tokens": self.tokens}

    @property
    def outputs(self) -> list[Array]:
        """The output of each row `(1, *shape) float32`."""
        name = self.spec.outputs[0].name
        return [np.asarray(answer.outputs[name], np.float32) for answer in self.answers]

    @property
    def output(self) -> Array:
        """The output `(N, *shape) float32`, where all rows have one shape."""
        return np.concatenate(self.outputs)

    def reply(self, body: object) -> Reply:
        """Return the reply with this body."""
        return Reply(_json(body), lines=self.lines)

    async def reply_each(self, before: bytes, items: Sequence[object], behind: bytes, numbers: int) -> Reply:
        """Return the reply with this list, of `numbers` numbers an item; other tasks get a turn in between."""
        step, parts = max(1, NUMBERS // max(1, numbers)), [before]
        for begin in range(0, len(items), step):
            if begin:
                await asyncio.sleep(0)
                parts.append(b",")
            parts.append(_json(items[begin : begin + step])[1:-1])
        return Reply(b"".join([*parts, behind]), lines=self.lines)


def _json(value: object) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


@dataclass(frozen=True, slots=True)
class Asking:
    """A call of one model. Its time counts from its creation."""

    service: Service
    spec: ModelSpec
    limits: Limits
    terms: Terms
    parent: str  # the caller's span

    @classmethod
    def of(cls, context: Context, request: Request, model: str | None, *tasks: Task) -> Self:
        """Return the call that a request makes. Raises what `chosen` raises, and `InvalidRequest` for its headers."""
        fields, service = request.fields, context.service
        model = request.names.get("model") or model  # TEI's bodies name none, so its paths may
        parent = fields.get(TRACEPARENT, b"").decode("latin-1")
        key = fields.get(service.split_by, b"").decode("latin-1") if service.split_by else ""
        return cls(service, chosen(service, model, *tasks, key=key), context.limits, _terms(fields), parent)

    @property
    def preprocessor(self) -> TextPreprocessor:
        """What makes the model's tokens. Raises `InvalidRequest` if it has no tokenizer for texts."""
        found = self.service.gateway.preprocessor(self.spec.name)
        if not isinstance(found, TextPreprocessor):
            raise InvalidRequest(f"{self.spec.name!r} takes no tokens: send texts")
        return found

    async def read(self, texts: Mapping[str, Sequence[str]], how: Reading) -> list[Prepared]:
        """Return a row for each of some texts. Raises what `Service.prepare` raises."""
        return await self.service.prepare(self.spec, texts, how, terms=self.terms)

    async def rows(self, given: Texts, how: Reading) -> list[Prepared]:
        """Return a row for each text, or for each list of tokens, special ones included.

        Raises what `Service.prepare` raises, and `InvalidRequest`.
        """
        texts, ids = texts_or_ids(given)
        if texts:
            return await self.read({TEXT: texts}, how)
        most = most_rows(self.spec, self.limits)
        if len(ids) > most:
            raise TooLarge(f"the call has {len(ids)} rows of {self.spec.name!r}: send 1 to {most}")
        return self.preprocessor.rows_of(ids)

    async def ask(self, read: Callable[[Self], Awaitable[Sequence[Prepared]]]) -> Result:
        """Ask the model for the rows that `read` returns.

        If another version takes over meanwhile, everything is repeated with that one. Raises what `read` and
        `Service.infer_each` raise.
        """
        try:
            return await self._result(await read(self))
        except Superseded:
            assert self.spec.about.task is not None
            current = replace(self, spec=chosen(self.service, self.spec.public_name, self.spec.about.task))
            return await current._result(await read(current))

    async def _result(self, rows: Sequence[Prepared]) -> Result:
        preprocessor = self.service.gateway.preprocessor(self.spec.name)  # of this version, or the call fails
        answers = await self.service.infer_each(self.spec, rows, self.terms, parent=self.parent)
        times = [self.service.milliseconds(answer) for answer in answers]
        lines = JSON_LINES % (max([waited for waited, _ in times]), max([ran for _, ran in times]))
        cut = sum([row.cut > 0 for row in rows])
        if cut:
            lines += b"%b: %d\r\n" % (CUT, cut)
        ids = preprocessor.ids if isinstance(preprocessor, TextPreprocessor) else ""
        return Result(answers[0].spec or self.spec, rows, answers, request_id(self.terms.id), lines, ids)


# From logits to scores ------------------------------------------------------------------------------------------------


def scores(logits: Array, activation: Activation | None) -> Array:
    """Return the softmax or the sigmoid of logits `(..., C) float32`; without an activation the logits themselves.

    Raises `NotFinite`.
    """
    check_finite(logits)
    if activation is None:
        return logits
    if activation is Activation.SIGMOID:
        shrunk = np.exp(-np.abs(logits))  # at most 1, however large they are
        return np.where(logits >= 0, np.float32(1.0), shrunk) / (1.0 + shrunk)
    grown = np.exp(logits - logits.max(-1, keepdims=True))
    return grown / grown.sum(-1, keepdims=True)  # type: ignore[no-any-return]


def usual_activation(spec: ModelSpec) -> Activation:
    """Return the activation for a model's logits; if the model names none, transformers' default."""
    if spec.about.activation is not None:
        return spec.about.activation
    return Activation.SIGMOID if spec.outputs[0].shape[-1] == 1 else Activation.SOFTMAX


def check_finite(values: Array) -> None:
    """Raise `NotFinite` for NaN and infinity, which JSON does not have."""
    if not np.isfinite(values).all():
        raise NotFinite("the model's answer has NaN or infinity: request binary data at /v2/models/NAME/infer")


def label_of(spec: ModelSpec, index: int) -> str:
    """Return the name of a class; if it has none, the one that transformers gives it."""
    labels = spec.about.labels
    return labels[index] if index < len(labels) else f"LABEL_{index}"
