"""`python -m research lengths-live`: texts of their own lengths, beside other servers and other policies."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

from typer import Option

from latebind.bench.rounds import Progress
from latebind.cli.bench.options import ServeWords
from latebind.cli.console import reporting
from latebind.cli.options import Seed
from latebind.domain.errors import ConfigError
from latebind.repository.directory import ModelDirectory
from latebind.repository.listing import find_models
from research.evaluation import Found, Load, Output, Rounds, Seconds, Words, evaluate
from research.lengths.peers import MODEL, Texts, build, compare, sides
from research.lengths.plugged import FEW, compare_policies
from research.lengths.simulated import long_tail


def lengths_live(
    weights: Annotated[Path, Option(help="A sentence-transformers folder: an encoder with tokenizer.json.")],
    texts: Annotated[Path, Option(help="A text in each line, behind its last tab; may be packed by gzip.")],
    *,
    peers: Annotated[Path | None, Option(help="Where peers' environments are, or are installed.")] = None,
    models: Annotated[Path | None, Option(help="Where the model is, or is built. Default: built anew.")] = None,
    strung: Annotated[bool, Option("--long-tail", help="String the texts together to 5 to 400 tokens.")] = False,
    most: Annotated[int, Option(min=1, help="Take the first texts of the file.")] = 2000,
    longest: Annotated[int, Option(min=1, help="Texts are cut to so many tokens.")] = 256,
    max_batch: Annotated[int, Option(min=1, help="The largest batch of every side.")] = 16,
    backend: Words = None,
    side: Words = None,
    policy: Annotated[
        Words, Option(help=f"Policies of the second part; may be repeated. Default: {', '.join(FEW)}.")
    ] = None,
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

    The part `policies` has the baselines of `lengths` in a server of one worker in place of the peers, at multiples of
    what that answers without padding by the profile of the model.

    Example: python -m research lengths-live --weights all-MiniLM-L6-v2 --texts requests.tsv --peers out/peers
    """
    loads = load or [0.5, 0.8, 1.0, 1.4]

    @contextmanager
    def prepared(on_progress: Progress) -> Iterator[tuple[Path, Path, ModelDirectory, Texts]]:
        with TemporaryDirectory() as folder:
            place = models or Path(folder) / "models"
            if not (place / MODEL).exists():
                on_progress("building", 0.0)
                build(weights, place, longest=longest, max_batch=max_batch, backends=backend or ["openvino"])
            lengths = long_tail() if strung else ()
            given = Texts.read(texts, weights, most=most, longest=longest, lengths=lengths)
            yield Path(folder), place, ModelDirectory.open(find_models(place, [MODEL])[0]), given

    def beside(on_progress: Progress) -> Found:
        if peers is None:
            raise ConfigError("the part `peers` needs --peers, where their environments are")
        with prepared(on_progress) as (folder, place, directory, given):
            every = sides(place, peers, folder, weights.absolute(), serve or (), max_batch, longest)
            if unknown := [one for one in side or () if one not in every]:
                raise ConfigError(f"there is no side {unknown[0]!r}: take some of {', '.join(every)}")
            return compare(
                {name: one for name, one in every.items() if not side or name in side},
                directory,
                given,
                loads=loads,
                deadline=deadline,
                rounds=rounds,
                seconds=seconds,
                seed=seed,
                on_progress=on_progress,
            )

    def policies(on_progress: Progress) -> Found:
        with prepared(on_progress) as (folder, place, directory, given):
            return compare_policies(
                policy or (),
                place,
                directory,
                given,
                folder,
                loads=loads,
                rounds=rounds,
                seconds=seconds,
                seed=seed,
                on_progress=on_progress,
            )

    with reporting():
        evaluate({"peers": beside, "policies": policies}, output)
