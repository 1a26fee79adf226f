"""The accelerator of LazyBatching's table I: what its networks take, and how that grows with the batch."""

from math import inf

import pytest

from latebind.batching.costs import Estimate
from research.hardware.networks import NETWORKS, WORDS_IN, WORDS_OUT
from research.hardware.npu import Product, SystolicArray

TABLE_2 = {"resnet": 1.1e-3, "gnmt": 7.2e-3, "transformer": 2.4e-3}


def seconds(name: str, batch: int) -> float:
    served = NETWORKS[name]().served(output_steps=(WORDS_OUT,))
    return Estimate(served.spec, served.costs).whole(batch, WORDS_IN if served.spec.kinds else 1)


@pytest.mark.parametrize("name", TABLE_2)
def test_one_input_takes_what_table_2_says(name: str) -> None:
    assert seconds(name, 1) == pytest.approx(TABLE_2[name], rel=0.02)


@pytest.mark.parametrize("name", NETWORKS)
def test_larger_batches_take_longer_and_an_input_less(name: str) -> None:
    found = [seconds(name, batch) for batch in (1, 4, 16, 64)]
    assert found == sorted(found)
    assert found[-1] < 64 * found[0]


# Rows, width and depth of a product, and "Total Cycles" of SCALE-Sim 3.0.0 (Samajdar et al. 2020) on an array of 128 x
# 128, weights stationary, memory as fast as needed.
SCALE_SIM = [
    ((1, 1024, 1024), 24_511),
    ((16, 1024, 1024), 25_471),
    ((64, 1024, 1024), 28_543),
    ((196, 256, 1024), 9_247),
    ((784, 512, 128), 4_663),
    ((3136, 64, 576), 17_589),
    ((22, 1536, 512), 19_391),
    ((196, 256, 2304), 20_807),
]


@pytest.mark.parametrize(("shape", "cycles"), SCALE_SIM)
def test_without_double_buffering_it_counts_the_cycles_of_scale_sim(shape: tuple[int, int, int], cycles: int) -> None:
    rows, width, depth = shape
    array = SystolicArray(hertz=1.0, double_buffered=False, fill=128, latency=0, bytes_per_second=inf)
    assert array.seconds(Product(depth, width, rows), 1) == cycles + 1  # counted from 0 there
