"""Every evaluation explains itself, and a mistake gets one clear line."""

import pytest
from typer.testing import CliRunner

from research.__main__ import PARTS, app
from tests.forked import printed_by


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(words))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


@pytest.mark.parametrize("command", PARTS)
def test_every_evaluation_explains_itself(command: str) -> None:
    code, output = run(command, "--help")
    assert code == 0
    assert "Usage" in output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("caches nowhere --model a --data b.npz --cache-mb nan", "--cache-mb nan: give 0 or more"),
        ("caches nowhere --model a --data b.npz --budget-mb nan", "--budget-mb nan: give 0 or more"),
        ("caches nowhere --model a --data b.npz --fidelity 97", "give the share of equal answers"),
        ("queries --step-ms nan", "step-ms is nan: give more than 0"),
    ],
)
def test_a_mistake_gets_one_clear_line_and_exit_code_2(
    words: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    code, output = run(*words.split())
    assert code == 2
    assert message in output


def test_a_page_that_cannot_be_drawn_is_refused_before_the_work() -> None:
    said = printed_by("tests.research.without_extras", "elastic", "--page", "page.html")
    assert said == "error: plotly is not installed: pip install 'latebind[report]'\n"


def test_what_needs_no_extra_tells_its_options_without_any() -> None:
    assert "--policy" in printed_by("tests.research.without_extras", "residency", "--help")
