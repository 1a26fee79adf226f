"""What is wrong with a server, in words, the worst first, each with what to do next. No clock, no I/O."""

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from latebind.adaptation.controller import FULL_DEPTH
from latebind.server.gateway import AdaptationFigures, IndexEntry, Snapshot
from latebind.server.service import NOT_ANSWERING

WINDOW: Final = 60.0  # seconds that counts are of
FIRST: Final = frozenset({"closing", "dead", "hangs", "starting"})  # states in which nothing is answered
LOADING: Final = 0.25  # of the time: a server that spends more of it loading has too little memory for its models
MISTAKES: Final = 10  # calls in a window that clients may get wrong before it is worth a line
NO_TROUBLE: Final = ("unloaded", NOT_ANSWERING)  # reasons: a client unloaded it; it is the engine's trouble
OLD: Final = 1.0  # seconds: a busy engine may take as long to answer

Counts = dict[tuple[str, str], float]
"""By model, "" for the server, and what is counted."""


class Trouble(msgspec.Struct, frozen=True):
    """One thing that is wrong: `what` it is, shown after the model's name, and its `cure`, in sentences.

    `model` is the name that it is served by, "" for the server itself, and `state` a word for it in a table. `grave` is
    whether it costs answers, or makes them worse than promised. `rows` went unanswered for it in the last minute.
    """

    model: str
    state: str
    what: str
    cure: str
    grave: bool = True
    rows: int = 0


@dataclass(frozen=True, slots=True)
class ServerState:
    """The state of a server at one moment, `at` in seconds of any clock.

    `turned_away` counts rows that never reached the engine, by model and reason; `replies` those over HTTP by status;
    `shadows` rows by shadow version, and by how its answers compare. `unwatched` says why fidelity that is to be
    watched is not, "" if it is.
    """

    at: float
    snapshot: Snapshot
    live: bool = True
    ready: bool = True
    draining: bool = False
    entries: Sequence[IndexEntry] = ()
    turned_away: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    replies: Mapping[int, int] = field(default_factory=dict)
    adaptation: Mapping[str, AdaptationFigures] = field(default_factory=dict)
    unwatched: str = ""
    shadows: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def counts(self) -> Counts:
        """Return all that is counted since some start."""
        found: Counts = {("", "restarts"): self.snapshot.get("restarts", 0)}
        for status, number in self.replies.items():
            found["", str(status)] = number
        for name, model in self.snapshot["models"].items():
            for outcome, number in model["requests"].items():
                found[name, outcome] = number
        for name, reasons in self.turned_away.items():
            for reason, number in reasons.items():
                found[name, reason] = number
        memory = self.snapshot.get("memory")
        for held in memory["models"].values() if memory else ():
            found["", "loads"] = found.get(("", "loads"), 0) + held["load_seconds"]["count"]
            found["", "load_seconds"] = found.get(("", "load_seconds"), 0.0) + held["load_seconds"]["sum"]
        return found


class Minute:
    """What was counted in the last minute, by counters that start at 0 with the server and again with each engine.

    It `began` with the server, on the clock of its states: the first state may be missing, as when the engine dies at
    once, and the next one counts that. What an engine counted between its last state and its end is lost.
    """

    def __init__(self, began: float) -> None:
        self._before: Counts = {}
        self._began = self._until = began
        self._steps: deque[tuple[float, Counts]] = deque()

    def take(self, server: ServerState) -> None:
        """Add a state, later than those before."""
        now, before = server.counts(), self._before
        new = {key: value - (old if value >= (old := before.get(key, 0)) else 0) for key, value in now.items()}
        self._steps.append((server.at, {key: value for key, value in new.items() if value}))
        self._before, self._until = now, server.at
        while self._steps and self._steps[0][0] <= server.at - WINDOW:
            self._began, _ = self._steps.popleft()

    def summary(self) -> dict[str, object]:
        """Return how long it is, and how many requests ended in it, and were answered, by model."""
        ended: defaultdict[str, float] = defaultdict(float)
        answered: defaultdict[str, float] = defaultdict(float)
        for (name, counted), number in self.sums().items():
            if name and counted != "cancelled":
                ended[name] += number
            if counted == "answered":
                answered[name] += number
        return {"seconds": self.seconds, "ended": ended, "answered": answered}

    @property
    def seconds(self) -> float:
        """How long that minute is: shorter soon after the start."""
        return self._until - self._began

    def sums(self) -> Counts:
        """Return what was counted in it, 0 for all that was not."""
        found: Counts = defaultdict(float)
        for _, step in self._steps:
            for key, value in step.items():
                found[key] += value
        return found


