"""Builds the seven models to serve and writes the query over them: `python -m examples.query.build`.

An interrupted build goes on after the models that are there.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from examples.query.scenes import GATE, INPUT, SIZES, Pictures, Scene, scene, shortened
from examples.query.train import accuracy_in, restored
from latebind.cli.console import console, percent, progress, show
from latebind.domain.defaults import MIN_STAGE_SECONDS
from latebind.learned.build import build_caches
from latebind.learned.exploration_folder import explored_folder
from latebind.learned.metadata import ACCURACY, LIST, Accuracy, read_caches, with_caches, write_accuracy
from latebind.learned.samples import Samples
from latebind.program.backends import BACKENDS
from latebind.program.build import Progress, build_program
from latebind.program.metadata import read_spec_and_costs
from latebind.repository.directory import MANIFEST, ModelDirectory
from latebind.repository.listing import Repository

FITTED, VIEWS = 15_000, 2  # pictures that learned caches are fitted to at most, and altered copies of each
TRIED = ("eager", "openvino")
MAX_BATCH = 8


def main(arguments: Sequence[str]) -> None:
    """Build what is not there yet, and show what all of it takes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder of CIFAR-10 as in examples/cifar10; default: digits")
    parser.add_argument("--weights", type=Path, default=Path("out/query/weights"), help="folder of weights")
    parser.add_argument("--out", type=Path, default=Path("out/query/models"), help="folder of models")
    parser.add_argument("--fidelity", type=float, help="share of the gate's answers that stay; default: the scene's")
    parser.add_argument(
        "--backend",
        choices=BACKENDS,
        action="append",
        help=f"try only this; may be repeated. Default: {' and '.join(TRIED)}",
    )
    parser.add_argument("--quick", action="store_true", help="a third of the lessons for the learned caches")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    pictures = shortened(scene(given.data)) if given.quick else scene(given.data)
    builder = Builder(pictures, given.weights, given.out, given.fidelity, given.backend or TRIED, given.seed)
    with progress("building") as on_progress:
        builder.build_missing(on_progress)
    show(f"{given.out}, one picture at a time on one thread", [builder.described(model) for model in pictures.models])
    console.print(f"{builder.write_query()} is the query; serve it with: latebind serve {given.out}")


@dataclass(frozen=True, slots=True)
class Builder:
    """Makes model directories of a scene from weights."""

    scene: Scene
    weights: Path
    out: Path
    fidelity: float | None = None
    backends: Sequence[str] = TRIED
    seed: int = 0

    def build_missing(self, on_progress: Progress) -> None:
        """Build each model that is not in the folder."""
        missing = [model for model in self.scene.models if not self._ready(model)]
        for number, model in enumerate(missing):
            self.build(model, _progress_of_part(on_progress, model, number, len(missing)))

    def build(self, model: str, on_progress: Progress) -> None:
        """Build a model; the gate gets learned caches."""
        path = self.path_of(model)
        build_program(
            restored(self.scene, self.weights, model),
            {INPUT: self.scene.calibrated.inputs[:MAX_BATCH]},
            directory=path,
            name=model,
            backends=self.backends,
            min_stage_seconds=self.scene.stage_seconds if model == GATE else MIN_STAGE_SECONDS,
            max_overhead=None,
            max_batch=MAX_BATCH,
            progress=on_progress,
        )
        if model == GATE:
            self._learn(path, on_progress)
        measured = self.scene.about(model, self.scene.measured)
        write_accuracy(ModelDirectory.open(path), Accuracy(accuracy_in(self.weights, model), len(measured)))

    def described(self, model: str) -> dict[str, object]:
        """Return the line of a model in the table."""
        directory = ModelDirectory.open(self.path_of(model))
        spec, costs = read_spec_and_costs(directory)
        _, leaving = with_caches(spec, costs, read_caches(directory))
        return {
            "model": model,
            "ms to its end": round(costs.remaining(0, 1) * 1e3, 2),
            "stages": len(costs.stages),
            "leave early": percent(sum(leaving.hit_rates.values())),
            "right": percent(accuracy_in(self.weights, model)),
        }

    def write_query(self) -> Path:
        """Write the query beside the models, and return where."""
        path = self.out / f"{self.scene.query}.query.toml"
        path.write_text(self._query())
        return path

    def _learn(self, path: Path, on_progress: Progress) -> None:
        fit, calibrate = lessons(self.scene, self.seed)
        build_caches(
            ModelDirectory.open(path),
            fit,
            calibrate,
            fidelity=self.fidelity or self.scene.fidelity,
            presentations=self.scene.lessons,
            explored=explored_folder(path),
            seed=self.seed,
            progress=on_progress,
        )

    def _query(self) -> str:
        """Return the text of the query: which way a picture goes is the gate's answer."""
        parts = [f"# {' or '.join(self.scene.families)}, then which of them\n\n[nodes.{GATE}]\n{self._options([GATE])}"]
        for number, family in enumerate(self.scene.families):
            options = self._options([f"{family}-{size}" for size in SIZES])
            parts.append(f'[nodes.{family}]\n{options}when = "argmax({GATE}.output) == {number}"\n')
        names = ", ".join(f"{family}.output" for family in self.scene.families)
        parts.append(f'[outputs]\nscores = "first({names})"\n')
        return "\n".join(parts)

    def _options(self, models: Sequence[str]) -> str:
        named = ", ".join(f'"{model}"' for model in models)
        return f'models = [{named}]\ninputs.{INPUT} = "{INPUT}"\n'

    def _ready(self, model: str) -> bool:
        """Return whether a model is there, with its accuracy and, if it is the gate, its learned caches."""
        path = self.path_of(model)
        if not (path / MANIFEST).is_file():
            return False
        files = ModelDirectory.open(path).files
        return ACCURACY in files and (model != GATE or LIST in files)

    def path_of(self, model: str) -> Path:
        """Return where a model's directory is."""
        return Repository(self.out).path_for(model, "1")


def lessons(pictures: Scene, seed: int) -> tuple[Samples, Samples]:
    """Return samples to fit the gate's learned caches, views of a picture beside each other, and to calibrate them."""
    generator = torch.Generator().manual_seed(seed)
    learned = pictures.about(GATE, pictures.learned.take(torch.arange(min(FITTED, len(pictures.learned)))))
    views = [pictures.alter(learned.inputs, generator) for _ in range(VIEWS)]
    rows = torch.stack(views, dim=1).flatten(0, 1)
    fit = Samples({INPUT: rows}, learned.labels.repeat_interleave(VIEWS))
    return fit, _samples(pictures.about(GATE, pictures.calibrated))


def _samples(pictures: Pictures) -> Samples:
    return Samples({INPUT: pictures.inputs}, pictures.labels)


def _progress_of_part(on_progress: Progress, model: str, done: int, all_: int) -> Progress:
    return lambda step, share: on_progress(f"{model}, {step}", (done + share) / all_)


if __name__ == "__main__":
    main(sys.argv[1:])
