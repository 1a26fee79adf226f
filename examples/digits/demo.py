"""`make demo`: trains a network on real digits, builds it, serves it and compares exits off and on under load."""

import argparse
import shutil
import sys
import time
from pathlib import Path

import torch

from examples.digits.model import load_images, shifted, train
from latebind.bench import exits
from latebind.bench.report import distributions, write_plots
from latebind.bench.subject import Subject
from latebind.cli.console import console, progress, show
from latebind.learned.build import build_caches
from latebind.learned.samples import Samples
from latebind.program.build import build_program
from latebind.repository.directory import ModelDirectory
from latebind.repository.listing import Repository

TRAINED, CALIBRATED = 800, 1300  # images up to here train network and caches, calibrate, and the rest tests
STAGE_SECONDS = 2.2e-4  # a small network: shorter stages than the default, so that there are places to leave
LESSONS = 25_000
VIEWS = 6  # how many shifted copies of each training image the caches learn from


def main(arguments: list[str]) -> None:
    """Run the demo; everything it makes goes below one folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/digits"), help="folder for model and page")
    parser.add_argument("--fidelity", type=float, default=0.97, help="share of answers that equal the base model's")
    parser.add_argument("--requests", type=int, default=3000, help="requests of each side")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--build-only", action="store_true", help="stop when the model is built")
    given = parser.parse_args(arguments)
    begun = time.perf_counter()
    torch.set_num_threads(2)
    images, labels = load_images()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(given.seed))
    training, calibration, test = order.tensor_split([TRAINED, CALIBRATED])

    console.print(f"[bold]1. Train[/] a network on {len(training)} handwritten digits")
    net = train(images[training], labels[training], seed=given.seed)
    with torch.inference_mode():
        accuracy = float((net(images[test]).argmax(1) == labels[test]).float().mean())
    console.print(f"   {accuracy:.1%} of {len(test)} digits it has not seen are right")

    console.print("[bold]2. Build[/] a chain of stages and learned caches")
    shutil.rmtree(given.out, ignore_errors=True)
    repository = given.out / "models"
    path = Repository(repository).path_for("digits", "1")
    with progress("building") as on_progress:
        built = build_program(
            net,
            {"image": images[training][:64]},
            directory=path,
            name="digits",
            backends=["eager", "openvino"],
            min_stage_seconds=STAGE_SECONDS,
            max_overhead=None,
            progress=on_progress,
        )
    show("digits", [{"": label, " ": text} for label, text in built.rows()])
    generator = torch.Generator().manual_seed(given.seed)
    views = torch.cat([images[training], *(shifted(images[training], generator) for _ in range(VIEWS))])
    with progress("learning caches") as on_progress:
        learned = build_caches(
            ModelDirectory.open(path),
            Samples({"image": views}, labels[training].repeat(VIEWS + 1)),
            Samples({"image": images[calibration]}, labels[calibration]),
            fidelity=given.fidelity,
            presentations=LESSONS,
            seed=given.seed,
            progress=on_progress,
        )
    show(f"learned caches, target {given.fidelity:g}", [{"": label, " ": text} for label, text in learned.rows()])

    if given.build_only:
        return
    console.print("[bold]3. Serve[/] it with exits off and on, Poisson traffic through HTTP")
    report, rate = exits.open_loop(
        Subject(repository, "digits", {"image": images[test].numpy()}, labels[test].numpy()),
        requests=given.requests,
        seed=given.seed,
        log=given.out / "server.log",
    )
    show(f"{given.requests} requests a side at {rate:.0f}/s, seed {given.seed}", report.rows())
    show("where they left, exits on", report.exit_rows())
    page = given.out / "report.html"
    latency = distributions("Latency", {"exits off": report.off.seconds, "exits on": report.on.seconds})
    text = f"{given.requests} requests a side at {rate:.0f} a second (Poisson, seed {given.seed}), through HTTP."
    tables = [report.rows(), report.exit_rows()]
    write_plots(page, "latebind: handwritten digits, exits off and on", text, tables, [latency])

    off, on = (float(side.seconds.mean()) for side in (report.off, report.on))
    console.print("[bold]4. What came of it[/]")
    console.print(f"   a digit is answered in {on * 1e3:.2f} ms instead of {off * 1e3:.2f}: {off / on:.2f} times less,")
    console.print(
        f"   and {report.fidelity:.1%} of the answers are the full network's (asked for: {given.fidelity:.0%})"
    )
    console.print(f"   look at it: {page}, in a browser")
    console.print(f"   serve it: {Path(sys.executable).with_name('latebind')} serve {repository}", soft_wrap=True)
    console.print(f"   all of it took {time.perf_counter() - begun:.0f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
