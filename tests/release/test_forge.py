"""What a public forge runs (`.github/workflows`): commands that there are, on the Pythons that the classifiers name."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[2]
WORKFLOWS = {path.name: yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "workflows").glob("*.yml")}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
TESTED = {
    found[1] for line in PROJECT["project"]["classifiers"] if (found := re.fullmatch(r".*Python :: (3\.\d+)", line))
}


def jobs() -> list[tuple[str, dict[str, Any]]]:
    return [(name, job) for workflow in WORKFLOWS.values() for name, job in workflow["jobs"].items()]


def ran() -> str:
    """Return all commands, a line each."""
    return "\n".join(step["run"] for _, job in jobs() for step in job["steps"] if "run" in step)


def test_every_target_of_make_that_is_asked_for_exists() -> None:
    asked = set(re.findall(r"\bmake (\S+)", ran()))
    assert {"dist", "lint", "test"} <= asked
    assert asked <= set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_tests_run_on_every_python_of_the_classifiers_and_on_no_other() -> None:
    test = WORKFLOWS["test.yml"]["jobs"]
    (setup,) = (step["with"] for step in test["all"]["steps"] if "setup-python" in step.get("uses", ""))
    assert {setup["python-version"], *test["matrix"]["strategy"]["matrix"]["python"]} == TESTED
    assert PROJECT["project"]["requires-python"] == f">={min(TESTED, key=lambda version: int(version[2:]))}"


def test_whoever_cites_names_this_version() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (cited["version"], cited["license"]) == (PROJECT["project"]["version"], PROJECT["project"]["license"])


def test_compiled_wheels_are_built_for_every_python_that_was_tested() -> None:
    built = PROJECT["tool"]["cibuildwheel"]
    assert built["environment"]["LATEBIND_COMPILE"] == "1"
    assert {f"cp{version.replace('.', '')}-manylinux_*" for version in TESTED} <= set(built["build"])


def test_nothing_is_published_but_a_tag_after_all_else_and_no_secret_is_used() -> None:
    wheels = WORKFLOWS["wheels.yml"]["jobs"]
    publish = wheels["publish"]
    assert set(publish["needs"]) == set(wheels) - {"publish"}
    assert "github.ref_type == 'tag'" in publish["if"]
    for name, job in jobs():
        assert job["permissions"] == ({"id-token": "write"} if name == "publish" else {"contents": "read"})
    assert not any("secrets." in path.read_text() for path in (ROOT / ".github" / "workflows").iterdir())


def test_actions_of_others_are_named_by_what_they_hold_and_every_job_ends() -> None:
    for name, job in jobs():
        assert job["timeout-minutes"] > 0, name
        for step in job["steps"]:
            assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", step.get("uses", f"a/b@{'0' * 40}")), step
