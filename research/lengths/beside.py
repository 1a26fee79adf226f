"""`python -m research lengths-live`: texts of their own lengths, beside other servers."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

from typer import Option

from latebind.bench.rounds import Progress
from latebind.cli.bench.options import ServeWords
from latebind.cli.options import Seed
from latebind.domain.errors import ConfigError
from latebind.repository.directory import ModelDirectory
from latebind.repository.listing import find_models
from research.evaluation import Found, Load, Output, Rounds, Seconds, Words, evaluate
from research.lengths.peers import MODEL, Texts, build, compare, sides


def lengths_live(
    weights: Annotated[Path, Option(help="A sentence-transformers folder: an encoder with tokenizer.json.")],
    texts: Annotated[Path, Option(help="A text in each line, behind its last tab; may be packed by gzip.")],
    *,
    peers: Annotated[Path, Option(help="Where peers' environments are, or are installed.")],
    models: Annotated[Path | None, Option(help="Where the model is, or is built. Default: built anew.")] = None,
    most: Annotated[int, Option(min=1, help="Take the first texts of the file.")] = 2000,
    longest: Annotated[int, Option(min=1, help="Texts are cut to so many tokens.")] = 256,
    max_batch: Annotated[int, Option(min=1, help="The largest batch of every side.")] = 16,
    backend: Words = None,
    side: Words = None,
    load: Load = None,
    deadline: Annotated[float, Option(min=1.0, help="A multiple of the mean of the backend in a loop.")] = 10.0,
    serve: ServeWords = None,
    rounds: Rounds = 3,
    seconds: Seconds = 6.0,
    seed: Seed = 0,
    output: Output,
) -> None:
    """Compare latebind with other servers on texts of their own lengths, and with its backend in a loop.

    Clients in a loop come first: one, and sixteen, which tell what a side can answer. Then requests come at Poisson
    times, at multiples of what the best peer can answer. Latebind and Triton are sent tokens, the others texts, which
    takes them a tenth of a millisecond. All have float32 and two threads in all; all take turns.

    Example: python -m research lengths-live --weights all-MiniLM-L6-v2 --texts requests.tsv --peers out/peers
    """

    def found(tell: Progress) -> Found:
        with TemporaryDirectory() as folder:
            place = models or Path(folder) / "models"
            if not (place / MODEL).exists():
                tell("building", 0.0)
                build(weights, place, longest=longest, max_batch=max_batch, backends=backend or ["openvino"])
            given = sides(place, peers, Path(folder), weights.absolute(), serve or (), max_batch)
            if unknown := [one for one in side or () if one not in given]:
                raise ConfigError(f"there is no side {unknown[0]!r}: take some of {', '.join(given)}")
            tables = compare(
                {name: one for name, one in given.items() if not side or name in side},
                ModelDirectory.open(find_models(place, [MODEL])[0]),
                Texts.read(texts, weights, most=most, longest=longest),
                loads=load or [0.5, 0.8, 1.0, 1.4],
                deadline=deadline,
                rounds=rounds,
                seconds=seconds,
                seed=seed,
                tell=tell,
            )
        return Found(tables)

    evaluate({"live": found}, output)