def troubles(server: ServerState, minute: Minute) -> list[Trouble]:
    """Return what is wrong, the worst first: where nothing is answered, then where the most is lost."""
    sums = minute.sums()
    when = "in a minute" if minute.seconds >= 0.9 * WINDOW else f"in {max(1.0, minute.seconds):.0f} s"
    found = [
        *_of_engine(server, int(sums["", "restarts"]), when),
        *_of_models(server),
        *_of_requests(server, sums, when),
        *_of_memory(server, sums, minute.seconds, when),
        *_of_fidelity(server),
        *_of_shadows(server),
        *_of_clients(sums, when),
    ]
    return sorted(found, key=lambda one: (not one.grave, one.state not in FIRST, one.state != NOT_SERVED, -one.rows))


# The server itself ---------------------------------------------------------------------------------------------------


def _of_engine(server: ServerState, restarts: int, when: str) -> Iterator[Trouble]:
    age = server.snapshot.get("age", 0.0)
    if server.draining:
        yield Trouble("", "closing", "The server is shutting down", "New calls are refused: send them to another one.")
    elif not server.live:
        yield Trouble("", "dead", "The engine has ended: nothing is answered", "The log says why; start it again.")
    elif age >= OLD:
        yield Trouble(
            "",
            "hangs",
            f"The engine has not answered for {age:.0f} s",
            "The log says in which model it hangs. After `generations.patience` seconds another one takes over.",
        )
    elif not server.ready:
        yield Trouble(
            "",
            "starting",
            "No engine serves all models: another one is starting",
            "Calls wait for it until their deadline. The log says why the last one ended.",
        )
    if restarts:
        often = "once" if restarts == 1 else f"{restarts} times"
        yield Trouble(
            "",
            "restarted",
            f"The engine died {often} {when}; calls under way got 503",
            "The log says which models it ran. One that goes on like this is taken out of service.",
        )


NOT_SERVED: Final = "not served"


def _of_models(server: ServerState) -> Iterator[Trouble]:
    for entry in server.entries:
        name, reason = entry["name"], entry["reason"]
        if entry["state"] == "UNAVAILABLE" and reason not in NO_TROUBLE:
            text = reason.removeprefix(f"{name} is not served: ").removeprefix(f"{name}/")
            yield Trouble(name, NOT_SERVED, "not served", _sentence(text))
        elif entry["state"] == "READY" and reason and not (_lacking(server, name) and "--memory" in reason):
            what = f"served in version {entry['version']}, which is not its newest"
            yield Trouble(name, "older version", what, _sentence(reason), grave=False)


# Requests ------------------------------------------------------------------------------------------------------------

