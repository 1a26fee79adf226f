"""A query end to end: trains, builds, serves, and asks for pictures over HTTP. `python -m examples.query.demo`.

Handwritten digits take a minute or two; `--data FOLDER` of CIFAR-10 half an hour. What is there is not made again.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np

from examples.query.build import Builder
from examples.query.scenes import GATE, INPUT, Scene, scene, shortened
from examples.query.train import CORES, train_missing
from latebind.bench.server import serving
from latebind.cli.console import console, percent, progress, show
from latebind.program.metadata import read_spec_and_costs
from latebind.repository.directory import ModelDirectory

TOO_LATE = (503, 504)  # refused as hopeless, or past its deadline
SHOWN = 8  # pictures whose answers are shown one by one
ALLOWED = (0.6, 0.9, 1.2, 3.0)  # deadlines, as multiples of what the most accurate models take to their ends


@dataclass(frozen=True, slots=True)
class Told:
    """One answer: its class, and the parameters that say how it was made."""

    answered: int
    parameters: Mapping[str, object]

    def of(self, step: str, key: str) -> object:
        """Return the parameters of a step, empty if it did not run."""
        return self.parameters.get(f"{step}.{key}", "")

    @property
    def steps(self) -> list[str]:
        """The steps that ran, in order."""
        return str(self.parameters["steps"]).split(",")


def main(arguments: Sequence[str]) -> None:
    """Run the demo; everything it makes goes below one folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder of CIFAR-10 as in examples/cifar10; default: digits")
    parser.add_argument("--out", type=Path, help="folder for weights and models; default: out/query/picture or digit")
    parser.add_argument("--requests", type=int, default=200, help="pictures at each deadline")
    parser.add_argument("--quick", action="store_true", help="a third of the training: sooner, and worse answers")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    pictures = shortened(scene(given.data)) if given.quick else scene(given.data)
    out = given.out or Path("out/query") / pictures.query
    builder = Builder(pictures, out / "weights", out / "models", seed=given.seed)

    console.print(f"[bold]1. Train[/] a gate and two families of three: {', '.join(pictures.models)}")
    with progress("training") as on_progress:
        train_missing(pictures, builder.weights, pictures.models, CORES, given.seed, on_progress)
    console.print("[bold]2. Build[/] them; the gate gets learned caches, so that easy pictures leave it early")
    with progress("building") as on_progress:
        builder.build_missing(on_progress)
    show("one picture at a time on one thread", [builder.described(model) for model in pictures.models])
    query = builder.write_query()
    console.print(f"[bold]3. The query[/] is a file, {query}:\n")
    console.print(query.read_text(), highlight=False, markup=False)

    console.print("[bold]4. Serve[/] it and ask for pictures that nothing has seen")
    whole = slowest(builder)
    with serving(builder.out, "--model", pictures.query, log=out / "server.log") as url:
        for row in range(SHOWN):
            ask(url, pictures, row, 1.0)
        show(
            f"due after {2e3 * whole:.1f} ms",
            [line(pictures, row, ask(url, pictures, row, 2 * whole)) for row in range(SHOWN)],
        )
        rows = [summed(url, pictures, given.requests, share * whole) for share in ALLOWED]
    show(f"{given.requests} pictures at each of several deadlines", rows)
    console.print(f"serve it yourself: latebind serve {builder.out}")


def slowest(builder: Builder) -> float:
    """Return the seconds that the gate and the slowest of all others take together, without leaving early."""
    seconds = {}
    for model in builder.scene.models:
        _, costs = read_spec_and_costs(ModelDirectory.open(builder.path_of(model)))
        seconds[model] = costs.remaining(0, 1)
    return seconds.pop(GATE) + max(seconds.values())


def ask(url: str, pictures: Scene, row: int, seconds: float) -> Told | None:
    """Send one picture as any client would; return None if it was refused because it would be late."""
    image = pictures.test.inputs[row : row + 1]
    tensor = {"name": INPUT, "shape": list(image.shape), "datatype": "FP32", "data": image.flatten().tolist()}
    body = {"inputs": [tensor], "parameters": {"timeout": round(seconds * 1e6)}}
    request = Request(f"{url}/v2/models/{pictures.query}/infer", json.dumps(body).encode())  # noqa: S310
    try:
        with urlopen(request) as response:  # noqa: S310
            answer = json.load(response)
    except HTTPError as error:
        if error.code not in TOO_LATE:
            raise
        return None
    return Told(int(np.argmax(answer["outputs"][0]["data"])), answer["parameters"])


def line(pictures: Scene, row: int, told: Told | None) -> dict[str, object]:
    """Return what became of one picture as a row of a table."""
    right = pictures.classes[pictures.test.labels[row]]
    if told is None:
        return {"it is": right, "answered": "too late", "gate left at": "", "then": "", "planned ms": "", "took ms": ""}
    then = told.steps[-1]
    return {
        "it is": right,
        "answered": pictures.classes[told.answered],
        "gate left at": f"{told.of(GATE, 'left_at')} of {told.of(GATE, 'stages')}",
        "then": told.of(then, "model"),
        "planned ms": told.of(then, "budget_ms"),
        "took ms": told.of(then, "spent_ms"),
    }


def summed(url: str, pictures: Scene, requests: int, seconds: float) -> dict[str, object]:
    """Ask for pictures with one deadline and return who answered and how many were right, as a row of a table."""
    found = [
        (row, ask(url, pictures, row, seconds)) for row in (number % len(pictures.test) for number in range(requests))
    ]
    told = [(row, one) for row, one in found if one is not None]
    models = Counter(pictures.size_of(str(one.of(one.steps[-1], "model"))) for _, one in told)
    right = sum(one.answered == pictures.test.labels[row] for row, one in told)
    return {
        "due after ms": round(seconds * 1e3, 2),
        "right": percent(right / len(found)),
        "no answer": percent(1 - len(told) / len(found)),
        "gate left early": percent(sum(_early(one) for _, one in told) / max(1, len(told))),
        "answered by": ", ".join(f"{size} {count}" for size, count in models.items()),
    }


def _early(told: Told) -> bool:
    return int(str(told.of(GATE, "left_at"))) < int(str(told.of(GATE, "stages"))) - 1


if __name__ == "__main__":
    main(sys.argv[1:])
