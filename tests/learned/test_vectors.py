"""Embeddings in fewer bits: near to full precision on held-out rows and promised so, or computed in full precision."""

import json
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from typer.testing import CliRunner

from latebind.cli.main import app
from latebind.domain.errors import ConfigError, RepositoryError
from latebind.domain.sizes import Dim
from latebind.folders.build import build_near, data_of, read_folder
from latebind.hosting import build_folder_once
from latebind.learned.metadata import NEARNESS, ROUNDING, Nearness, read_nearness
from latebind.learned.promise import Fidelity, Promise
from latebind.learned.samples import Samples
from latebind.learned.vectors import (
    certify,
    cosines_of,
    recall,
    rows_of,
    vectors_of,
    vectors_together,
)
from latebind.program.backends import exact_backends
from latebind.program.build import build_program
from latebind.program.load import load_program
from latebind.program.openvino import multiplies_bytes
from latebind.repository.directory import ModelDirectory, json_bytes
from tests.folders.making import CASES, add_modules, save, texts

INT8 = "openvino-int8"
needs_int8 = pytest.mark.skipif(
    "openvino" not in exact_backends() or not multiplies_bytes(), reason="OpenVINO does not multiply bytes here"
)
ROWS = torch.randn(400, 64, generator=torch.Generator().manual_seed(0))
ASKED, PROMISE = Fidelity(0.97, 0.99), Promise(0.97)


class Encoder(nn.Module):
    """Vectors of length 1 out of two wide layers, which eight bits do not answer exactly."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256))

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, 64)` to `(B, 256)`."""
        return functional.normalize(self.layers(x), dim=-1)


def built(folder: Path, backend: str, module: nn.Module | None = None) -> ModelDirectory:
    return build_program(
        (module or Encoder()).eval(),
        {"x": ROWS[:4]},
        directory=folder / "m" / "1",
        name="m",
        backends=[backend],
        tolerance=None if backend == "eager" else 0.5,
        max_batch=4,
    ).directory


def test_cosines_and_neighbors_are_those_of_a_count_by_hand() -> None:
    vectors = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
    turned = vectors @ torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    np.testing.assert_allclose(cosines_of(vectors, 3 * vectors), 1.0)
    np.testing.assert_allclose(cosines_of(vectors, turned), [0.0, 0.18 / 0.82, 0.0, 0.18 / 0.82])
    assert recall(vectors, vectors, 1) == 1.0
    swapped = vectors[[0, 2, 1, 3]]  # the nearest one of each is another now
    assert recall(vectors, swapped, 1) == 0.0
    assert recall(vectors, swapped, 3) == 1.0
    assert recall(vectors[:1], swapped[:1]) == 1.0


def test_a_network_in_full_precision_needs_no_showing(tmp_path: Path) -> None:
    directory = built(tmp_path, "eager")
    after, found = certify(directory, Samples((ROWS,)), ASKED, PROMISE)
    assert found is None
    assert after.files == directory.files
    assert read_nearness(after) is None


@needs_int8
def test_what_held_out_rows_show_of_eight_bits_is_written_and_counted_rightly(tmp_path: Path) -> None:
    directory = built(tmp_path, INT8)
    after, found = certify(directory, Samples({"x": ROWS}), ASKED, PROMISE)
    assert found is not None
    own, full = (vectors_of(load_program(directory, backend=name), Samples((ROWS,))) for name in (INT8, "eager"))
    cosines = cosines_of(own, full)
    assert 1e-6 < 1.0 - cosines.mean() < 0.01
    assert found.within == pytest.approx((cosines >= 0.99).mean())
    assert found.mean == pytest.approx(cosines.mean(), abs=1e-6)
    assert found.lower == PROMISE.lower_bound(int((cosines < 0.99).sum()), len(ROWS)) >= 0.97
    assert found.recall == pytest.approx(recall(own, full), abs=0.01)
    assert read_nearness(ModelDirectory.open(after.path)) == found
    assert "at least" in dict(rows_of(found))["fidelity"]


