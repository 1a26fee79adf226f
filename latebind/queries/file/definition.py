"""A query file: its keys, checked against the models that it names. Pure.

`docs/query-files.md` describes the file. `language` has its expressions, `assembly` how they are put together.
"""

from collections.abc import Mapping
from pathlib import Path

from latebind.domain.errors import QueryError
from latebind.domain.model import ModelSpec, StepSpec, TensorSpec
from latebind.domain.query import PlannerConfig, Query
from latebind.queries import PLANNERS
from latebind.queries.file.assembly import Assembly
from latebind.queries.file.lines import Source
from latebind.queries.file.scope import read_scope
from latebind.queries.file.steps import read_step
from latebind.queries.file.tables import Table
from latebind.queries.file.wiring import DefinedQuery
from latebind.repository.directory import NAME

ENDING = ".query.toml"
LONGEST_MS = 3_600_000.0
KEYS = ("deadline_ms", "planner", "replan", "price", "version", "inputs", "conditions", "nodes", "outputs")


def read_query(path: Path, models: Mapping[str, ModelSpec], accuracies: Mapping[str, float]) -> DefinedQuery:
    """Return the query in a file, checked against `models`; `accuracies` are those measured by their builds.

    Raises `QueryError` as `FILE:LINE: what is wrong, and what to do`.
    """
    root = _root(path)
    name = query_name(path)
    if name in models:
        raise root.error(f"there is a model {name} as well: give the query's file another name")
    nodes = _node_tables(root)
    steps = {node: read_step(nodes.table(node), node, models, accuracies) for node in nodes.names()}
    assembly = Assembly(root, steps, read_scope(root, steps))
    return DefinedQuery(_query(root, name, assembly), assembly.wiring())


def model_names(path: Path) -> tuple[str, ...]:
    """Return the models that a query file names, each once, without checking the rest of the file."""
    nodes = _node_tables(_root(path))
    return tuple(dict.fromkeys(model for node in nodes.values for model in nodes.table(node).texts("models")))


def query_name(path: Path) -> str:
    """Return the name of the query in a file, which is the file's name. Raises `QueryError` if it is not valid."""
    name = path.name.removesuffix(ENDING)
    if name == path.name or not NAME.fullmatch(name):
        wanted = "letters, digits, '.', '_' and '-', beginning with a letter or digit, 128 at most"
        raise QueryError(f"{path} is no name for a query: call it NAME{ENDING}, with a NAME of {wanted}")
    return name


def _root(path: Path) -> Table:
    source = Source.read(path)
    root = Table(source, (), source.values)
    root.check_keys(KEYS)
    return root


def _node_tables(root: Table) -> Table:
    nodes = root.table("nodes")
    if not nodes.values:
        raise nodes.error('there are no nodes: write one as [nodes.NAME] with models = ["..."]')
    return nodes


def _query(root: Table, name: str, assembly: Assembly) -> Query:
    nodes = assembly.nodes()
    return Query(
        spec=ModelSpec(
            name=name,
            version=_version(root),
            inputs=tuple(assembly.scope.inputs.values()),
            outputs=tuple(TensorSpec(each, one.kind.dtype, one.kind.shape) for each, one in assembly.outputs.items()),
            stages=len(nodes),
            max_batch=min(model.max_batch for step in assembly.steps for model in step.models),
            steps=tuple(
                StepSpec(node.name, node.models, node.after, sources)
                for node, sources in zip(nodes, assembly.sources(), strict=True)
            ),
        ),
        nodes=nodes,
        planner=_planner(root),
        deadline=_deadline(root),
    )


def _version(root: Table) -> str:
    version = root.text("version") if "version" in root else "1"
    if not version.isdecimal() or not version.isascii() or len(version) > 18:
        raise root.error(f"version is {version!r:.50}: give a number as a text", "version")
    return version


def _deadline(root: Table) -> float:
    if "deadline_ms" not in root:
        return 0.0
    milliseconds = root.number("deadline_ms")
    if not 0.0 < milliseconds <= LONGEST_MS:
        raise root.error(f"deadline_ms is {milliseconds:g}: give more than 0 and at most {LONGEST_MS:g}", "deadline_ms")
    return milliseconds / 1e3


def _planner(root: Table) -> PlannerConfig:
    usual = PlannerConfig()
    name = root.text("planner") if "planner" in root else usual.name
    if name not in PLANNERS:
        raise root.error(f"there is no planner {name!r:.100}: take {', '.join(PLANNERS)}", "planner")
    price = root.number("price") if "price" in root else usual.price
    if price is not None and price < 0.0:
        raise root.error(f"price is {price:g} of accuracy a second: give 0 or more", "price")
    if price and name != usual.name:
        raise root.error(f"price is only known to the planner {usual.name}, not to {name}: leave one out", "price")
    return PlannerConfig(name, root.flag("replan") if "replan" in root else usual.replan, price)
