"""Builds the seven networks to serve: `python -m examples.zoo.build --out DIR`; goes on where it was interrupted."""

import argparse
import gc
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from safetensors import safe_open

from examples.zoo.networks import NETWORKS, examples, make, stage_bytes
from examples.zoo.size import BENCH_SHARE, SIZES, Size
from latebind.cli.console import console, progress, show
from latebind.domain.errors import ConfigError
from latebind.program.backends import BACKENDS
from latebind.program.build import Progress, build_program
from latebind.program.metadata import read_model, read_profile
from latebind.program.stored import read_stages
from latebind.repository.directory import MANIFEST, WEIGHTS, ModelDirectory
from latebind.repository.listing import Repository

ABOUT = "zoo.json"  # what all models of a folder were made with
MAX_BATCH = 4


def main(arguments: Sequence[str]) -> None:
    """Build what is not there yet and show what all of it takes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of models")
    parser.add_argument("--size", choices=SIZES, default="bench", help="tiny: in seconds, for tests")
    parser.add_argument(
        "--scale", type=float, help=f"share of the published blocks and words, 1 for all (8 GB); bench: {BENCH_SHARE}"
    )
    parser.add_argument("--only", action="append", choices=NETWORKS, help="only this network; may be repeated")
    parser.add_argument("--backend", choices=BACKENDS, default="eager", help="what runs the stages")
    parser.add_argument("--max-batch", type=int, default=MAX_BATCH, help="the largest batch to profile and run")
    parser.add_argument("--seed", type=int, default=0, help="of the weights")
    given = parser.parse_args(arguments)
    names = tuple(given.only or NETWORKS)
    size = SIZES[given.size] if given.scale is None else replace(SIZES[given.size], share=given.scale)
    zoo = Zoo(given.out, size, backend=given.backend, max_batch=given.max_batch, seed=given.seed)
    try:
        zoo.keep_to_one_kind()
    except ConfigError as error:
        parser.error(str(error))
    with progress("building the zoo") as on_progress:
        zoo.build_missing(names, on_progress)
    show(f"{given.out}, one row at a time on one thread", [described(zoo.path_of(name)) for name in names])
    console.print(f"serve them with: latebind serve {given.out}")


@dataclass(frozen=True, slots=True)
class Zoo:
    """A folder of networks of one size, and how they are built."""

    folder: Path
    size: Size
    backend: str = "eager"
    max_batch: int = MAX_BATCH
    seed: int = 0

    def keep_to_one_kind(self) -> None:
        """Note what the networks of the folder are made with; raises `ConfigError` where others are there already."""
        about = asdict(self.size) | {"seed": self.seed}
        note = self.folder / ABOUT
        if note.exists() and json.loads(note.read_text()) != about:
            raise ConfigError(f"{self.folder} has networks of another size or seed ({note}): name another folder")
        self.folder.mkdir(parents=True, exist_ok=True)
        note.write_text(json.dumps(about) + "\n")

    def build_missing(self, names: Sequence[str], on_progress: Progress) -> None:
        """Build each network that is not in the folder, one after another, so that one is in memory at a time."""
        missing = [name for name in names if not (self.path_of(name) / MANIFEST).is_file()]
        whole = sum(NETWORKS[name].published_bytes for name in missing)
        done = 0.0
        for name in missing:
            part = NETWORKS[name].published_bytes / whole
            self.build(name, _progress_of_part(on_progress, name, done, part))
            gc.collect()  # exporting leaves cycles that hold the weights
            done += part

    def build(self, name: str, on_progress: Progress) -> None:
        """Make a network and build it, cut at every block."""
        on_progress("drawing weights", 0.0)
        module = make(name, self.size, seed=self.seed)
        build_program(
            module,
            examples(name, module, self.size, seed=self.seed),
            directory=self.path_of(name),
            name=name,
            backends=[self.backend],
            min_stage_seconds=0.0,
            min_stage_bytes=stage_bytes(name, module),
            max_overhead=None,
            max_batch=self.max_batch,
            progress=on_progress,
        )

    def path_of(self, name: str) -> Path:
        """Return where a network's model directory is."""
        return Repository(self.folder).path_for(name, "1")


def described(path: Path) -> dict[str, object]:
    """Return the line of a network in the table."""
    directory = ModelDirectory.open(path)
    model = read_model(directory)
    sizes = stage_sizes(directory)
    seconds = sum(curve.at(1) for curve in read_profile(directory).stages)
    return {
        "model": model.name,
        "MB": round(directory.files[WEIGHTS].bytes / 1e6, 1),
        "published": round(NETWORKS[model.name].published_bytes / 1e6),
        "stages": len(sizes),
        "largest stage, MB": round(max(sizes) / 1e6, 1),
        "ms": round(seconds * 1e3, 1),
    }


def stage_sizes(directory: ModelDirectory) -> list[int]:
    """Return the bytes of the weights that each stage reads."""
    stages = read_stages(directory, read_model(directory))
    with safe_open(directory.path / WEIGHTS, "pt") as weights:
        return [sum(weights.get_tensor(name).nbytes for name in stage.weights()) for stage in stages]


def _progress_of_part(on_progress: Progress, name: str, done: float, part: float) -> Progress:
    return lambda step, share: on_progress(f"{name}, {step}", done + share * part)


if __name__ == "__main__":
    main(sys.argv[1:])