class Leaky(nn.Module):
    """Vectors of texts; what stands behind a text's end counts for a little, so beside longer ones it has another."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(50, 64)
        self.words.weight.data[:, 0] *= 30  # beside such a number, as encoders have them, others are rounded coarsely
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Map two `(B, L) int64` to `(B, 64)`."""
        shares = (0.001 + mask)[:, :, None]
        return functional.normalize((self.layers(self.words(ids)) * shares).sum(1), dim=-1)


@needs_int8
def test_each_vector_counts_as_it_is_alone_or_beside_longer_texts_whichever_is_worse(tmp_path: Path) -> None:
    random = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 25, (400,), generator=random).tolist()
    rows = [torch.randint(1, 50, (length,), generator=random) for length in lengths]
    directory = build_program(
        Leaky().eval(),
        {"ids": torch.stack([rows[0][:1]] * 4), "mask": torch.ones(4, 1, dtype=torch.int64)},
        directory=tmp_path / "m" / "1",
        name="m",
        backends=[INT8],
        tolerance=0.5,
        max_batch=4,
        dims=[Dim("L", 1, 24)],
        sizes={"ids": ["L"], "mask": ["L"]},
    ).directory
    program, full = load_program(directory), load_program(directory, backend=exact_backends()[-1])
    assert not program.spec.one_size
    samples = Samples({"ids": rows, "mask": [torch.ones_like(row) for row in rows]})
    known = samples.ordered(program.spec.inputs, program.spec.dims)
    wanted = vectors_of(full, known)
    alone, together = (each(program, known) for each in (vectors_of, vectors_together))
    by_hand = list[Tensor]()
    for first in range(0, 400, 4):
        ids = nn.utils.rnn.pad_sequence(rows[first : first + 4], batch_first=True)
        by_hand.append(program.run(ids, (ids > 0).long())[0].clone())
    torch.testing.assert_close(together, torch.cat(by_hand), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(alone[:1], program.run(rows[0][None], torch.ones_like(rows[0])[None])[0])
    each = [cosines_of(vectors, wanted) for vectors in (alone, together)]
    worse = np.minimum(*each)
    assert all((one > worse + 1e-7).mean() > 0.01 for one in each)  # some texts are worse alone, and some together
    _, found = certify(directory, samples, Fidelity(0.97, 0.99), PROMISE)
    assert found is not None
    assert found.mean == pytest.approx(worse.mean(), abs=1e-12)
    assert all(worse.mean() < one.mean() - 1e-7 for one in each)


@needs_int8
def test_what_is_not_shown_is_not_written(tmp_path: Path) -> None:
    directory = built(tmp_path, INT8)
    after, found = certify(directory, Samples((ROWS,)), Fidelity(0.97, 0.9999999), PROMISE)
    assert found is not None
    assert not found.kept
    assert NEARNESS not in after.files


@needs_int8
def test_bad_rows_and_models_without_vectors_are_refused(tmp_path: Path) -> None:
    directory = built(tmp_path, INT8)
    with pytest.raises(ConfigError, match="declare it"):
        certify(directory, Samples((ROWS,)), Fidelity(0.97), PROMISE)
    with pytest.raises(ConfigError, match="NaN"):
        certify(directory, Samples((torch.full((400, 64), torch.nan),)), ASKED, PROMISE)
    with pytest.raises(ConfigError, match="give more samples"):
        certify(directory, Samples((ROWS[:20],)), ASKED, PROMISE)
    with pytest.raises(ConfigError, match="no samples"):
        certify(directory, Samples((ROWS[:0],)), ASKED, PROMISE)
    number = built(tmp_path / "one", "eager", nn.Sequential(nn.Linear(64, 1)))
    with pytest.raises(ConfigError, match="a cosine is defined for vectors"):
        certify(number, Samples((ROWS,)), ASKED, PROMISE)


def test_figures_that_nobody_can_have_measured_are_refused(tmp_path: Path) -> None:
    directory = built(tmp_path, "eager")
    found = Nearness(0.99, 0.97, 1.0, 0.99, 0.95, 2000, 400, 0.999, 0.99, 0.98, 1e-3, 2e-3, ROUNDING)
    assert read_nearness(directory.write_files({NEARNESS: json_bytes(found)})) == found
    for wrong in (replace(found, lower=1.5), replace(found, samples=0)):
        with pytest.raises(RepositoryError, match="implausible figures"):
            read_nearness(directory.write_files({NEARNESS: json_bytes(wrong)}))


def test_what_was_shown_of_weights_rounded_in_another_way_counts_no_more(tmp_path: Path) -> None:
    directory = built(tmp_path, "eager")
    before = '{"cosine":0.99,"target":0.97,"within":1.0,"lower":0.99,"confidence":0.95,"answers":2000,"samples":400,'
    before += '"mean":0.999,"least":0.99,"recall":0.98,"seconds":1e-3,"seconds_full":2e-3}'
    with pytest.raises(RepositoryError, match=r"rounded in another way .* `latebind calibrate`"):
        read_nearness(directory.write_files({NEARNESS: before.encode()}))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("vectors")
    (place / "texts.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts(600)))
    case, path = CASES["bert_mean"], place / "embeds"
    reader = case.reader(**case.reads)
    wide = {"hidden_size": 128, "intermediate_size": 256, "vocab_size": len(reader)}  # eight bits are of 128 at a time
    save(case.model, case.config, {**case.settings, **wide}, path)
    reader.save_pretrained(path)
    add_modules(path, "mean")
    return path


@pytest.mark.slow
@needs_int8
def test_a_folder_is_built_in_eight_bits_only_where_its_vectors_stay_near(folder: Path, tmp_path: Path) -> None:
    read = read_folder(str(folder))
    data = data_of(read, folder.parent / "texts.jsonl")
    how = {"directory": tmp_path / "m" / "1", "name": "m", "max_batch": 2, "backends": [INT8, "eager"]}
    near = Fidelity(0.97, 0.9)
    report, found, refused = build_near(read, data=data, fidelity=near, promise=PROMISE, **how)
    if report.backend == INT8:  # where it is quicker than eager
        assert found is not None
        assert found.kept
        assert read_nearness(report.directory) == found
        assert not refused
    report, found, refused = build_near(read, data=data, fidelity=Fidelity(0.97, 1.0 - 1e-9), promise=PROMISE, **how)
    assert (report.backend, found) == ("eager", None)
    assert read_nearness(report.directory) is None


def words_of(told: str) -> str:
    """Return what a command printed, without the lines of its tables."""
    return " ".join(told.replace("│", " ").split())


@pytest.mark.slow
def test_an_embedding_without_a_declared_distance_is_built_in_full_precision_and_told_how_to_ask(
    folder: Path, tmp_path: Path
) -> None:
    data = ["--data", str(folder.parent / "texts.jsonl")]
    quick = ["--backend", "eager", "--max-batch", "2"]
    done = CliRunner().invoke(app, ["build", str(folder), "--out", str(tmp_path / "models"), *quick, *data])
    assert done.exit_code == 0, done.output
    assert "declare it (--fidelity cosine:0.99@0.97" in words_of(done.output)
    again = ["calibrate", str(tmp_path / "models"), "--model", "embeds", *data]
    done = CliRunner().invoke(app, again)
    assert done.exit_code == 2
    assert "declare it" in words_of(done.output)
    done = CliRunner().invoke(app, [*again, "--fidelity", "cosine:0.99@0.97"])
    assert done.exit_code == 0, done.output
    assert "every vector is the network's own" in words_of(done.output)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        build_folder_once(
            str(folder), tmp_path / "served", data=folder.parent / "texts.jsonl", max_batch=2, backends=["eager"]
        )
    assert any("declare it" in str(one.message) for one in told)
