"""Builds networks of torchvision, timm, transformers and our own in many forms, serves each, and compares an answer.

Those whose rows differ in size are compared at sizes over their whole range instead, alone and together, from Python.

Weights are random and nothing is downloaded. A library that is not installed is left out. A case that was done before
is not done again: `--out` keeps results.
"""

import argparse
import gc
import json
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import process_time

import torch
from torch import Tensor

from examples.architectures.asking import worst_at_sizes, worst_difference
from examples.architectures.catalogue import SOURCES, Architecture, Catalogue, Rows, catalogue_of
from latebind.child import started
from latebind.cli.console import console, progress, show
from latebind.domain.errors import LatebindError
from latebind.program.backends import BACKENDS
from latebind.program.build import build_program
from latebind.program.export import run_module, runner
from latebind.program.load import load_program
from latebind.repository.listing import Repository

Result = dict[str, object]
SAME = 1e-4  # of the largest value: what a served answer may differ from the module's
GOOD = ("served", "refused")


def main(arguments: Sequence[str]) -> int:
    """Try the architectures asked for, show a table, and return 1 if one failed that should not."""
    given = _parser().parse_args(arguments)
    warnings.simplefilter("ignore")  # of the libraries about themselves
    torch.set_num_threads(1)
    failed = False
    for source in given.source or SOURCES:
        try:
            catalogue = catalogue_of(source)
        except (ImportError, RuntimeError) as error:
            console.print(f"{source} is left out: {str(error).splitlines()[0]}")
            continue
        results = _try_all(source, catalogue, given)
        show(source, [{"architecture": name, **result} for name, result in results.items()])
        failed = failed or any(result["result"] not in GOOD for result in results.values())
    return int(failed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m examples.architectures", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/architectures"), help="folder for models and results")
    parser.add_argument("--source", action="append", choices=SOURCES, help="only this library; may be repeated")
    parser.add_argument("--only", action="append", help="only architectures of this name; may be repeated")
    parser.add_argument("--backend", action="append", choices=BACKENDS, help="backends to try; default: all exact ones")
    parser.add_argument("--sizes", type=int, default=200, help="random sizes to compare at, where rows differ in size")
    parser.add_argument("--max-batch", type=int, default=4, help="the largest batch to profile and serve")
    return parser


def _try_all(source: str, catalogue: Catalogue, given: argparse.Namespace) -> dict[str, Result]:
    """Return the result of each architecture; results are written to a file one by one."""
    kept = given.out / f"{source}.json"
    given.out.mkdir(parents=True, exist_ok=True)
    results: dict[str, Result] = json.loads(kept.read_text()) if kept.exists() else {}
    wanted = [name for name in catalogue if not given.only or name in given.only]
    with progress(f"building {source}") as on_progress:
        for position, name in enumerate(wanted):
            on_progress(name, position / len(wanted))
            if name not in results or given.only:
                results[name] = _try(name, catalogue[name], given.out / source, given)
                kept.write_text(json.dumps(results, indent=1))
                gc.collect()  # exporting leaves cycles that hold the weights
    return {name: results[name] for name in wanted}


def _try(name: str, case: Architecture, folder: Path, given: argparse.Namespace) -> Result:
    """Build, serve and compare one architecture; it looks for any exception that is not one of ours."""
    begun = process_time()
    try:
        with _seeded():
            module, rows = case.make().eval(), case.rows()
        outputs = case.outputs or None
        path = Repository(folder).path_for(name, "1")
        report = build_program(
            module,
            rows,
            directory=path,
            name=name,
            backends=given.backend,
            max_batch=given.max_batch,
            outputs=outputs,
            dims=case.dims,
            sizes=case.sizes,
        )
        build_seconds = process_time() - begun
        if case.dims:
            program = load_program(report.directory)
            difference = worst_at_sizes(program, runner(module, rows, outputs=outputs), rows, given.sizes)
        else:
            difference = _served(folder, name, rows, run_module(module, rows, outputs=outputs))
    except LatebindError as error:
        as_said = bool(case.refused) and case.refused in str(error)
        return _result("refused" if as_said else "REFUSED", process_time() - begun, said=str(error))
    except Exception as error:  # what a network or library raises is the result
        return _result("CRASHED", process_time() - begun, said=f"{type(error).__name__}: {error}"[:300])
    shares = f"rows {'share' if report.pads else 'do not share'} a batch with longer ones" if case.dims else ""
    verdict = "served" if difference <= SAME and not case.refused else "WRONG"
    chain = max(report.overhead.values(), default=1.0)
    return _result(
        verdict,
        build_seconds,
        cuts=report.cut_points,
        stages=len(report.stages),
        backend=report.backend,
        chain=round(chain, 2),
        difference=f"{difference:.0e}",
        said="; ".join([shares, *(f"{backend}: {why}" for backend, why in report.refused.items())]),
    )


def _served(folder: Path, name: str, rows: Rows, expected: Sequence[Tensor]) -> float:
    """Serve a model and return how far its answer is from the expected one."""
    with (
        tempfile.TemporaryFile("w+") as log,
        started((str(folder), "--model", name, "--port", "0"), log=log) as child,
    ):
        return worst_difference(child.url, name, rows, expected)


def _result(verdict: str, seconds: float, **found: object) -> Result:
    empty: Result = {"cuts": "", "stages": "", "backend": "", "chain": "", "difference": "", "said": ""}
    return {"result": verdict, "CPU s": round(seconds, 1), **empty, **found}


@contextmanager
def _seeded() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
