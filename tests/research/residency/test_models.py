"""The models are those that can be downloaded, cut where their blocks end."""

from random import Random

import pytest

from research.mcache.models import FAMILIES, FLOAT, UNEVEN, Family, Storage, slowest_first

PUBLISHED = {
    "ResNet-50": 25_557_032,
    "ResNet-152": 60_192_808,
    "SSD300": 35_641_826,
    "BERT-base": 109_482_240,
    "BERT-large": 335_141_888,
    "RoBERTa-large": 355_359_744,
    "XLNet-large": 360_268_800,
    "GPT-2-medium": 354_823_168,
    "T5-large": 737_668_096,
    "T5-large encoder": 334_939_648,
}


@pytest.mark.parametrize("family", Family)
def test_networks_have_as_many_parameters_as_their_checkpoints(family: Family) -> None:
    found = {name: sum(stages) for name, stages in FAMILIES[family].items()}
    assert found == {name: PUBLISHED[name] for name in found}
    assert len(found) == 7


def test_of_family_b_every_model_fits_into_a_fifth_of_the_memory() -> None:
    sizes = [footprint.size for footprint in Storage().footprints(Family.B).values()]
    assert max(sizes) <= sum(sizes) / 5


def test_a_load_takes_the_fixed_part_and_the_bytes_over_the_bandwidth() -> None:
    found = Storage(fixed=0.5, bandwidth=1e9).footprints(Family.A)["BERT-base"]
    assert found.size == FLOAT * PUBLISHED["BERT-base"]
    assert found.penalty == pytest.approx(0.5 + found.size / 1e9)


def test_uneven_penalties_change_who_is_slowest() -> None:
    even, uneven = (slowest_first(storage.footprints(Family.A)) for storage in (Storage(), Storage(factors=UNEVEN)))
    assert even[0] == "T5-large"
    assert even[-1] == "ResNet-50"
    assert even != uneven


def test_many_models_are_drawn_by_the_seed() -> None:
    first, again, other = (Storage().many(30, Random(seed)) for seed in (1, 1, 2))
    assert first == again != other
    assert all(footprint.stages == 25 for footprint in first.values())
