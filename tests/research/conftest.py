"""What tests of several evaluations share."""

from pathlib import Path

import numpy as np
import pytest

from latebind.bench.client import Array
from latebind.bench.subject import Subject
from latebind.program.metadata import read_spec_and_costs
from latebind.repository.directory import ModelDirectory
from latebind.repository.listing import find_models
from research.gati.models import CachedModel, load_model
from tests.sequences import rows_of, some_sentences
from tests.texts import BuiltTexts


@pytest.fixture(scope="module")
def texts_model(built_texts: BuiltTexts) -> CachedModel:
    """The model of texts with learned caches, loaded for comparisons."""
    return load_model(built_texts.directory.path.parent.parent, built_texts.directory.path.parent.name)


def quiet(text: str, share: float) -> None:
    """Take in what is told meanwhile."""
    del text, share


def subject_of(models: Path, model: str) -> Subject:
    """Return a model of `models` with 16 rows for it: images, or sentences."""
    (path,) = find_models(models, [model])
    spec, _ = read_spec_and_costs(ModelDirectory.open(path))
    rows: Array = np.random.default_rng(0).standard_normal((16, 3, 8, 8)).astype(np.float32)
    if spec.kinds:
        rows = rows_of(some_sentences(16)).numpy()
    return Subject(models, model, {spec.inputs[0].name: rows})
