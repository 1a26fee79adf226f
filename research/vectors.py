"""`python -m research vectors`: whether embeddings may leave early, and what fewer bits do to them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from typer import Option

from latebind.bench.rounds import Progress
from latebind.cli.bench.options import Model, Repository
from latebind.cli.console import reporting
from latebind.cli.options import Seed
from latebind.cli.sources import samples_for
from latebind.domain.costs import Grid
from latebind.learned.activations import empty_activations, record_activations
from latebind.learned.compiled import compile_lookup
from latebind.learned.compose import Composition, Costs, Seen, Variant, hits_alone, over_lengths
from latebind.learned.explore import passes_over, some_rows
from latebind.learned.networks import Predictor, Selector, make_predictor
from latebind.learned.promise import Promise
from latebind.learned.reading import readings
from latebind.learned.samples import Samples, split_worlds
from latebind.learned.vectors import MOST_TEXTS, NEAREST, check_vectors, cosines_of, recall, vectors_of
from latebind.program.backends import BACKENDS, exact_backends
from latebind.program.load import load_program
from latebind.program.measure import profile_stages
from latebind.program.program import Program
from latebind.repository.directory import ModelDirectory
from latebind.repository.listing import find_models
from research.evaluation import Floats, Found, Output, evaluate

COSINES, SHARE = (0.95, 0.98, 0.99), 0.97
KIND = "fc(1024)"
BATCH, RATE, DECAY = 128, 2e-3, 1e-2
JUDGE_ROWS, JUDGE_HIDDEN, JUDGE_STEPS = 0.15, 128, 1_500  # what tells how far a prediction may be off
LEAST_ERROR = 1e-5
QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the lengths on which stages are measured


@dataclass(frozen=True, slots=True)
class Exit:
    """A predictor behind a stage: its seconds at batch 1, and the cosine and score `(N,)` of each held-out row."""

    stage: int
    seconds: float
    cosines: np.ndarray[tuple[int], np.dtype[np.float64]]
    scores: np.ndarray[tuple[int], np.dtype[np.float64]]


def vectors(
    repository: Repository,
    *,
    model: Model,
    data: Annotated[str, Option(help="Texts like those to come, some thousands: a table, or an .npz file.")],
    cosine: Annotated[Floats, Option(help="A vector counts within this cosine; may be repeated.")] = None,
    lessons: Annotated[int, Option(min=1, help="How many rows each predictor is trained on, repetitions counted.")] = (
        300_000
    ),
    seed: Seed = 0,
    output: Output,
) -> None:
    """Train predictors of an embedding behind each stage, and compute it in fewer bits: how near it stays, how fast.

    Parts: exits (half of the rows train predictors, the others show which share of them comes near the full network's
    vectors, and what leaving early would gain where 97 % of all answers must), bits (each backend of lower precision:
    cosines, recall of nearest neighbours, time).

    Example: `python -m research vectors models --model all-MiniLM-L6-v2 --data texts.csv`
    """
    with reporting():
        directory = ModelDirectory.open(*find_models(repository, [model]))
        program = load_program(directory, backend=exact_backends()[-1])
        check_vectors(program.spec)
        fit, held_out = (
            part.ordered(program.spec.inputs, program.spec.dims)
            for part in samples_for(directory, data, None, seed=seed)
        )
        limits = tuple(cosine or COSINES)

        def exits(on_progress: Progress) -> Found:
            found, grids = (
                explored(program, fit, held_out, lessons=lessons, seed=seed, on_progress=on_progress),
                measured(program, fit),
            )
            return Found(
                {
                    "predictors, each alone": [_alone(one, limits) for one in found],
                    f"leaving early, {SHARE:.0%} of all answers within": gains(
                        found, grids, held_out, limits, seed=seed
                    ),
                }
            )

        def bits(on_progress: Progress) -> Found:
            del on_progress
            return Found({"fewer bits": in_fewer_bits(directory, program, held_out, limits)})

        told = f"{len(fit)} to train, {len(held_out)} held out; {program.backend}, batch 1, one thread"
        evaluate({"exits": exits, "bits": bits}, output, {"rows": told})


def explored(
    program: Program, fit: Samples, held_out: Samples, *, lessons: int, seed: int, on_progress: Progress
) -> list[Exit]:
    """Return a trained predictor behind each stage whose activation is of numbers."""
    reads, found = readings(program), list[Exit]()
    places = [stage for stage, one in enumerate(program.graphs[1:]) if one.inputs[0].dtype == "float32"]
    recorded = []
    for samples in (fit, held_out):
        rooms = {stage: empty_activations(len(samples), reads[stage].shape) for stage in places}
        recorded.append((rooms, record_activations(program, samples, torch.arange(len(samples)), rooms)))
    (taught, wanted), (asked, base) = recorded
    learn = len(fit) - round(JUDGE_ROWS * len(fit))
    for place, stage in enumerate(places):
        on_progress(f"training behind stage {stage}", place / len(places))
        torch.manual_seed(seed)
        network = make_predictor(reads[stage].shape, base.shape[1], KIND)
        rows = taught[stage].float()
        _teach(network, rows[:learn], wanted[:learn], passes=passes_over(learn, lessons))
        judge = _judge(network, rows[learn:], wanted[learn:])
        with torch.no_grad():
            scores = -judge(_seen(network, asked[stage].float()))[:, 0]
            said = network(asked[stage].float())
        compiled = compile_lookup(network, Selector(base.shape[1]), rows[:BATCH], program)
        found.append(Exit(stage, compiled.seconds, cosines_of(said, base), scores.double().numpy()))
    return found


def _teach(network: nn.Module, rows: Tensor, wanted: Tensor, *, passes: int) -> None:
    """Teach a predictor to point where the vectors `(N, D)` do."""
    optimizer, step = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=DECAY), 0
    steps = passes * max(1, len(rows) // BATCH)
    network.train()
    for _ in range(passes):
        for some in torch.split(torch.randperm(len(rows)), BATCH)[: max(1, len(rows) // BATCH)]:
            for group in optimizer.param_groups:
                group["lr"] = RATE * min(1.0, 1.3 * (1.0 - step / steps), (step + 1) / BATCH)
            loss = (1.0 - functional.cosine_similarity(network(rows[some]), wanted[some])).mean()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            step += 1
    network.eval()


def _seen(network: Predictor, rows: Tensor) -> Tensor:
    """Return what tells how far a prediction may be off: what was read, features, and the vector before its length."""
    features = network.features(rows)
    return torch.cat([rows, features, network.answer(features)], 1)


def _judge(network: Predictor, rows: Tensor, wanted: Tensor) -> nn.Module:
    """Return a network that was taught the logarithm of the error, on rows that the predictor has not seen."""
    with torch.no_grad():
        seen = _seen(network, rows)
        error = torch.from_numpy(1.0 - cosines_of(network(rows), wanted)).float().clamp(min=LEAST_ERROR).log()
    width = seen.shape[1]
    judge = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, JUDGE_HIDDEN), nn.GELU(), nn.Linear(JUDGE_HIDDEN, 1))
    optimizer = torch.optim.AdamW(judge.parameters(), lr=RATE / 2, weight_decay=DECAY)
    for _ in range(JUDGE_STEPS):
        some = torch.randint(len(seen), (BATCH,))
        loss = functional.smooth_l1_loss(judge(seen[some])[:, 0], error[some])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return judge.eval()


def _alone(one: Exit, limits: Sequence[float]) -> dict[str, object]:
    """Return a row: how near a predictor comes, and how many could leave there if 3 in 100 answers may be wrong."""
    row: dict[str, object] = {"behind stage": one.stage, "us": round(one.seconds * 1e6)}
    row["mean cosine"] = f"{one.cosines.mean():.4f}"
    for limit in limits:
        right = one.cosines >= limit
        row[f"within {limit:g}"] = f"{right.mean():.4f}"
        row[f"leave at {limit:g}"] = f"{hits_alone(one.scores, right, 1.0 - SHARE)[0]:.4f}"
    return row


def measured(program: Program, samples: Samples) -> tuple[Grid, ...]:
    """Return the seconds of each stage at batch 1, by length where rows differ in it."""
    rows, spec = some_rows(samples, QUANTILES), program.spec
    if samples.lengths is None:
        return profile_stages(program.stages, rows[0], (1,))
    sizes = [
        spec.dims_of({one.name: part.shape[1:] for one, part in zip(spec.inputs, row, strict=True)}) for row in rows
    ]
    return profile_stages(program.stages, rows[-1], (1,), specs=spec.inputs, dims=spec.dims, over=sizes)


def gains(
    found: Sequence[Exit], grids: Sequence[Grid], held_out: Samples, limits: Sequence[float], *, seed: int
) -> list[dict[str, object]]:
    """Return by cosine what composition and calibration make of all exits, as for classes."""
    lengths = None if held_out.lengths is None else held_out.lengths.numpy()
    stages = [grid.at(1) for grid in grids] if lengths is None else over_lengths(grids, lengths)
    costs = Costs.of(
        stages,
        [(one.stage, one.seconds, 0.0) for one in found],
        aside=False,
        grids=() if lengths is None else grids,
    )
    variants = tuple(Variant(one.stage, KIND, 0.0, 1.0, one.seconds, 0) for one in found)
    composition = Composition(variants, costs, tuple(stages), Promise(SHARE))
    choose, verify = split_worlds(held_out, seed=seed)
    rows = []
    for limit in limits:
        scores, right = (np.stack(each) for each in zip(*((o.scores, o.cosines >= limit) for o in found), strict=True))
        seen = Seen(scores, right, lengths=lengths)
        best = composition.choose(seen.take(np.concatenate(choose)), [seen.take(some) for some in verify])
        seconds = costs.whole if best is None else best.seconds
        rows.append(
            {
                "cosine": limit,
                "exits used": 0 if best is None else int(np.isfinite(best.thresholds).sum()),
                "at least": "1" if best is None else f"{best.lower:.4f}",
                "ms": f"{seconds * 1e3:.3f}",
                "times less": f"{costs.whole / seconds:.3f}",
            }
        )
    return rows


def in_fewer_bits(
    directory: ModelDirectory, program: Program, held_out: Samples, limits: Sequence[float]
) -> list[dict[str, object]]:
    """Return a row for the network in full precision, and one for each backend of lower precision that runs here."""
    wanted, rows = vectors_of(program, held_out), list[dict[str, object]]()
    for name in (program.backend, *(each for each in BACKENDS if not BACKENDS[each].exact)):
        if BACKENDS[name].unavailable() is not None:
            continue
        coarse = load_program(directory, backend=name)
        said = vectors_of(coarse, held_out)
        cosines = cosines_of(said, wanted)
        grids = measured(coarse, held_out)
        lengths = held_out.lengths
        stages = [grid.at(1) for grid in grids] if lengths is None else over_lengths(grids, lengths.numpy())
        row: dict[str, object] = {"backend": name, "ms": f"{sum(stages) * 1e3:.3f}", "mean": f"{cosines.mean():.5f}"}
        row |= {f"within {limit:g}": f"{(cosines >= limit).mean():.4f}" for limit in limits}
        rows.append(row | {f"recall@{NEAREST}": f"{recall(said[:MOST_TEXTS], wanted[:MOST_TEXTS]):.4f}"})
    return rows
