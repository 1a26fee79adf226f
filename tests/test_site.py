"""The pages of the site: nothing that can be set, called or measured is missing, and every link leads to a page.

mkdocs itself, which `make docs` runs, is not needed here.
"""

import re
from collections.abc import Iterator
from posixpath import dirname, join, normpath

import pytest
from msgspec.structs import fields

import latebind
from docs.site.pages import nav, pages
from latebind.cli.bench import Benchmarks
from latebind.cli.main import MODULES
from latebind.domain.config import ServeConfig
from latebind.hosting import Options
from tests.server.conftest import opened, scalar
from tests.server.test_metrics import TEXT
from tests.test_docs import ROOT, options

LINK = re.compile(r"\]\((?!\w+:)([^)#\s]+)")
SAMPLE = re.compile(r"^([a-z]\w*)(?:\{| )", re.MULTILINE)
PUBLIC = re.compile(r"\blatebind(?:\.\w+)*\.[A-Za-z]\w*(?=[`(])")


@pytest.fixture(scope="module")
def site() -> dict[str, str]:
    return pages()


def section(page: str, title: str) -> str:
    """Return what stands below a title of the second level."""
    found = re.search(rf"^## {re.escape(title)}(?: \{{[^\n]*)?\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found[1]


COMMANDS = [*(name for name in MODULES if name != "bench"), *(f"bench {name}" for name in Benchmarks.modules)]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_reference_has_every_option_of_a_command(command: str, site: dict[str, str]) -> None:
    told = section(site["reference/commands.md"], f"latebind {command}")
    there = options(command) - {"--help"}
    assert {option for option in there if option.startswith("-")} <= set(re.findall(r"`(-[\w-]+)`", told))
    assert all(f"`{argument}`" in told for argument in there)


def test_the_reference_has_every_key_with_its_default(site: dict[str, str]) -> None:
    page = site["reference/configuration.md"]
    for part in fields(ServeConfig):
        rows = re.findall(r"^\| `(\w+)` \| (\w[^|]*) \| ([^|]*) \|", section(page, f"[{part.name}]"), re.MULTILINE)
        assert [name for name, _, _ in rows] == [field.name for field in fields(part.type)]
        for field, (_, _, default) in zip(fields(part.type), rows, strict=True):
            if re.fullmatch(r"`[\d.]+`", default):
                assert float(default.strip("`")) == field.default, field.name


def test_the_reference_has_every_metric_that_a_server_shows(site: dict[str, str]) -> None:
    with opened() as server:
        server.post("/v2/models/scalar/infer", {"inputs": [scalar(1.0)]})
        shown = {*SAMPLE.findall(server.get("/metrics").body.decode()), *SAMPLE.findall(TEXT.decode())}
    told = set(re.findall(r"^\| `(\w+)` \|", site["reference/metrics.md"], re.MULTILINE))
    assert {"latebind_requests_total", "latebind_fidelity", "nv_cpu_utilization", "nv_gpu_power_usage"} <= shown
    assert {re.sub("_(bucket|sum|count)$", "", name) if name not in told else name for name in shown} <= told


def test_the_reference_has_what_programs_import(site: dict[str, str]) -> None:
    page = site["reference/python.md"]
    named = PUBLIC.findall((ROOT / "docs" / "models.md").read_text())
    assert "latebind.sequence.greedy.Rules" in named
    for name in (*named, *(f"latebind.{name}" for name in latebind.__all__ if name != "__version__")):
        assert section(page, name)
    assert all(f"    {name}: " in section(page, "latebind.hosting.Options") for name in Options.__annotations__)


def test_links_lead_to_pages_of_the_site(site: dict[str, str]) -> None:
    followed = 0
    for path, text in site.items():
        for link in LINK.findall(re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
            assert normpath(join(dirname(path), link)) in site, f"{path}: {link}"
            followed += 1
    assert followed > 100
    assert "`examples/intents/finetune.py`" in site["examples/intents.md"]  # what is no page is named
    somewhere = pages("https://forge.example/latebind")["examples/intents.md"]
    assert "(https://forge.example/latebind/blob/main/examples/intents/finetune.py)" in somewhere


def listed(parts: object) -> Iterator[str]:
    """Yield all pages of a part, and of those in it."""
    if isinstance(parts, str):
        yield parts
    else:
        assert isinstance(parts, list | dict)
        for part in parts.values() if isinstance(parts, dict) else parts:
            yield from listed(part)


def test_every_page_has_one_place_in_the_order(site: dict[str, str]) -> None:
    assert sorted(listed(nav())) == sorted(site)
