"""What the machine does, read from files as Linux writes them."""

from pathlib import Path

import pytest

from latebind.server.metrics import Gpu, Machine, Processor

MEMORY = "MemTotal:  1000 kB\nMemFree: 100 kB\nMemAvailable:  400 kB\nHugePages_Total: 0\n"


def written(proc: Path, *times: int) -> None:
    (proc / "stat").write_text(f"cpu  {' '.join(map(str, times))}\ncpu0 1 2 3 4\n")
    (proc / "meminfo").write_text(MEMORY)


def test_cores_are_busy_for_the_share_that_they_did_not_rest_since_the_last_time(tmp_path: Path) -> None:
    processor = Processor(tmp_path)
    written(tmp_path, 100, 0, 100, 700, 100, 0, 0, 0, 55, 0)
    processor.figures()
    written(tmp_path, 130, 0, 100, 750, 120, 0, 0, 0, 99, 0)
    assert processor.figures()["utilization"] == pytest.approx(0.3)
    assert processor.figures()["utilization"] == 0.0


def test_memory_is_used_that_is_not_available(tmp_path: Path) -> None:
    written(tmp_path, 1, 1, 1, 1, 1, 1, 1, 1)
    figures = Processor(tmp_path).figures()
    assert (figures["memory_total_bytes"], figures["memory_used_bytes"]) == (1_024_000, 614_400)


def test_a_gpu_that_is_not_there_is_left_out() -> None:
    with pytest.raises(OSError, match=r"NVML|nvidia"):
        Gpu("GPU-none")
    assert set(Machine().figures("GPU-none")) == {"cpu"}
