"""What is said to be wrong, of what a server tells of itself: words, cures, order, and counts of a minute."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import pytest

from latebind.cli.settings import SETTINGS
from latebind.domain.actions import Outcome
from latebind.server.gateway import AdaptationFigures, IndexEntry, Snapshot
from latebind.server.service import NOT_ANSWERING, UNCLAIMED, UNREAD
from latebind.server.troubles import LOST, MISTAKES, WINDOW, Minute, ServerState, Trouble, troubles

NAMES = [outcome.name.lower() for outcome in Outcome]
FIGURES: Any = {"version": "3", "sampled": 9, "retrained": 0, "refused": 0, "alarms": 0, "fidelity": None}


def snapshot(models: Mapping[str, Mapping[str, int]] | None = None, **more: object) -> Snapshot:
    """What an engine tells that has counted these requests, by model and outcome."""
    found = {name: {"requests": {**dict.fromkeys(NAMES, 0), **ends}} for name, ends in (models or {}).items()}
    return cast(Snapshot, {"models": found, **more})


def memory(budget: int, **sizes: int) -> dict[str, Any]:
    loads = {"load_seconds": {"count": 0, "sum": 0.0}}
    return {"budget_bytes": budget, "models": {name: {"bytes": size, **loads} for name, size in sizes.items()}}


def minute(*states: ServerState) -> Minute:
    found = Minute(states[0].at)
    for state in states:
        found.take(state)
    return found


def after(state: ServerState, **before: object) -> list[Trouble]:
    """The troubles of a server that had counted nothing a minute before."""
    return troubles(state, minute(ServerState(state.at - WINDOW, snapshot()), state))


def of_requests(outcome: str, rows: int, **more: Any) -> Trouble:
    (found,) = after(ServerState(100.0, snapshot({"digits": {"answered": 5, outcome: rows}}, **more)))
    return found


def test_nothing_is_wrong_with_a_server_that_answers() -> None:
    state = ServerState(100.0, snapshot({"digits": {"answered": 500, "cancelled": 3}}))
    assert after(state) == []
    summary = minute(ServerState(40.0, snapshot()), state).summary()
    assert summary == {"seconds": 60.0, "ended": {"digits": 500}, "answered": {"digits": 500}}


def test_what_memory_lacks_is_told_of_refusals_for_it() -> None:
    held = memory(42_000_000, digits=53_000_000)
    found = of_requests("refused_late", 1000, memory=held)
    assert (found.model, found.what) == ("digits", "1,000 refused in a minute; it needs 53 MB of 42 MB")
    assert "--memory" in found.cure
    assert found.grave
    (found,) = after(ServerState(100.0, snapshot({"digits": {"refused_late": 40, "expired": 2}}, memory=held)))
    assert found.what == "42 refused or late in a minute; it needs 53 MB of 42 MB"
    (found,) = after(ServerState(100.0, snapshot({"digits": {"answered": 9}}, memory=held)))
    assert (found.what, found.grave) == ("does not fit into memory; it needs 53 MB of 42 MB", False)


def test_a_model_that_is_not_in_memory_is_told_of_what_all_of_them_need() -> None:
    found = of_requests("refused_loading", 7, memory=memory(42_000_000, digits=30_000_000, words=20_000_000))
    assert found.what == "7 refused in a minute; it was not in memory"
    assert "All models need 50 MB of 42 MB: start with more `--memory`" in found.cure


@pytest.mark.parametrize("outcome", [name for name in NAMES if name not in {"answered", "cancelled"}])
def test_every_end_but_an_answer_is_told_with_its_own_words(outcome: str) -> None:
    found = of_requests(outcome, 1234, memory=memory(10**9, digits=1))
    assert found.what.startswith("1,234 ")
    assert found.rows == 1234
    if outcome in LOST:
        assert found.what.endswith(LOST[outcome][1].partition("{when}")[2])


def test_what_never_came_to_the_engine_is_told_by_why() -> None:
    for why in {UNREAD, *UNCLAIMED.values()}:
        (found,) = after(ServerState(100.0, snapshot(), turned_away={"digits": {why: 40}}))
        assert found.model == "digits"
        assert found.what.startswith("40 refused in a minute; ")
    (found,) = after(ServerState(100.0, snapshot(), turned_away={"digits": {"no_place": 40}}))
    assert "--slots" in found.cure


def test_what_costs_most_is_told_first_and_the_server_before_its_models() -> None:
    entries = [
        IndexEntry(name="torn", version="", state="UNAVAILABLE", reason="torn/1/weights differ from the manifest")
    ]
    ends = {"few": {"failed": 2}, "many": {"refused_late": 900, "expired": 30}}
    state = ServerState(100.0, snapshot(ends, restarts=2), entries=entries, replies={404: 50})
    found = after(state)
    assert [(one.model, one.state) for one in found] == [
        ("torn", "not served"),
        ("many", "refuses"),
        ("many", "late"),
        ("few", "fails"),
        ("", "restarted"),
        ("", "mistakes"),
    ]
    assert found[4].what == "The engine died 2 times in a minute; calls under way got 503"
    assert found[0].cure == "1/weights differ from the manifest."
    assert [one.grave for one in found] == [True] * 5 + [False]


def test_what_somebody_unloaded_and_what_awaits_an_engine_are_no_troubles_of_their_own() -> None:
    entries = [
        IndexEntry(name="gone", version="", state="UNAVAILABLE", reason="unloaded"),
        IndexEntry(name="digits", version="1", state="UNAVAILABLE", reason=NOT_ANSWERING),
        IndexEntry(name="new", version="", state="LOADING", reason=""),
    ]
    (found,) = after(ServerState(100.0, snapshot(), ready=False, entries=entries))
    assert found.what == "No engine serves all models: another one is starting"
    (found,) = after(ServerState(100.0, snapshot(age=4.2), ready=False, entries=entries))
    assert found.what == "The engine has not answered for 4 s"
    (found,) = after(ServerState(100.0, snapshot(), ready=False, draining=True))
    assert found.state == "closing"
    (found,) = after(ServerState(100.0, snapshot(), live=False, ready=False))
    assert found.state == "dead"


def test_a_version_that_could_not_replace_another_is_told() -> None:
    entry = IndexEntry(name="digits", version="1", state="READY", reason="weights differ from the manifest")
    (found,) = after(ServerState(100.0, snapshot({"digits": {}}), entries=[entry]))
    assert (found.what, found.grave) == ("served in version 1, which is not its newest", False)


def test_fidelity_is_a_trouble_once_it_is_surely_below_its_target() -> None:
    base = cast(AdaptationFigures, {**FIGURES, "fidelity": 0.91, "lower": 0.89, "upper": 0.93, "target": 0.97})
    state = ServerState(100.0, snapshot(), adaptation={"digits": base})
    (found,) = after(state)
    assert found.what == "91.0% of its answers are those of the full network; 97.0% are promised"
    unsure = cast(AdaptationFigures, {**base, "upper": 0.975})
    assert after(replace(state, adaptation={"digits": unsure})) == []
    stopped = cast(AdaptationFigures, {**base, "version": "none"})
    (found,) = after(replace(state, adaptation={"digits": stopped}))
    assert (found.state, found.grave) == ("no exits", False)
    level = {"promised": 0.95, "fidelity": 0.9, "lower": 0.8, "upper": 0.93, "alarms": 1, "used": False}
    levels = cast(AdaptationFigures, {**unsure, "levels": [level]})
    (found,) = after(replace(state, adaptation={"digits": levels}))
    assert found.what == "answers with a fidelity of 95.0% are stopped; samples show less"


def test_whoever_should_watch_and_does_not_is_told_and_so_are_shadows_that_disagree() -> None:
    (found,) = after(ServerState(100.0, snapshot(), unwatched="the adaptation service has died"))
    assert found.what == "The adaptation service has died"
    shadows = {"digits:2": {"same": 288, "other": 12, "passed_over": 5000}, "words:2": {"same": 40}}
    (found,) = after(ServerState(100.0, snapshot(), shadows=shadows))
    assert (found.model, found.what) == ("digits:2", "12 of 300 of its answers differ from those that clients got")


def test_a_server_that_loads_models_most_of_the_time_is_told_so() -> None:
    held = memory(42_000_000, digits=30_000_000, words=30_000_000)
    for one in held["models"].values():
        one["load_seconds"] = {"count": 10, "sum": 10.0}
    (found,) = after(ServerState(100.0, snapshot(memory=held)))
    assert found.what == "Models are loaded again and again: 20 loads took 20 s in a minute"
    assert "They need 60 MB of 42 MB" in found.cure


def test_mistakes_of_clients_are_told_once_there_are_some() -> None:
    assert after(ServerState(100.0, snapshot(), replies={413: MISTAKES - 1, 200: 999})) == []
    (found,) = after(ServerState(100.0, snapshot(), replies={413: MISTAKES}))
    assert found.what == f"{MISTAKES} calls were too large (413) in a minute"
    assert "--max-body" in found.cure
    away = {"digits": {"too_many_rows": 5 * MISTAKES}}
    (found,) = after(ServerState(100.0, snapshot(), replies={413: MISTAKES}, turned_away=away))
    assert "--slots" in found.cure


def test_counts_are_of_a_minute_and_begin_anew_with_another_engine() -> None:
    counts = [(0.0, 50), (30.0, 150), (55.0, 7), (80.0, 9)]
    states = [ServerState(at, snapshot({"digits": {"failed": failed}})) for at, failed in counts]
    assert minute(states[0]).sums()["digits", "failed"] == 50  # since the server began
    assert minute(*states[:2]).sums()["digits", "failed"] == 150
    assert minute(*states[:3]).sums()["digits", "failed"] == 157
    assert minute(*states).sums()["digits", "failed"] == 109
    assert minute(*states, ServerState(91.0, states[-1].snapshot)).sums()["digits", "failed"] == 9
    gone = ServerState(60.0, snapshot())
    assert minute(states[0], states[1], gone, ServerState(61.0, states[0].snapshot)).sums()["digits", "failed"] == 150
    (found,) = troubles(states[1], minute(*states[:2]))
    assert found.what == "150 failed in 30 s; the model raised"


def test_an_engine_that_died_before_the_first_look_is_told() -> None:
    began, state = Minute(90.0), ServerState(100.0, snapshot({}, restarts=1))
    began.take(state)
    (found,) = troubles(state, began)
    assert found.what == "The engine died once in 10 s; calls under way got 503"


def test_cures_name_options_that_there_are() -> None:
    options = {f"--{setting.option.replace('_', '-')}" for setting in SETTINGS if setting.option} | {"--no-exits"}
    state = ServerState(
        100.0,
        snapshot({"digits": dict.fromkeys(NAMES, 50)}, memory=memory(1, digits=2)),
        turned_away={"digits": dict.fromkeys(LOST, 1)},
        replies=dict.fromkeys((400, 401, 403, 404, 413), MISTAKES),
        shadows={"digits:2": {"other": 1}},
    )
    named = {word.strip("`.,:;()") for one in after(state) for word in one.cure.split() if word.startswith("`--")}
    assert len(named) >= 5
    assert named <= options