ASK_LESS: Final = "Allow more time (`--deadline-ms`), or add `--workers` or machines: `latebind plan` says how many."
LOST: Final = {  # by what is counted: a word for a table, what became of them, and the cure
    "refused_late": ("refuses", "refused {when}; they would have been late", ASK_LESS),
    "refused_full": (
        "refuses",
        "refused {when}; its queue is full",
        "Add `--workers` or machines (`latebind plan` says how many), or send less.",
    ),
    "no_place": (
        "refuses",
        "refused {when}; all of its slots were taken",
        "Add `--workers` or machines (`latebind plan` says how many), or let more wait (`--slots`).",
    ),
    "too_many_rows": (
        "refuses",
        "refused {when}; one call had more rows than it has slots",
        "Send fewer rows in a call, or start with more `--slots`.",
    ),
    "no_engine": (
        "refuses",
        "refused {when}; no engine served it",
        "Send them again: another engine starts by itself. The log says why the last one ended.",
    ),
    "unread": (
        "refuses",
        "refused {when}; too much to read: texts, pictures or sounds",
        "Send fewer in a call, or spread them over more machines.",
    ),
    "not_loaded": (
        "not loaded",
        "failed {when}; it could not be loaded into memory",
        "The log says why; `latebind models` says whether its files are whole.",
    ),
    "expired": (
        "late",
        "late {when}; accepted, but not answered by their deadline",
        "Leave the cores to the server, build the model again on this machine, or allow more time (`--deadline-ms`).",
    ),
    "failed": (
        "fails",
        "failed {when}; the model raised",
        "The log has each error: correct what the client sends, or the model.",
    ),
}


MISSED: Final = {"refused_late": "refused", "expired": "late"}  # outcomes due to a model that memory cannot hold


def _of_requests(server: ServerState, sums: Counts, when: str) -> Iterator[Trouble]:
    memory = server.snapshot.get("memory")
    for (name, counted), number in [*sums.items()]:
        rows = int(number)
        if counted == "refused_loading":
            assert memory is not None, "memory is limited where models are loaded for requests"
            needed = sum(held["bytes"] for held in memory["models"].values())
            cure = (
                f"All models need {_bytes(needed)} of {_bytes(memory['budget_bytes'])}: start with more `--memory`, "
                "or allow more time (`--deadline-ms`)."
            )
            yield Trouble(name, "refuses", f"{rows:,} refused {when}; it was not in memory", cure, rows=rows)
        elif counted in MISSED and (lacking := _lacking(server, name)) is not None:
            both = {word: int(sums[name, outcome]) for outcome, word in MISSED.items() if sums[name, outcome]}
            if MISSED[counted] == next(iter(both)):  # reported once
                rows = sum(both.values())
                what = f"{rows:,} {' or '.join(both)} {when}; {lacking}"
                yield Trouble(name, "refuses", what, MORE_MEMORY, rows=rows)
        elif counted in LOST:
            state, what, cure = LOST[counted]
            yield Trouble(name, state, f"{rows:,} {what.format(when=when)}", cure, rows=rows)


# Memory --------------------------------------------------------------------------------------------------------------

MORE_MEMORY: Final = (
    "Start with more `--memory` or fewer `--slots`, or allow the time to load it piece by piece for each batch: "
    "`--deadline-ms`."
)


def _lacking(server: ServerState, name: str) -> str | None:
    """Return what a model needs that memory cannot hold as a whole, in words; None for all others."""
    memory = server.snapshot.get("memory")
    held = memory["models"].get(name) if memory else None
    if memory is None or held is None or held["bytes"] <= memory["budget_bytes"]:
        return None
    return f"it needs {_bytes(held['bytes'])} of {_bytes(memory['budget_bytes'])}"


def _of_memory(server: ServerState, sums: Counts, seconds: float, when: str) -> Iterator[Trouble]:
    memory = server.snapshot.get("memory")
    if memory is None:
        return
    for name in memory["models"]:
        missed = any(sums[name, outcome] for outcome in MISSED)
        if (lacking := _lacking(server, name)) is not None and not missed:
            what = f"does not fit into memory; {lacking}"
            yield Trouble(name, "does not fit", what, MORE_MEMORY, grave=False)
    loading = sums["", "load_seconds"]
    if seconds and loading > LOADING * seconds:
        needed = sum(held["bytes"] for held in memory["models"].values())
        yield Trouble(
            "",
            "loads",
            f"Models are loaded again and again: {sums['', 'loads']:,.0f} loads took {loading:.0f} s {when}",
            f"They need {_bytes(needed)} of {_bytes(memory['budget_bytes'])}: start with more `--memory`, or serve "
            "fewer models here.",
            grave=False,
        )


