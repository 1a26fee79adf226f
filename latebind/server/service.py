"""The verbs of the protocol, the same for every transport: health, metadata, infer, load. Knows no wire format."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from math import ceil

import numpy as np
from msgspec import structs

from latebind import __version__
from latebind.domain.errors import (
    ConfigError,
    Expired,
    Failed,
    InvalidRequest,
    LatebindError,
    NotFound,
    Refused,
    TooLarge,
    TurnedOff,
    Unavailable,
)
from latebind.domain.metrics import Histogram
from latebind.domain.model import Media, ModelSpec, Task
from latebind.domain.split import Chooser, Split, public_name
from latebind.domain.wording import instead
from latebind.logs import REQUEST
from latebind.preprocessing.decoding import TextDecoder
from latebind.preprocessing.preprocessor import USUAL, Given, Prepared, Preprocessor, Reading
from latebind.preprocessing.text import TextPreprocessor
from latebind.server.calls import Call, CallInput, Tensor, Terms, TextOutput
from latebind.server.description import statistics, steps_as_parameters
from latebind.server.each import Sending, Superseded, check_alike, joined, parts_of
from latebind.server.gateway import (
    AdaptationFigures,
    Answer,
    Array,
    Catalogue,
    Claim,
    Gateway,
    IndexEntry,
    Observer,
)
from latebind.server.limits import Limits
from latebind.server.preparing import Preparing, check
from latebind.server.results import with_texts
from latebind.server.settings import Log, Traces, TraceSettings
from latebind.server.shadow import Shadows
from latebind.server.shared_memory import Regions
from latebind.server.streaming import in_text, stream
from latebind.server.tracing import TracedCall, Tracing

EXTENSIONS = (
    "binary_tensor_data",
    "classification",
    "parameters",
    "model_configuration",
    "schedule_policy",
    "statistics",
    "trace",
    "logging",
)  # only those that work
MANAGEMENT = ("model_repository", "model_repository(unload_dependents)")  # only where `manage` is on
UPLOADS = "a model is loaded from the repository: put {!r:.100} there instead of sending it"
NOT_ANSWERING = "the engine hangs, or another one is starting: try again later"
UNREAD = "unread"
UNCLAIMED: Mapping[type[LatebindError], str] = {
    Refused: "no_place",
    Expired: "no_place",
    TooLarge: "too_many_rows",
    Unavailable: "no_engine",
}  # reasons why rows had no slots
MICROSECOND = 1e-6
NOT_FOLLOWED: AbstractContextManager[None] = nullcontext()

Fill = Callable[[Mapping[str, Sequence[Array]]], Awaitable[None]]  # writes the rows of a `Claim`


class Service:
    """Answers calls for the engine behind `gateway`.

    A call's deadline is its own time-out, at most `limits.deadline`, or else that of its model in `deadlines`, or else
    `deadline`. The service reads `deadlines` at each call, so they may change. `catalogue` knows every model of the
    repository, also those that are not served; clients may load and unload models only where `manage` is true. A share
    `trace_rate` of all calls is traced, and every call whose caller's own trace is sampled; `export` gets each finished
    trace. `regions` are the shared memory of clients; without it, shared memory is turned off. Where `show_exit` is
    false, replies do not say where rows left the network nor how long they waited. `observer` sees every answer. For a
    model in several versions, calls with the same value of the header `split_by` get the same version.
    """

    def __init__(
        self,
        gateway: Gateway,
        *,
        deadline: float = 1.0,
        deadlines: Mapping[str, float] | None = None,
        limits: Limits | None = None,
        show_exit: bool = True,
        observer: Observer | None = None,
        trace_rate: float = 0.0,
        export: Callable[[TracedCall], None] | None = None,
        regions: Regions | None = None,
        catalogue: Catalogue | None = None,
        manage: bool = False,
        split_by: str = "",
    ) -> None:
        self.regions = regions or Regions()
        self._trace_settings = Traces(TraceSettings.of_share(trace_rate))
        self.log = Log()
        self.reading: dict[str, Histogram] = {}  # seconds in which calls were read, by model
        self.turned_away: dict[str, Counter[str]] = {}  # rows that never reached the engine, by model and reason
        self.gateway = gateway
        self.tracing = Tracing(gateway.traces, self._trace_settings, export=export)
        self._default = deadline
        self._deadlines = {} if deadlines is None else deadlines
        self._limits = limits or Limits()
        self._preparing = Preparing(self._limits)
        self._show_exit = show_exit
        self._observer = observer
        self._catalogue = catalogue
        self.splits: Mapping[str, Chooser] = {} if catalogue is None else catalogue.splits
        self.shadows = Shadows(gateway, self.splits)
        self.split_by = split_by.lower().encode()
        self._manage = manage
        self._draining = False

    def drain(self) -> None:
        """Refuse new infer calls from now on, and report not ready; calls under way go on."""
        self._draining = True

    @property
    def draining(self) -> bool:
        """Whether new calls are refused because the server is shutting down."""
        return self._draining

    def live(self) -> bool:
        """Return whether the server and its engine run."""
        return self.gateway.live()

    def ready(self) -> bool:
        """Return whether requests for every model can be answered."""
        return not self._draining and self.gateway.ready()

    def model_ready(self, name: str, version: str | None = None) -> bool:
        """Return whether requests for this model can be answered. Raises `NotFound`."""
        if self._catalogue is not None and self._catalogue.unavailable(name) is not None:
            return False
        return not self._draining and self.gateway.ready(self.model(name, version).name)

    def server_metadata(self) -> dict[str, object]:
        """Return the server's name, its version and the protocol extensions that it supports."""
        sharing = ("system_shared_memory",) if self.regions.on else ()
        extensions = (*EXTENSIONS, *(MANAGEMENT if self._manage else ()), *sharing)
        return {"name": "latebind", "version": __version__, "extensions": list(extensions)}

    def models(self) -> list[ModelSpec]:
        """Return all models, by name."""
        return [spec for _, spec in sorted(self.gateway.models.items())]

    def names(self) -> list[str]:
        """Return the names of all models, each once."""
        return list(dict.fromkeys(spec.public_name for spec in self.models()))

    def index(self, *, ready: bool = False) -> list[IndexEntry]:
        """Return every model with its version and state, as `entries` does; where `ready`, only those that are ready.

        A model of which several versions are served has an entry for each.
        """
        entries = [entry for entry in self.entries() if not ready or entry["state"] == "READY"]
        return [{**entry, "name": public_name(entry["name"])} for entry in entries]

    def entries(self) -> list[IndexEntry]:
        """Return every model, by the name that it is served by.

        Served models are UNAVAILABLE while the engine hangs or another one is awaited, as in `model_ready`.
        """
        if self._catalogue is not None:
            entries = list(self._catalogue.index())
        else:
            entries = [IndexEntry(name=s.name, version=s.version, state="READY", reason="") for s in self.models()]
        if not self.gateway.ready():  # asked for once where all is well: there may be a thousand models
            for place, entry in enumerate(entries):
                if entry["state"] == "READY" and not self.gateway.ready(entry["name"]):
                    entries[place] = {**entry, "state": "UNAVAILABLE", "reason": NOT_ANSWERING}
        return entries

    async def load(self, name: str, parameters: Mapping[str, object] | None = None) -> None:
        """Serve a model's newest version, or the version that the parameter `version` names, or those of `split`.

        Raises `TurnedOff`, `InvalidRequest` for parameters that would upload a model, and what `Catalogue.load` raises.
        """
        catalogue = self._changeable()
        given = dict(parameters or {})
        for parameter in given:
            if parameter == "config" or parameter.startswith("file:"):
                raise InvalidRequest(UPLOADS.format(parameter))
        version, split = given.get("version"), given.get("split")
        if split is not None:
            if version is not None or not isinstance(split, str):
                raise InvalidRequest(f"the split is {split!r:.140}: give a text such as 1:90,2:10, and no version")
            try:
                wanted = Split.of(name, split)
            except ConfigError as error:
                raise InvalidRequest(str(error)) from None
            await catalogue.split(wanted)
            return
        if version is not None and not (isinstance(version, str) and version.isdecimal()):
            raise InvalidRequest(f"the version is {version!r:.40}: give a number as a text")
        await catalogue.load(name, version)

    async def unload(self, name: str, parameters: Mapping[str, object] | None = None) -> None:
        """Stop serving a model, and with the parameter `unload_dependents` also the queries that need it.

        Raises `TurnedOff`, `InvalidRequest` and what `Catalogue.unload` raises.
        """
        catalogue = self._changeable()
        dependents = (parameters or {}).get("unload_dependents", False)
        if not isinstance(dependents, bool):
            raise InvalidRequest(f"unload_dependents is {dependents!r:.40}: give true or false")
        await catalogue.unload(name, dependents=dependents)

    def model(self, name: str, version: str | None = None) -> ModelSpec:
        """Return the model of this name, in this version if one is given. Raises `NotFound` and `Unavailable`.

        The message of `NotFound` lists other names: a caller who may call this may list them anyway.
        """
        chooser = self.splits.get(name)
        if chooser is not None and version is not None:
            name = chooser.split.served.get(version, name)
        spec = self.gateway.models.get(name) or self.gateway.models.get(public_name(name))
        if spec is None:
            reason = None if self._catalogue is None else self._catalogue.unavailable(name)
            raise self._nothing(name) if reason is None else Unavailable(reason)
        if version is not None and version != spec.version:
            raise _no_version(spec, version)
        return spec

    def chosen(self, name: str, version: str | None = None, key: str = "") -> ModelSpec:
        """Return the model that is to answer a call: of several versions the next in turn, or the one of this `key`.

        If that one is not available, the main one answers. Raises what `model` raises.
        """
        chooser = self.splits.get(name)
        if chooser is None or version is not None:
            return self.model(name, version)
        return self.gateway.models.get(chooser.split.served[chooser.version(key)]) or self.model(name)

    def versions(self, name: str) -> list[str]:
        """Return the versions of a model that are served, by number."""
        found = [spec.version for spec in self.models() if public_name(spec.name) == name]
        return sorted(found, key=lambda version: (len(version), version))

    async def infer(
        self, spec: ModelSpec, call: Call, fill: Fill, version: str | None = None, parent: str = ""
    ) -> Answer:
        """Answer a call within its time-out; `fill` writes its rows into the slots that were claimed for it.

        `parent` is the caller's span (W3C `traceparent`) if it sent one. If another version has replaced `spec` in the
        meantime, that version answers (`Answer.spec`), unless the client named a `version` or the tensors differ. The
        deadline is extended by the time that `fill` takes, because that is the client sending. Raises what
        `Gateway.claim`, `fill` and `Claim.send` raise, `NotFound` and `Unavailable`.
        """
        call = self._with_decoder(spec, call)
        with self._followed(spec, call, parent) as followed:
            claim, deadline = await self._claim_filled(spec, call, fill, version)
            try:
                answer = await claim.send(
                    deadline=deadline, priority=call.priority, trace=0 if followed is None else followed.sends()
                )
            except BaseException:
                claim.release()
                raise
        self._give_back(claim, answer)
        return with_texts(spec, answer, self._decoder(call.preprocessor)) if _wants_text(spec, call) else answer

    async def prepare(
        self, spec: ModelSpec, given: Given, how: Reading = USUAL, *, terms: Terms | None = None
    ) -> list[Prepared]:
        """Return the rows made of a model's raw inputs; `given` has an element for every row, by input.

        Waits at most until the deadline of `terms`. Raises `InvalidRequest` and `TooLarge` for what cannot be read,
        `Refused`, `Expired` and `Superseded`.
        """
        preprocessor = self.gateway.preprocessor(spec.name)
        if self.gateway.models.get(spec.name) is not spec:
            raise Superseded(spec.name)
        if preprocessor is None:
            raise InvalidRequest(f"{spec.name!r} takes only tensors: {[tensor.name for tensor in spec.inputs]}")
        sizes = check(spec, preprocessor.raw, given, self._limits)
        begun = time.monotonic()
        try:
            rows = await self._preparing.rows(
                preprocessor, given, sizes, how, deadline=self._deadline(spec, terms or Terms(), len(sizes))
            )
        except (Refused, Expired):
            self._turned_away(spec, UNREAD, len(sizes))
            raise
        self.reading.setdefault(spec.name, Histogram()).add(time.monotonic() - begun)
        return rows

    async def infer_each(
        self,
        spec: ModelSpec,
        rows: Sequence[Prepared],
        terms: Terms,
        version: str | None = None,
        parent: str = "",
    ) -> list[Answer]:
        """Return an answer for each row, as for a call of one row; rows may differ in size.

        All are answered by the deadline of `terms`, or the call fails with the first error, and the others are
        cancelled. All are answered by one version: if another takes over meanwhile, all are sent once more. `rows` that
        `prepare` made are those of this `spec`. `version`, `parent` and errors are those of `infer`; raises
        `Superseded` if the version that took over reads raw inputs differently.
        """
        preprocessor = self.gateway.preprocessor(spec.name)
        if preprocessor is not None and self.gateway.models.get(spec.name) is not spec:
            raise Superseded(spec.name)
        parts = parts_of(spec, rows, max(1, min(spec.max_batch, self.gateway.places(spec.name))))
        with self._followed(spec, Call((), len(rows), (), id=terms.id), parent, terms.began) as followed:
            deadline = self._deadline(spec, terms, len(rows))

            def check(current: ModelSpec) -> None:
                self._check_version(current, spec, version, preprocessor)

            callbacks = self._give_back, partial(self._unclaimed, spec)
            sending = Sending(self.gateway, spec, check, *callbacks, deadline, terms.priority, followed)
            try:
                return await sending.answers(parts, rows)
            except Superseded:
                return await sending.answers(parts, rows)

    async def infer_raw(
        self, spec: ModelSpec, call: Call, given: Given, version: str | None = None, parent: str = ""
    ) -> tuple[Answer, list[Prepared]]:
        """Answer a call with raw inputs, whose elements are `given`; return its rows too.

        If another version takes over meanwhile, everything is repeated with that one. Otherwise as `prepare` and
        `infer_each`; raises `InvalidRequest` too if answers differ in size, so that they cannot be sent together.
        """
        terms = Terms(call.id, call.timeout, call.priority, call.waited)
        try:
            return await self._read_and_answered(spec, call, given, terms, version, parent)
        except Superseded:
            current = self.model(spec.name, version)
            self._check_version(current, spec, version, None)
            if current.about.raw != spec.about.raw:
                raise
            return await self._read_and_answered(current, call, given, terms, version, parent)

    async def _read_and_answered(
        self, spec: ModelSpec, call: Call, given: Given, terms: Terms, version: str | None, parent: str
    ) -> tuple[Answer, list[Prepared]]:
        preprocessor = self.gateway.preprocessor(spec.name)
        rows = await self.prepare(spec, given, Reading(call.truncate), terms=terms)
        wanted = {one.tensor.name for one in call.wanted}
        in_words = _wants_text(spec, call)
        outputs = [one for one in spec.outputs if one.name in wanted or (in_words and one is spec.written)]
        check_alike(rows, outputs)
        answer = joined(await self.infer_each(spec, rows, terms, version, parent), outputs)
        return with_texts(spec, answer, self._decoder(preprocessor)) if in_words else answer, rows

    async def prepared(self, spec: ModelSpec, call: Call, given: Given) -> tuple[Call, list[Prepared]]:
        """Return a call of one row with its raw inputs converted to tensors, and the row."""
        terms, preprocessor = Terms(timeout=call.timeout, waited=call.waited), self.gateway.preprocessor(spec.name)
        rows = await self.prepare(spec, given, Reading(call.truncate), terms=terms)
        (part,) = parts_of(spec, rows, 1)
        inputs = tuple([CallInput(Tensor(one), (), rows[0].tensors[one.name][np.newaxis]) for one in spec.inputs])
        waited = call.waited + time.monotonic() - terms.began
        return structs.replace(
            call, inputs=inputs, raw=(), dims=part.dims, waited=waited, preprocessor=preprocessor
        ), rows

    def _give_back(self, claim: Claim, answer: Answer) -> None:
        """Release the slots of an answered call, once an observer has seen them."""
        if self._observer is None and not (self.splits and self.shadows.follow(claim.spec)):
            claim.release()
        else:  # rows and answer are seen while the slots hold them, once the reply has been sent
            asyncio.get_running_loop().call_soon(self._show, claim, answer)

    def stream(
        self, spec: ModelSpec, call: Call, fill: Fill, *, version: str | None = None, parent: str = ""
    ) -> AsyncGenerator[Answer]:
        """Answer a call of one row in pieces, as its tokens are written; the last piece is complete.

        Calls of models that write no sequence have one piece. Closing the iterator cancels the call. For the rest see
        `infer`; observers do not see the call.
        """
        if call.rows != 1:
            raise InvalidRequest(f"a call that streams has one row, not {call.rows}: send each row as a separate call")
        if any(wanted.place is not None for wanted in call.wanted):
            raise InvalidRequest("a call that streams has no outputs in shared memory: leave the region out")
        call = self._with_decoder(spec, call)
        following = self._followed(spec, call, parent)
        pieces = stream(call, partial(self._claim_filled, spec, call, fill, version), following)
        return in_text(spec, pieces, self._decoder(call.preprocessor)) if _wants_text(spec, call) else pieces

    def _with_decoder(self, spec: ModelSpec, call: Call) -> Call:
        """Return a call whose answer is decoded to text by the preprocessor of this version, not of a later one."""
        if call.preprocessor is not None or not _wants_text(spec, call):
            return call
        preprocessor = self.gateway.preprocessor(spec.name)
        if self.gateway.models.get(spec.name) is not spec:
            raise Superseded(spec.name)
        return structs.replace(call, preprocessor=preprocessor)

    def _decoder(self, preprocessor: Preprocessor | None) -> TextDecoder:
        found = preprocessor.decoder if isinstance(preprocessor, TextPreprocessor) else None
        if found is None:
            raise Failed("this model cannot decode its tokens to text: build the model again")
        return found

    def _followed(
        self, spec: ModelSpec, call: Call, parent: str, began: float | None = None
    ) -> AbstractContextManager[TracedCall | None]:
        """Begin a call, which is traced to the end of the block if it is to be. Raises `Unavailable`.

        `began` is when the call began if its inputs have been read before.
        """
        if self._draining:
            raise Unavailable("the server is shutting down: use another one")
        REQUEST.set(call.id)
        if not (parent or self._trace_settings.any) or not self.tracing.wanted(spec.name, parent):
            return NOT_FOLLOWED
        return self.tracing.following(
            spec.name, spec.version, call.rows, id=call.id, parent=parent, dims=call.dims, began=began
        )

    def _seconds(self, spec: ModelSpec, timeout: int) -> float:
        """Return how many seconds a call has in all."""
        if timeout:
            return min(timeout * MICROSECOND, self._limits.deadline)
        return self._deadlines.get(spec.name, self._default)

    def _deadline(self, spec: ModelSpec, terms: Terms, rows: int) -> float:
        """Return the deadline of a call with `rows` rows, in seconds of `time.monotonic()`.

        Without a time-out, it gets the default once for every `max_rows` rows, the most in a call of tensors: clients
        that send lists of a thousand texts send no time-out.
        """
        seconds = self._seconds(spec, terms.timeout)
        if not terms.timeout:
            seconds = min(seconds * ceil(rows / self._limits.max_rows), self._limits.deadline)
        return terms.began + seconds - terms.waited

    async def _claim_filled(self, spec: ModelSpec, call: Call, fill: Fill, version: str | None) -> tuple[Claim, float]:
        """Return the slots of a call, filled, and its deadline."""
        deadline = time.monotonic() + self._seconds(spec, call.timeout) - call.waited
        try:
            claim = await self.gateway.claim(
                spec.name, call.rows, deadline=deadline, priority=call.priority, dims=call.dims
            )
        except LatebindError as error:
            self._unclaimed(spec, error, call.rows)
            raise
        try:
            if claim.spec is not spec:
                self._check_version(claim.spec, spec, version, call.preprocessor)
            begun = time.monotonic()
            await fill(claim.rows)
        except BaseException:
            claim.release()
            raise
        return claim, deadline + time.monotonic() - begun

    def _unclaimed(self, spec: ModelSpec, error: LatebindError, rows: int) -> None:
        """Count rows that got no slots."""
        for kind, reason in UNCLAIMED.items():
            if isinstance(error, kind):
                self._turned_away(spec, reason, rows)
                return

    def _turned_away(self, spec: ModelSpec, reason: str, rows: int) -> None:
        self.turned_away.setdefault(spec.name, Counter())[reason] += rows

    def _check_version(
        self, current: ModelSpec, spec: ModelSpec, version: str | None, preprocessor: Preprocessor | None
    ) -> None:
        """Raise unless a version that replaced `spec` may answer: same tensors, made by the same preprocessor.

        Raises `NotFound` and `Superseded`.
        """
        if version is not None and version != current.version:
            raise _no_version(current, version)
        if (spec.inputs, spec.outputs, spec.dims) != (current.inputs, current.outputs, current.dims):
            raise Superseded(current.name)
        if preprocessor is not None and self.gateway.preprocessor(current.name) is not preprocessor:
            raise Superseded(current.name)

    def reading_parameters(self, spec: ModelSpec, rows: Sequence[Prepared]) -> dict[str, object]:
        """Return the parameters of a reply that say what was read: the tokens of texts, and whether a row was cut."""
        found: dict[str, list[object]] = {}  # if typed as ints or bools, compiled code would turn bools into ints
        if any(one.media is Media.TEXT for one in spec.about.raw):
            found["tokens"] = [row.used for row in rows]
        if any(row.cut for row in rows):
            found["truncated"] = [row.cut > 0 for row in rows]
        return {name: values[0] if len(values) == 1 else values for name, values in found.items()}

    async def close(self) -> None:
        """Collect the last traces, and end what the service has started."""
        await self.shadows.close()
        await self.tracing.close()
        self._preparing.close()

    def reply_parameters(self, spec: ModelSpec, answer: Answer) -> dict[str, object]:
        """Return the parameters of a reply: where each row left and its promise or, for a query, which steps ran.

        Empty where the operator hides this (`show_exit`).
        """
        if not self._show_exit:
            return {}
        spec = answer.spec or spec
        if spec.steps:
            return steps_as_parameters(answer.steps, self.gateway.models)
        left_at, promised = answer.left_at, answer.promised
        parameters: dict[str, object] = {"left_at": left_at[0] if len(left_at) == 1 else left_at, "stages": spec.stages}
        if promised:
            parameters["fidelity"] = promised[0] if len(promised) == 1 else promised
        if spec.promised is not None and spec.promised.cosine is not None:
            parameters["cosine"] = spec.promised.cosine
        return parameters

    def milliseconds(self, answer: Answer) -> tuple[float, float]:
        """Return how long the slowest row waited and ran; both are 0 where `show_exit` is false."""
        if not self._show_exit:
            return 0.0, 0.0
        return (max(answer.waited) * 1e3, max(answer.ran) * 1e3) if answer.ran else (0.0, 0.0)

    async def statistics(self, name: str | None = None, version: str | None = None) -> tuple[dict[str, object], float]:
        """Return the protocol's statistics of one model, or of all, and how old they are. Raises `NotFound`.

        They are 0 seconds old unless the engine does not answer.
        """
        specs, snapshot = self.models() if name is None else [self.model(name, version)], await self.gateway.metrics()
        return statistics(specs, snapshot, epoch=time.time() - time.monotonic()), snapshot.get("age", 0.0)

    def trace_settings(self, name: str | None = None) -> dict[str, object]:
        """Return the trace settings of one model, or the default ones. Raises `NotFound`."""
        return self._trace_settings.as_dict(None if name is None else self.model(name).name)

    def update_trace_settings(self, given: Mapping[str, object], name: str | None = None) -> dict[str, object]:
        """Change trace settings and return those that hold from now on. Raises `NotFound` and `InvalidRequest`."""
        self._trace_settings.update(given, None if name is None else self.model(name).name)
        return self.trace_settings(name)

    def adaptation(self) -> Mapping[str, AdaptationFigures]:
        """Return the figures of learned caches that adapt to the traffic, by model."""
        return {} if self._observer is None else self._observer.figures()

    def unwatched(self) -> str:
        """Return why learned caches that are to be watched are not, "" if they are."""
        return "" if self._observer is None else self._observer.unwatched()

    def _show(self, claim: Claim, answer: Answer) -> None:
        """Let shadows and the observer see rows and answer while the slots still hold them."""
        try:
            if self.splits and self.shadows.follow(claim.spec):
                self.shadows.answered(claim.spec, claim.rows, answer)
            if self._observer is not None:
                self._observer.answered(claim.spec, claim.rows, answer)
                for step in claim.shown(answer):
                    self._observer.answered(*step)
        finally:
            claim.release()

    def _nothing(self, name: str) -> NotFound:
        """Return the error for a model that is not served: unknown, or known to the catalogue but not served."""
        for entry in self.index():
            if entry["name"] == name:
                state = entry["state"].lower()
                advice = "try again when it is ready" if state == "loading" else "load it"
                return NotFound(f"model {name!r} is not served ({entry['reason'] or state}): {advice}")
        return NotFound(f"there is no model {name!r:.140}{instead(name, sorted(self.gateway.models))}")

    def _changeable(self) -> Catalogue:
        if self._catalogue is None or not self._manage:
            raise TurnedOff("clients may not load and unload models here: start the server with --manage")
        return self._catalogue


def _no_version(spec: ModelSpec, version: str) -> NotFound:
    return NotFound(f"model {spec.name!r} has no version {version!r:.40}: it has {spec.version}")


def _wants_text(spec: ModelSpec, call: Call) -> bool:
    return spec.about.task is Task.GENERATE and any(isinstance(one.tensor, TextOutput) for one in call.wanted)
