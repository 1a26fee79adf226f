"""The pages of the site: those of the repository, with links as the site needs them, and those made from the code."""

import re
from collections.abc import Iterator, Mapping
from functools import partial
from os.path import normpath, relpath
from pathlib import Path, PurePosixPath

from docs.site.reference import benchmarks, commands, configuration, metrics, python

ROOT = Path(__file__).parents[2]
INDEX = "docs/README.md"  # whose order is that of the site, and whose place the front page takes
GENERATED = {
    "reference/commands.md": commands,
    "reference/configuration.md": configuration,
    "reference/python.md": python,
    "reference/metrics.md": metrics,
    "reference/benchmarks.md": benchmarks,
}
LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?!\w+:)(?P<path>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")
FENCED = re.compile(r"(^```.*?^```\n?)", re.MULTILINE | re.DOTALL)


def places() -> dict[str, str]:
    """Return the place in the site of each page of the repository, both as paths from their root."""
    found = {"README.md": "index.md", INDEX: "index.md"}
    found |= {name: name.lower() for name in ("CHANGELOG.md", "CONTRIBUTING.md")}
    for page in sorted((ROOT / "docs").glob("**/*.md")):
        path = page.relative_to(ROOT / "docs")
        found.setdefault(f"docs/{path}", str(path.with_name("index.md") if path.name == "README.md" else path))
    found |= {
        f"examples/{page.parent.name}/README.md": f"examples/{page.parent.name}.md"
        for page in sorted((ROOT / "examples").glob("*/README.md"))
    }
    return found


def pages(forge: str = "") -> dict[str, str]:
    """Return the text of each page by its path in the site; `forge` is the address of the repository, if it has one."""
    where = places()
    found = {
        place: _linked(source, (ROOT / source).read_text(encoding="utf-8"), where, forge)
        for source, place in where.items()
        if source != INDEX
    }
    return found | {place: make() for place, make in GENERATED.items()}


def nav() -> list[object]:
    """Return the parts of the site with their pages, as mkdocs has them; the log comes last."""
    where, parts = places(), list[object](["index.md"])
    index = (ROOT / INDEX).read_text(encoding="utf-8")
    for title, text in re.findall(r"^## (.+)\n((?:(?!## ).*\n)*)", index, re.MULTILINE):
        sources = [normpath(f"docs/{link['path']}") for link in LINK.finditer(text)]
        listed: list[object] = list(dict.fromkeys(where[source] for source in sources if source in where))
        if title == "Reference":
            listed = [*GENERATED, *listed]
        if "log/index.md" in listed:
            listed.remove("log/index.md")
            topics = [place for place in where.values() if place.startswith("log/") and place != "log/index.md"]
            listed.append({"Log": ["log/index.md", *topics]})
        parts.append({title: listed})
    return parts


def _linked(source: str, text: str, where: Mapping[str, str], forge: str) -> str:
    """Return the text of a page with links to other pages of the site; what is not in the site becomes plain text."""

    def outside_of_blocks() -> Iterator[str]:
        for part in FENCED.split(text):
            yield part if part.startswith("```") else LINK.sub(partial(_link, source, where, forge), part)

    return "".join(outside_of_blocks())


def _link(source: str, where: Mapping[str, str], forge: str, found: re.Match[str]) -> str:
    text, anchor = found["text"], found["anchor"] or ""
    path = normpath(PurePosixPath(source).parent / found["path"])
    if path in where:
        return f"[{text}]({relpath(where[path], PurePosixPath(where[source]).parent)}{anchor})"
    if not (ROOT / path).exists():
        return found[0]  # for mkdocs to complain of
    if forge:
        return f"[{text}]({forge.rstrip('/')}/blob/main/{path}{anchor})"
    plain = text.strip("`")
    return f"`{path}`" if path.endswith(plain) else f"{text} (`{path}`)"
