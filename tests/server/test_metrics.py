"""Metrics and statistics as Prometheus and clients of the protocol read them."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from prometheus_client.parser import text_string_to_metric_families as parse

from latebind.domain.metrics import Histogram
from latebind.domain.model import ModelSpec, TensorSpec
from latebind.domain.sizes import Dim
from latebind.server.description import metadata, model_config, statistics
from latebind.server.gateway import (
    AdaptationFigures,
    Array,
    Distribution,
    MemoryMetrics,
    ModelMetrics,
    Snapshot,
    StepMetrics,
)
from latebind.server.limits import Limits
from latebind.server.metrics import FAMILIES, Gpu, Machine, prometheus_text
from latebind.server.results import best_classes
from tests.server.arithmetic import SPECS, SPECS_BY_NAME, one_to_one
from tests.server.conftest import opened, scalar

ROOT = Path(__file__).parent.parent.parent
FIRST: Distribution = {"le": [0.01], "counts": [1, 0], "sum": 0.005, "count": 1}
SNAPSHOT: Snapshot = {
    "models": {
        "m": {
            "requests": {"answered": 10, "refused_full": 1, "refused_late": 2, "refused_loading": 7}
            | {"expired": 3, "cancelled": 4, "failed": 5, "not_loaded": 6},
            "left_at": [7, 0, 3],
            "batches": {"16": 1, "2": 4},
            "promised": {"0.99": 7, "1": 2},
            "stage_runs": 9,
            "row_stages": 20,
            "stage_failures": 3,
            "runs": {"16": 1, "2": 8},
            "run_seconds": {"16": 0.25, "2": 0.5},
            "latency_seconds": {"le": [0.01, 0.1], "counts": [6, 3, 1], "sum": 0.5, "count": 10},
            "queue_seconds": {"le": [0.01, 0.1], "counts": [10, 0, 0], "sum": 0.025, "count": 10},
            "slack_seconds": {"le": [0.0, 0.1], "counts": [2, 13, 16], "sum": 6.5, "count": 31},
            "failed_seconds": 1.5,
            "last": 4.0,
            "pending": 2,
        }
    },
    "batching": {"m": {"merges": 3, "preemptions": 4, "refills": 5}},
    "restarts": 2,
}
LOADED = MemoryMetrics(
    resident_bytes=40, bytes=70, loads=3, evictions=2, failures=1, read_bytes=100, cached_bytes=75, load_seconds=FIRST
)
STEP: StepMetrics = {
    "answered": {"small": 3, "large": 1},
    "replanned": 4,
    "budget_seconds": 0.2,
    "spent_seconds": {"le": [0.01, 0.1], "counts": [3, 1, 0], "sum": 0.06, "count": 4},
}
WITH_TOKENS: ModelMetrics = {**SNAPSHOT["models"]["m"], "tokens": 40, "first_token_seconds": FIRST}
WITH_LENGTHS: ModelMetrics = {**SNAPSHOT["models"]["m"], "lengths": 90, "run_lengths": 200, "padded_lengths": 250}
EVERYTHING: Snapshot = {
    **SNAPSHOT,
    "models": {"m": SNAPSHOT["models"]["m"], "s": WITH_TOKENS, "l": WITH_LENGTHS},
    "memory": {"budget_bytes": 60, "models": {"m": LOADED, "gone": LOADED}},
    "steps": {"m": {"cars": STEP}},
    "gpu": "GPU-1",
}
ADAPTED = AdaptationFigures(
    version="000003",
    sampled=500,
    retrained=4,
    refused=1,
    alarms=2,
    fidelity=0.98,
    lower=0.96,
    upper=0.99,
    levels=[
        {"promised": 0.97, "fidelity": 0.975, "lower": 0.95, "upper": 0.98, "alarms": 0, "used": True},
        {"promised": 0.95, "fidelity": 0.93, "lower": 0.91, "upper": 0.96, "alarms": 1, "used": False},
    ],
)
READING = Histogram()
READING.add(0.002)
TEXT = prometheus_text(
    EVERYTHING,
    versions={"m": "7", "s": "7", "l": "7"},
    replies={200: 9, 503: 1},
    adaptation={"m": ADAPTED, "gone": ADAPTED},
    machine={"cpu": {"utilization": 0.5}, "gpu": {"power_usage": 70.5, "energy_consumption": 9.0}},
    reading={"m": READING, "gone": READING},
)
VALUES: list[tuple[str, dict[str, str], float]] = [
    ("latebind_requests_total", {"outcome": "refused_late"}, 2),
    ("latebind_left_at_total", {"stage": "2"}, 3),
    ("latebind_batches_total", {"size": "16"}, 1),
    ("latebind_promised_total", {"fidelity": "0.99"}, 7),
    ("latebind_level_fidelity", {"promised": "0.97", "bound": "lower"}, 0.95),
    ("latebind_level_alarms_total", {"promised": "0.95"}, 1),
    ("latebind_level_used", {"promised": "0.97"}, 1),
    ("latebind_level_used", {"promised": "0.95"}, 0),
    ("latebind_stage_runs_total", {}, 9),
    ("latebind_row_stages_total", {}, 20),
    ("latebind_stage_failures_total", {}, 3),
    ("latebind_pending_requests", {}, 2),
    ("latebind_runs_total", {"size": "2"}, 8),
    ("latebind_run_seconds_total", {"size": "16"}, 0.25),
    ("latebind_merges_total", {}, 3),
    ("latebind_preemptions_total", {}, 4),
    ("latebind_refills_total", {}, 5),
    ("latebind_latency_seconds_bucket", {"le": "0.1"}, 9),
    ("latebind_queue_seconds_sum", {}, 0.025),
    ("latebind_reading_seconds_bucket", {"le": "0.0025"}, 1),
    ("latebind_reading_seconds_sum", {}, 0.002),
    ("latebind_admission_slack_seconds_bucket", {"le": "0.0"}, 2),
    ("latebind_admission_slack_seconds_sum", {}, 6.5),
    ("latebind_query_steps_total", {"step": "cars", "answered_by": "small"}, 3),
    ("latebind_query_step_budget_seconds_total", {"step": "cars"}, 0.2),
    ("latebind_query_replans_total", {"step": "cars"}, 4),
    ("latebind_query_step_seconds_bucket", {"step": "cars", "le": "0.1"}, 4),
    ("latebind_resident_bytes", {}, 40),
    ("latebind_model_bytes", {}, 70),
    ("latebind_evictions_total", {}, 2),
    ("latebind_load_failures_total", {}, 1),
    ("latebind_load_bytes_total", {"tier": "page-cache"}, 75),
    ("latebind_load_bytes_total", {"tier": "disk"}, 25),
    ("latebind_load_seconds_count", {}, 1),
    ("latebind_fidelity", {"bound": "lower"}, 0.96),
    ("latebind_fidelity", {"bound": ""}, 0.98),
    ("latebind_fidelity", {"bound": "upper"}, 0.99),
    ("latebind_fidelity_samples_total", {}, 500),
    ("latebind_fidelity_alarms_total", {}, 2),
    ("latebind_retrainings_total", {"outcome": "published"}, 3),
    ("latebind_retrainings_total", {"outcome": "nothing_shown"}, 1),
    ("latebind_learned_caches_info", {"number": "000003"}, 1),
    ("latebind_tokens_total", {"model": "s"}, 40),
    ("latebind_first_token_seconds_sum", {"model": "s"}, 0.005),
    ("latebind_lengths_total", {"model": "l"}, 90),
    ("latebind_run_lengths_total", {"model": "l"}, 200),
    ("latebind_padded_lengths_total", {"model": "l"}, 250),
    ("latebind_padding_ratio", {"model": "l"}, 1.25),
    ("nv_inference_first_response_histogram_ms_sum", {"model": "s"}, 5),
    ("nv_inference_first_response_histogram_ms_sum", {}, 500),
    ("nv_inference_first_response_histogram_ms_bucket", {"le": "100.0"}, 9),
    ("nv_inference_request_success", {}, 10),
    ("nv_inference_request_failure", {"reason": "REJECTED"}, 10),
    ("nv_inference_request_failure", {"reason": "OTHER"}, 9),
    ("nv_inference_exec_count", {}, 5),
    ("nv_inference_pending_request_count", {}, 2),
    ("nv_inference_queue_duration_us", {}, 25_000),
    ("nv_inference_compute_infer_duration_us", {}, 475_000),
    ("nv_inference_compute_input_duration_us", {}, 0),
]
OF_THE_SERVER: list[tuple[str, dict[str, str], float]] = [
    ("latebind_http_replies_total", {"status": "503"}, 1),
    ("latebind_engine_restarts_total", {}, 2),
    ("latebind_figures_age_seconds", {}, 0),
    ("latebind_memory_budget_bytes", {}, 60),
    ("nv_cpu_utilization", {}, 0.5),
    ("nv_gpu_power_usage", {"gpu_uuid": "GPU-1"}, 70.5),
    ("nv_energy_consumption", {"gpu_uuid": "GPU-1"}, 9.0),
]


def samples(text: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = parse(text.decode())
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def value(text: bytes, name: str, **labels: str) -> float:
    return samples(text)[name, tuple(sorted(labels.items()))]


def test_every_figure_is_told_under_its_name() -> None:
    for name, labels, right in VALUES:
        assert value(TEXT, name, **{"model": "m", "version": "7", **labels}) == right, name
    for name, labels, right in OF_THE_SERVER:
        assert value(TEXT, name, **labels) == right, name


def test_labels_come_from_models_that_are_served_and_figures_from_what_there_is() -> None:
    assert b"gone" not in TEXT
    text = prometheus_text(SNAPSHOT, versions={"m": "7"}, replies={})
    for name in (b"latebind_memory", b"latebind_tokens", b"latebind_query", b"latebind_fidelity", b"nv_gpu"):
        assert name not in text


def test_the_documentation_has_every_name_of_ours() -> None:
    written = re.findall(r"latebind_[a-z_]+", (ROOT / "docs" / "observability.md").read_text())
    ours = {name for name in FAMILIES if name.startswith("latebind_")}
    assert ours == {re.sub("_(total|bucket|count|info)$", "", name) for name in written}


def test_the_frontend_tells_its_metrics() -> None:
    with opened() as site:
        for _ in range(3):
            site.post("/v2/models/scalar/infer", {"inputs": [scalar(1.0)]})
        site.get("/nowhere")
        reply = site.get("/metrics")
        assert reply.headers["content-type"].startswith("text/plain")
        assert value(reply.body, "latebind_requests_total", model="scalar", version="1", outcome="answered") == 3
        assert value(reply.body, "latebind_http_replies_total", status="404") == 1
        assert 0.0 <= value(reply.body, "nv_cpu_utilization") <= 1.0


# The statistics extension ---------------------------------------------------------------------------------------------


SPEC = one_to_one("m", "float32", 1)
KEYS = {"name", "version", "last_inference", "inference_count", "execution_count", "inference_stats"}
KEYS |= {"response_stats", "batch_stats", "memory_usage"}
KINDS = {"success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss"}


def of_model(snapshot: Snapshot) -> dict[str, Any]:
    (found,) = json.loads(json.dumps(statistics([SPEC], snapshot, epoch=1_000.0)))["model_stats"]
    assert isinstance(found, dict)
    return found


def test_successes_failures_and_times_come_from_the_engines_figures() -> None:
    told = of_model(SNAPSHOT)
    assert (told["name"], told["version"]) == ("m", "1")
    assert told["inference_count"] == 10
    assert told["execution_count"] == 5
    stats = told["inference_stats"]
    assert stats["success"] == {"count": 10, "ns": 500_000_000}
    assert stats["fail"] == {"count": 28, "ns": 1_500_000_000}
    assert stats["queue"] == {"count": 10, "ns": 25_000_000}
    assert stats["compute_infer"] == {"count": 10, "ns": 475_000_000}


def test_batches_are_told_by_their_size_in_order() -> None:
    told = of_model(SNAPSHOT)["batch_stats"]
    assert [(entry["batch_size"], entry["compute_infer"]) for entry in told] == [
        (2, {"count": 4, "ns": 500_000_000}),
        (16, {"count": 1, "ns": 250_000_000}),
    ]


def whole_numbers(value: object) -> bool:
    if isinstance(value, dict):
        return all(map(whole_numbers, value.values()))
    if isinstance(value, list):
        return all(map(whole_numbers, value))
    return isinstance(value, str) or (type(value) is int and value >= 0)


@pytest.mark.parametrize("snapshot", [SNAPSHOT, Snapshot(models={})], ids=["with figures", "never asked"])
def test_every_key_is_there_and_every_number_whole_and_not_negative(snapshot: Snapshot) -> None:
    told = of_model(snapshot)
    assert set(told) == KEYS
    assert set(told["inference_stats"]) == KINDS
    assert whole_numbers(told)


def test_memory_is_told_where_it_is_limited() -> None:
    assert of_model(SNAPSHOT)["memory_usage"] == []
    assert of_model(EVERYTHING)["memory_usage"] == [{"type": "CPU", "id": 0, "byte_size": 40}]


# The configuration that clients read ----------------------------------------------------------------------------------


MAX_ROWS = Limits().max_rows
WORDS = ModelSpec(
    "words",
    "3",
    (TensorSpec("tokens", "int64", (40,), 0, 100, sizes=("length",)),),
    (TensorSpec("tokens", "int64", (60,), 0),),
    2,
    4,
    dims=(Dim("length", 1, 40),),
)


def test_dims_are_the_shapes_of_the_metadata_without_their_batch() -> None:
    for spec in (*SPECS, WORDS):
        config, told = model_config(spec, SPECS, max_rows=MAX_ROWS), metadata(spec)
        assert config["max_batch_size"] == spec.max_batch > 0
        for kind in ("input", "output"):
            tensors = config[kind]
            shapes = told[f"{kind}s"]
            assert isinstance(tensors, list)
            assert isinstance(shapes, list)
            assert [[-1, *tensor["dims"]] for tensor in tensors] == [tensor["shape"] for tensor in shapes]


def test_rows_that_may_be_shorter_have_no_fixed_dim() -> None:
    config = model_config(WORDS, [WORDS], max_rows=MAX_ROWS)
    assert config["input"] == [{"name": "tokens", "data_type": "TYPE_INT64", "dims": [-1]}]


def test_what_varies_is_minus_one_and_its_range_is_among_the_parameters() -> None:
    picture = SPECS_BY_NAME["picture"]
    config = model_config(picture, SPECS, max_rows=MAX_ROWS)
    assert [(one["shape"]) for one in metadata(picture)["inputs"]] == [[-1, 2, -1, -1]]  # type: ignore[attr-defined]
    assert config["output"] == [{"name": "y", "data_type": "TYPE_FP32", "dims": [2, -1, -1]}]
    assert config["parameters"] == {"H": {"string_value": "4..8:4"}, "W": {"string_value": "1..6"}}
    assert model_config(WORDS, [WORDS], max_rows=MAX_ROWS)["parameters"] == {"length": {"string_value": "1..40"}}


# What the machine does ------------------------------------------------------------------------------------------------


MEMORY = "MemTotal:  1000 kB\nMemFree: 100 kB\nMemAvailable:  400 kB\nHugePages_Total: 0\n"


def written(proc: Path, *times: int) -> None:
    (proc / "stat").write_text(f"cpu  {' '.join(map(str, times))}\ncpu0 1 2 3 4\n")
    (proc / "meminfo").write_text(MEMORY)


def test_cores_are_busy_for_the_share_that_they_did_not_rest_and_memory_is_used_that_is_not_available(
    tmp_path: Path,
) -> None:
    machine = Machine(tmp_path)
    written(tmp_path, 100, 0, 100, 700, 100, 0, 0, 0, 55, 0)
    machine.figures()
    written(tmp_path, 130, 0, 100, 750, 120, 0, 0, 0, 99, 0)
    figures = machine.figures()["cpu"]
    assert figures["utilization"] == pytest.approx(0.3)
    assert (figures["memory_total_bytes"], figures["memory_used_bytes"]) == (1_024_000, 614_400)
    assert machine.figures()["cpu"]["utilization"] == 0.0


def test_a_gpu_that_is_not_there_is_left_out() -> None:
    with pytest.raises(OSError, match=r"NVML|nvidia"):
        Gpu("GPU-none")
    assert set(Machine().figures("GPU-none")) == {"cpu"}


# What clients get of outputs ------------------------------------------------------------------------------------------


@given(arrays.arrays(np.int8, st.integers(1, 40), elements=st.integers(-3, 3)), st.integers(1, 45))
def test_the_best_are_those_of_a_whole_sort_in_which_equals_keep_their_order(row: Array, count: int) -> None:
    whole = sorted(range(len(row)), key=lambda index: (-int(row[index]), index))[:count]
    assert best_classes(row.reshape(1, -1), count) == [[f"{row[index]}:{index}" for index in whole]]
