"""`latebind bench`: every promise of speed as a command that prints what it measured."""

import typer

from latebind.cli.bench.adaptation import calibration, drift, locality
from latebind.cli.bench.batching import batching, live
from latebind.cli.bench.caches import caches
from latebind.cli.bench.cluster import cluster
from latebind.cli.bench.elastic import elastic
from latebind.cli.bench.elastic_live import elastic_live
from latebind.cli.bench.exits import engine, exits
from latebind.cli.bench.faults import faults
from latebind.cli.bench.joint import joint
from latebind.cli.bench.ledger import ledger
from latebind.cli.bench.load import door, flood, load
from latebind.cli.bench.memory import memory
from latebind.cli.bench.overhead import boundary, scheduler, stages
from latebind.cli.bench.peers import peers
from latebind.cli.bench.queries import queries
from latebind.cli.bench.queries_live import queries_live
from latebind.cli.bench.ray import ray
from latebind.cli.bench.residency import residency
from latebind.cli.bench.residency_live import residency_live
from latebind.cli.bench.validate import validate

app = typer.Typer(
    help="Measure what latebind promises; every command prints its settings.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)

for command in (
    batching,
    live,
    joint,
    elastic,
    elastic_live,
    exits,
    engine,
    caches,
    calibration,
    locality,
    drift,
    load,
    flood,
    door,
    scheduler,
    stages,
    boundary,
    memory,
    queries,
    residency,
    residency_live,
    queries_live,
    faults,
    peers,
    ledger,
    ray,
    cluster,
    validate,
):
    app.command()(command)
