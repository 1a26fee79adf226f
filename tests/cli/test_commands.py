"""The commands as a user types them: what they print, write and exit with."""

import json
import shutil
import signal
import socket
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from latebind.bench.client import Caller, encode
from latebind.bench.server import launched, serving
from latebind.cli.build import Promised
from latebind.cli.commands import flattened
from latebind.cli.main import app
from tests.digits import Built
from tests.querying import rows_going
from tests.sequences import LONGEST, backwards, rows_of, some_sentences

ALONE = ("build", "calibrate", "serve", "simulate", "plan", "models", "replay", "versions")
EVERY = (*ALONE, "bench memory", "bench exits", "bench load")
TAGGER = "build tests.networks:Tagger --input ids=int64:L --input mask=int64:L --dim L=1..9"
CHAIN = "build tests.networks:Chain --input image=float32:3x8x8"


def refuses() -> None:
    raise ValueError("no checkpoint")


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(words))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


@pytest.mark.parametrize("command", EVERY)
def test_every_command_explains_itself(command: str) -> None:
    code, output = run(*command.split(), "--help")
    assert code == 0
    assert "Usage" in output


def test_options_of_a_group_stand_in_its_place_and_in_its_panel_if_it_has_one() -> None:
    _, output = run("build", "--help")
    first, _, training = output.partition(" Training learned caches ")
    assert "--weights" in first
    assert "--lessons" in training.partition(" What learned caches promise ")[0]
    assert run("calibrate", "models", "--data", "rows.npz")[0] == 2  # --model has no default


def test_a_name_in_two_groups_is_refused() -> None:
    def twice(some: Promised, others: Promised) -> None:
        del some, others

    with pytest.raises(ValueError, match="duplicate parameter name: 'fidelity'"):
        flattened(twice)


def test_a_module_is_built_listed_and_simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    root = str(tmp_path / "models")
    code, output = run(
        "build", "tests.networks:Chain", "--name", "chain", "--input", "image=float32:3x8x8", "--out", root,
        "--backend", "eager", "--min-stage-ms", "0", "--max-batch", "4",
    )  # fmt: skip
    assert code == 0, output
    assert "latebind serve" in output
    file = tmp_path / "models.json"
    code, output = run("models", root, "--stages", "--json", str(file))
    assert code == 0, output
    (listed,) = json.loads(file.read_text())["models"]
    assert (listed["model"], listed["backend"], listed["exits after"]) == ("chain", "eager", "none")
    log, figures = tmp_path / "events.jsonl", tmp_path / "simulated.json"
    code, output = run(
        "simulate", root, "--rate", "50", "--policy", "graph", "--requests", "200", "--event-log", str(log),
        "--json", str(figures),
    )  # fmt: skip
    assert code == 0, output
    (cell,) = json.loads(figures.read_text())
    assert (cell["policy"], cell["requests"], cell["answered"]) == ("graph", 200, 200)
    code, output = run("replay", str(log))
    assert (code, "all identical" in output) == (0, True)


def test_texts_of_any_length_are_simulated_as_long_as_they_are_told_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    root, log, figures = tmp_path / "models", tmp_path / "events.jsonl", tmp_path / "simulated.json"
    code, output = run(*TAGGER.split(), "--name", "tagger", "--out", str(root), "--backend", "eager")
    assert code == 0, output
    words = ("simulate", str(root), "--rate", "2000", "--requests", "300", "--policy", "late", "--json", str(figures))
    code, output = run(*words, "--lengths", "2,8", "--event-log", str(log))
    assert code == 0, output
    assert "lengths 2 to 8, half up to 2" in output
    (cell,) = json.loads(figures.read_text())
    assert len(cell["quarters"]) == 4
    assert cell["padding"] >= 1.0
    assert "all identical" in run("replay", str(log))[1]
    code, output = run(*words, "--lengths", str(log))
    assert code == 0, output
    assert "lengths 2 to 8" in output
    assert "L must be 1 to 9, not 10" in run(*words, "--lengths", "10")[1]


