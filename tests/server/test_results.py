"""What clients get of outputs: the best classes of each row, in JSON and binary, and as tritonclient reads them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from latebind.server.gateway import Array
from latebind.server.service import best_classes


@given(arrays.arrays(np.int8, st.integers(1, 40), elements=st.integers(-3, 3)), st.integers(1, 45))
def test_the_best_are_those_of_a_whole_sort_in_which_equals_keep_their_order(row: Array, count: int) -> None:
    whole = sorted(range(len(row)), key=lambda index: (-int(row[index]), index))[:count]
    assert best_classes(row.reshape(1, -1), count) == [[f"{row[index]}:{index}" for index in whole]]