def _bytes(value: float) -> str:
    """Return bytes in a readable unit, as on the page."""
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000.0:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 10.0 else f"{value:.1f} {unit}"
        value /= 1000.0
    return f"{value:.1f} TB"


# Learned caches and other versions -----------------------------------------------------------------------------------


def _of_fidelity(server: ServerState) -> Iterator[Trouble]:
    if server.unwatched:
        cure = "Another one starts by itself, where a core is idle. The log says why the last one ended."
        yield Trouble("", "unwatched", _sentence(server.unwatched)[:-1], cure, grave=False)
    for name, figures in server.adaptation.items():
        fidelity, target = figures["fidelity"], figures.get("target", 0.0)
        if figures["version"] == FULL_DEPTH:
            what = "early exits are stopped; each request runs the whole network"
            cure = (
                "They resume once a version is shown to be good enough. `latebind calibrate` on data nearer to your "
                "traffic may be faster."
            )
            yield Trouble(name, "no exits", what, cure, grave=False)
        elif fidelity is not None and figures["upper"] < target:
            what = f"{fidelity:.1%} of its answers are those of the full network; {target:.1%} are promised"
            cure = "Serve it with `--no-exits`, or `latebind calibrate` it on data nearer to your traffic."
            yield Trouble(name, "unfaithful", what, cure)
        for level in figures.get("levels", ()):
            if not level["used"] and figures["version"] != FULL_DEPTH:
                what = f"answers with a fidelity of {level['promised']:.1%} are stopped; samples show less"
                cure = "They resume once samples show it. `latebind calibrate` on data nearer to your traffic helps."
                yield Trouble(name, "fewer levels", what, cure, grave=False)


def _of_shadows(server: ServerState) -> Iterator[Trouble]:
    for name, rows in server.shadows.items():
        other, failed, same = (rows.get(outcome, 0) for outcome in ("other", "failed", "same"))
        compared = other + failed + same
        if other:
            what = f"{other:,} of {compared:,} of its answers differ from those that clients got"
            cure = "Compare the two before you give it a share of the requests (`--split`)."
            yield Trouble(name, "disagrees", what, cure, grave=False)
        if failed:
            what = f"{failed:,} of {compared:,} copied requests were not answered"
            yield Trouble(
                name, "fails aside", what, "Give it no share of the requests yet; the log says why.", grave=False
            )


# Clients -------------------------------------------------------------------------------------------------------------

MISTAKEN: Final = {
    "400": ("calls were invalid (400)", "The reply of each says what is wrong with it."),
    "401": ("calls had no valid token (401)", "Send that of `--token-file` as `Authorization: Bearer`."),
    "403": ("calls were not allowed (403)", "The reply of each names the option that would allow it."),
    "404": ("calls asked for what is not there (404)", "The reply of each lists the names that there are."),
    "413": ("calls were too large (413)", "Send fewer rows in a call, or start with a larger `--max-body`."),
}


def _of_clients(sums: Counts, when: str) -> Iterator[Trouble]:
    reported = {"413"} if any(counted == "too_many_rows" for _, counted in sums) else set[str]()  # of a model
    for status, (what, cure) in MISTAKEN.items():
        if (number := sums["", status]) >= MISTAKES and status not in reported:
            yield Trouble("", "mistakes", f"{number:,.0f} {what} {when}", cure, grave=False)


def _sentence(text: str) -> str:
    """Return a text with the capital and the full stop of a sentence."""
    whole = text.strip()
    return whole[:1].upper() + whole[1:] + ("" if whole.endswith((".", "?", "!")) else ".")