def test_data_that_does_not_fit_leaves_the_former_model_as_it_was(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", picture=np.zeros((8, 3, 8, 8), np.float32))
    words = (*CHAIN.split(), "--out", str(tmp_path), "--name", "chain")
    (tmp_path / "chain" / "1").mkdir(parents=True)
    code, output = run(*words, "--backend", "eager", "--data", str(tmp_path / "rows.npz"))
    assert (code, "the samples have picture" in output) == (2, True)
    assert list((tmp_path / "chain" / "1").iterdir()) == []


def test_a_sequence_model_is_built_listed_simulated_and_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    root, sentences = tmp_path / "models", some_sentences(20)
    np.savez(tmp_path / "some.npz", tokens=rows_of(sentences).numpy())
    code, output = run(
        "build", "tests.sequences:Backwards", "--name", "backwards", "--input", f"tokens=int64:{LONGEST}",
        "--data", str(tmp_path / "some.npz"), "--out", str(root), "--backend", "eager", "--max-batch", "4",
    )  # fmt: skip
    assert code == 0, output
    assert "tokens, " in output
    code, output = run("models", str(root), "--stages")
    assert code == 0
    assert "backwards" in output
    code, output = run("simulate", str(root), "--rate", "50", "--requests", "200", "--policy", "lazy+")
    assert code == 0, output
    with serving(root, "--policy", "lazy+") as url:
        caller = Caller(url, "backwards")
        for words in sentences[:5]:
            answered = caller(encode({"tokens": np.array([words])}, timeout=30.0))
            assert answered.outputs["tokens"].tolist() == [backwards(words)]
        caller.close()


def test_a_sequence_model_has_one_output_so_none_is_to_be_named(tmp_path: Path) -> None:
    words = "--input", f"tokens=int64:{LONGEST}", "--out", str(tmp_path), "--output", "logits"
    code, output = run("build", "tests.sequences:Backwards", *words)
    assert (code, "--output logits: a sequence model has one output, tokens" in output) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_only_the_output_that_is_named_is_built_and_answered(tmp_path: Path) -> None:
    words = "--input", "x=float32:4", "--out", str(tmp_path), "--backend", "eager", "--name", "cached"
    code, output = run("build", "tests.program.modules:Cached", *words, "--output", "logits")
    assert code == 0, output
    with serving(tmp_path) as url:
        caller = Caller(url, "cached")
        answered = caller(encode({"x": np.ones((2, 4), np.float32)}, timeout=30.0))
        assert {name: found.shape for name, found in answered.outputs.items()} == {"logits": (2, 3)}
        caller.close()


def test_a_log_that_was_altered_does_not_replay(tmp_path: Path, models: Path) -> None:
    log = tmp_path / "events.jsonl"
    run("simulate", str(models), "--model", "chain", "--rate", "50", "--requests", "50", "--event-log", str(log))
    lines = log.read_text().splitlines()
    lines[1] = lines[1].replace('"Run",0', '"Run",1')
    log.write_text("\n".join(lines))
    code, output = run("replay", str(log))
    assert (code, "line 2 differs" in output) == (1, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("build tests.networks:Chain", "--input is missing"),
        ("build tests.networks:Chain --input image=3x8", "write it as image=float32"),
        (
            "build nowhere:Chain --input image=float32:3x8x8",
            "cannot be imported: No module named 'nowhere'; is its folder",
        ),
        ("build tests.networks --input image=float32:3x8x8", "package.module:function"),
        ("build tests/networks.py:Chain --input x=float32:4", "write the module, tests.networks:Chain"),
        ("build tests.networks:Chains --input x=float32:4", "has no 'Chains': did you mean 'Chain'?"),
        ("build torch.nn:NoSuchLayer --input x=float32:4", "torch.nn has no 'NoSuchLayer'"),
        ("build os:getcwd --input image=float32:3x8x8", "must make a torch.nn.Module"),
        ("build tests.cli.test_commands:refuses --input image=float32:3x8x8", "raised ValueError: no checkpoint"),
        ("build tests.networks:Chain --input x=float32:9999999999x9999999999", "two such rows are larger than memory"),
        ("build tests.networks:Chain --input x=int64:99999999999999999999", "two such rows are larger than memory"),
        ("build tests.networks:Chain --input image=float32:3xHx8", "H has no --dim"),
        ("build tests.networks:Chain --input image=float32:3xHx8 --dim H=8..1", "the range ends before it begins"),
        (f"{CHAIN} --dim H=1..8", "no input has the dimension H"),
        (f"{TAGGER} --data none.npz", "none.npz cannot be read: No such file"),
        ("build tests.sequences:Backwards --input tokens=int64:L --dim L=1..9", "have any length already"),
        (f"{CHAIN} --seed -1", "--seed -1: give a whole number of 0 or more"),
        (f"{CHAIN} --name ../up", "a name has letters"),
        (f"{CHAIN} --weights none.safetensors", "error: none.safetensors cannot be read: No such file or directory\n"),
        (f"{CHAIN} --weights {__file__}", "is not a .safetensors file"),
        (f"{CHAIN} --threads 0", "threads 0: both must be 1 or more"),
        (f"{CHAIN} --fidelity 97", "give the share of equal answers"),
        (f"{CHAIN} --kind big", "there is no predictor 'big'"),
        (f"{CHAIN} --out {__file__}", "test_commands.py is a file"),
        (f"{CHAIN} --data rows.csv", "give an .npz file"),
        (f"{CHAIN} --data none.npz", "No such file"),
        (f"{CHAIN} --memory nan", "--memory nan: give 0 or more"),
        (f"{CHAIN} --min-stage-mb nan", "--min-stage-mb nan: give 0 or more"),
        (f"{CHAIN} --min-stage-ms nan", "--min-stage-ms nan: give 0 or more"),
        (f"{CHAIN} --seed 99999999999999999999999", "--seed 99999999999999999999999: give a wh"),
        ("calibrate nowhere --model a --data b.npz --memory nan", "--memory nan: give 0 or more"),
        ("models nowhere", "is not a directory"),
        ("serve nowhere --trace-rate 2", "give a share from 0 to 1"),
        ("serve nowhere --otlp localhost:4318", "give a URL such as http://127.0.0.1:4318"),
        ("serve nowhere --log-format xml", "choose text or json"),
        ("serve nowhere --port 0", "is not a directory"),
        ("serve nowhere --evict fifo", "residency.policy is 'fifo': choose late or lru, or your own class"),
        (
            "serve nowhere --evict nowhere.policies:Mine",
            "cannot be imported (No module named 'nowhere'): put its folder on",
        ),
        ("serve nowhere --policy best", "policy.name is 'best': choose late or lazy+ or graph, or your own class"),
        ("serve nowhere --cores 1,two", "--cores '1,two': give whole numbers"),
        ("serve nowhere --deadline-ms nan", "server.deadline is nan: give more than 0"),
        ("serve nowhere --replicas 2", "--replicas: only Ray has replicas: add --on ray"),
        ("simulate nowhere", "is not a directory"),
        ("simulate nowhere --rate 0", "every --rate above 0"),
        ("simulate nowhere --rate 5 --rate nan", "every --rate above 0"),
        ("simulate nowhere --deadline-ms nan", "--deadline-ms and every --rate above 0"),
        ("replay nowhere.jsonl", "is not a file"),
    ],
)
def test_a_mistake_gets_one_clear_line_and_exit_code_2(
    words: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    code, output = run(*words.split())
    assert code == 2
    assert message in output
    assert "Traceback" not in output


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[engine]\nworkers = 0\n", "engine.workers is 0"),
        ("[engine]\nworkers = 'two'\n", "$.engine.workers"),
        ("[engine]\ngranularities = [1, 0]\n", "engine.granularities are (1, 0)"),
        ("[policy]\nname = 'best'\n", "policy.name is 'best'"),
        ("[policy]\nwindow = -1.0\n", "policy.window is -1"),
        ("[server]\nport = 99999\n", "server.port is 99999"),
        ("[server]\nprot = 1\n", "prot"),
        ("[policy]\nname = 'latebind.logs:Mine'\n", "latebind.logs has no Mine"),
        ("nonsense", "latebind.toml"),
    ],
)
def test_settings_that_make_no_sense_name_their_key(
    text: str, message: str, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    file = tmp_path / "latebind.toml"
    file.write_text(text)
    code, output = run("serve", str(models), "--config", str(file), "--port", "0")
    assert code == 2
    assert message in output


def test_a_token_that_cannot_be_used_is_told_before_a_model_is_looked_for(tmp_path: Path) -> None:
    code, output = run("serve", str(tmp_path / "no models"), "--port", "0", "--token-file", str(tmp_path / "none"))
    assert (code, "token file" in output, "cannot be read" in output.replace("\n", " ")) == (2, True, True)


@pytest.mark.parametrize("words", [("--port", "{}"), ("--port", "0", "--grpc-port", "{}")])
def test_a_port_that_is_taken_is_told_before_a_model_is_looked_for(words: tuple[str, ...], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        code, said = run("serve", str(tmp_path / "nowhere"), *(w.format(other.getsockname()[1]) for w in words))
    assert (code, "it is in use; choose another port" in said) == (2, True), said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_answers_tells_metrics_and_ends_cleanly_on_a_signal(number: signal.Signals, models: Path) -> None:
    with launched(models, "--model", "chain", "--max-batch", "4") as server:
        caller = Caller(server.url, "chain")
        body = encode({"image": np.zeros((1, 3, 8, 8), np.float32)}, timeout=30.0)
        assert [caller(body).status for _ in range(5)] == [200] * 5
        caller.close()
        with urllib.request.urlopen(f"{server.url}/metrics") as response:
            told = response.read().decode()
        assert 'latebind_requests_total{model="chain",outcome="answered",version="1"} 5.0' in told
        server.process.send_signal(number)
        assert server.process.wait(60) == 0


def test_the_accuracy_of_a_model_is_listed(built: Built, tmp_path: Path) -> None:
    file = tmp_path / "models.json"
    code, output = run("models", str(built.directory.path), "--json", str(file))
    assert code == 0, output
    (listed,) = json.loads(file.read_text())["models"]
    assert built.report.right is not None
    assert listed["accuracy"] == f"{built.report.right.share:.4f} of {built.report.right.samples}"


def test_learned_caches_may_take_any_memory(built: Built, tmp_path: Path) -> None:
    shutil.copytree(built.directory.path, tmp_path / "digits" / "1")
    inputs, labels = built.rows
    np.savez(tmp_path / "rows.npz", labels=labels, image=inputs["image"])
    words = ("--model", "digits", "--data", str(tmp_path / "rows.npz"), "--fidelity", "0.9", "--confidence", "0.9")
    code, output = run("calibrate", str(tmp_path), *words, "--memory", "inf", "--lookups", "in-line")
    assert (code, "learned caches for fidelity 0.9" in output) == (0, True), output


def test_versions_are_listed_and_chosen(built: Built, tmp_path: Path) -> None:
    repository, folder = str(built.directory.path.parent.parent), str(tmp_path / "adapted")
    code, output = run("versions", repository, "--model", "digits", "--adapted", folder)
    assert code == 0, output
    assert "serve with --adapt" in output
    file = tmp_path / "versions.json"
    code, output = run(
        "versions", repository, "--model", "digits", "--adapted", folder, "--use", "none", "--json", str(file)
    )
    assert code == 0, output
    assert json.loads(file.read_text()) == {"current": "none", "versions": []}
    code, output = run("versions", repository, "--model", "digits", "--adapted", folder, "--use", "000009")
    assert code == 2
    assert "there is no version" in output


def test_a_query_is_served_with_its_models_alone_and_the_log_tells_of_its_steps(queried: Path, tmp_path: Path) -> None:
    log, events = tmp_path / "log", tmp_path / "events.jsonl"
    with serving(queried, "--model", "traffic", "--event-log", str(events), log=log) as url:
        caller = Caller(url, "traffic")
        assert caller(encode({"x": rows_going([0])}, timeout=30.0)).status == 200
        caller.close()
        with urllib.request.urlopen(f"{url}/v2/models") as response:
            assert json.load(response)["models"] == ["animals", "cars", "gate", "small", "traffic"]
        with urllib.request.urlopen(f"{url}/metrics") as response:
            told = response.read().decode()
        assert 'latebind_query_steps_total{answered_by="cars",model="traffic",step="cars",version="1"} 1.0' in told
        assert 'latebind_requests_total{model="cars",outcome="answered",version="1"} 1.0' in told
    assert "serving query traffic: gate -> cars, animals" in log.read_text()
    code, output = run("replay", str(events))
    assert code == 0, output
    assert "all identical" in output


def test_queries_are_listed_and_a_broken_one_with_what_is_wrong(queried: Path, tmp_path: Path) -> None:
    shutil.copytree(queried, tmp_path, dirs_exist_ok=True)
    file = tmp_path / "listed.json"
    code, output = run("models", str(tmp_path), "--json", str(file))
    assert code == 0, output
    listed = {query["query"]: query for query in json.loads(file.read_text())["queries"]}
    assert listed["fork"]["steps"] == "left, right -> join"
    assert listed["traffic"] == {
        "query": "traffic",
        "takes": "",
        "steps": "gate -> cars, animals",
        "models": "gate: gate; cars: small, cars; animals: animals",
        "deadline": "20000 ms",
        "planner": "equal",
        "wrong": "",
    }
    (tmp_path / "wrong.query.toml").write_text('[nodes.gate]\nmodels = ["gates"]\n[outputs]\ny = "gate.output"\n')
    code, _ = run("models", str(tmp_path), "--json", str(file))
    assert code == 2
    (wrong,) = [query["wrong"] for query in json.loads(file.read_text())["queries"] if query["wrong"]]
    assert "wrong.query.toml:2: " in wrong
