"""The engine's metrics in Prometheus format, under latebind's names, and under Triton's if they mean the same.

Machine metrics are processor, memory, and the GPU that the engine computes on, from NVIDIA's own library
(NVML), which comes with the driver. Values that NVML does not have, as for a part of a GPU, are left out.
"""

from collections.abc import Collection, Iterable, Mapping
from ctypes import CDLL, Structure, byref, c_char_p, c_uint, c_ulonglong, c_void_p
from dataclasses import asdict
from itertools import accumulate
from pathlib import Path
from typing import Any, cast

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily as Counter
from prometheus_client.core import GaugeMetricFamily as Gauge
from prometheus_client.core import HistogramMetricFamily as Histogram
from prometheus_client.core import InfoMetricFamily as Info
from prometheus_client.core import Metric
from prometheus_client.core import UnknownMetricFamily as Untyped
from prometheus_client.registry import Collector

from latebind.domain.metrics import Histogram as Seconds
from latebind.domain.split import public_name
from latebind.server.description import executions
from latebind.server.gateway import AdaptationFigures, Distribution, LevelFigures, ModelMetrics, Snapshot

MICROSECONDS = 1e6
MILLISECONDS = 1e3
MODEL = ("model", "version")
PROC = Path("/proc")
IDLE = slice(3, 5)  # positions in /proc/stat: idle, and waiting for a disk
GUEST = 8  # times from this position on are counted elsewhere too
KIBIBYTE = 1024
LIBRARY = "libnvidia-ml.so.1"
Figures = Mapping[str, float]
Labels = tuple[str, ...]
FAILURES = {
    "REJECTED": ("refused_full", "refused_late", "refused_loading"),
    "CANCELED": ("cancelled",),
    "BACKEND": ("failed",),
    "OTHER": ("expired", "not_loaded"),
}
# Every family: its kind, its help text, its labels and, if it is one figure of the engine unchanged, which one.
# Triton's are untyped, because a counter's name would get the suffix `_total`.
SIZE, STEP, GPU = (*MODEL, "size"), (*MODEL, "step"), ("gpu_uuid",)
FAMILIES: dict[str, tuple[Any, ...]] = {
    "latebind_requests": (Counter, "Requests by outcome", (*MODEL, "outcome"), "requests"),
    "latebind_left_at": (Counter, "Answers by the stage at which they left", (*MODEL, "stage"), "left_at"),
    "latebind_batches": (Counter, "Batches by their size at the start", SIZE, "batches"),
    "latebind_promised": (
        Counter,
        "Requests started, by promised fidelity",
        (*MODEL, "fidelity"),
        "promised",
    ),
    "latebind_stage_runs": (Counter, "Stages run, once per batch", MODEL, "stage_runs"),
    "latebind_row_stages": (Counter, "Stages run, once per request", MODEL, "row_stages"),
    "latebind_stage_failures": (Counter, "Stages that raised, once per batch", MODEL, "stage_failures"),
    "latebind_pending_requests": (Gauge, "Requests in flight", MODEL, "pending"),
    "latebind_http_replies": (Counter, "HTTP replies by status", ("status",)),
    "latebind_turned_away": (
        Counter,
        "Rows that never reached the engine, by reason",
        (*MODEL, "reason"),
        "turned_away",
    ),
    "latebind_engine_restarts": (Counter, "Times the engine was replaced", ()),
    "latebind_figures_age_seconds": (Gauge, "Age of these figures; 0 while the engine answers", ()),
    "latebind_latency_seconds": (Histogram, "Time from arrival to answer", MODEL, "latency_seconds"),
    "latebind_queue_seconds": (Histogram, "Time from arrival to the first stage", MODEL, "queue_seconds"),
    "latebind_reading_seconds": (Histogram, "Time to convert texts, pictures and sounds of calls to tensors", MODEL),
    "latebind_admission_slack_seconds": (
        Histogram,
        "Time to the deadline beyond the estimated time, on arrival",
        MODEL,
        "slack_seconds",
    ),
    "latebind_tokens": (Counter, "Tokens generated", MODEL, "tokens"),
    "latebind_first_token_seconds": (Histogram, "Time from arrival to the first token", MODEL, "first_token_seconds"),
    "latebind_lengths": (Counter, "Sum of the lengths of answered requests, such as tokens of texts", MODEL, "lengths"),
    "latebind_run_lengths": (Counter, "Sum of the lengths of rows in stages run", MODEL, "run_lengths"),
    "latebind_padded_lengths": (Counter, "The same, padded to the longest row of each run", MODEL, "padded_lengths"),
    "latebind_padding_ratio": (Gauge, "Ratio of padded lengths to lengths since the start", MODEL),
    "latebind_runs": (Counter, "Stages run, by number of requests", SIZE, "runs"),
    "latebind_run_seconds": (Counter, "Time of stages run, by number of requests", SIZE, "run_seconds"),
    "latebind_merges": (Counter, "Merges of two sub-batches", MODEL, "merges"),
    "latebind_preemptions": (Counter, "Pauses of a sub-batch for new requests", MODEL, "preemptions"),
    "latebind_refills": (Counter, "Requests that started on a busy worker", MODEL, "refills"),
    "latebind_query_steps": (
        Counter,
        "Steps of queries, by the model that answered",
        (*STEP, "answered_by"),
        "answered",
    ),
    "latebind_query_step_budget_seconds": (Counter, "Time planned for steps", STEP, "budget_seconds"),
    "latebind_query_step_seconds": (Histogram, "Time that steps took", STEP, "spent_seconds"),
    "latebind_query_replans": (Counter, "Steps planned again after others had started", STEP, "replanned"),
    "latebind_memory_budget_bytes": (Gauge, "Memory budget of all models together", (), "budget_bytes"),
    "latebind_resident_bytes": (Gauge, "Bytes in memory", MODEL, "resident_bytes"),
    "latebind_model_bytes": (Gauge, "Bytes in memory of a fully loaded model", MODEL, "bytes"),
    "latebind_evictions": (Counter, "Evictions of pieces", MODEL, "evictions"),
    "latebind_load_failures": (Counter, "Loads that failed", MODEL, "failures"),
    "latebind_load_bytes": (Counter, "Bytes read by loads, by tier", (*MODEL, "tier")),
    "latebind_load_seconds": (Histogram, "Time of successful loads", MODEL, "load_seconds"),
    "latebind_fidelity": (Gauge, "Share of the last samples with the base model's answer", (*MODEL, "bound")),
    "latebind_fidelity_samples": (Counter, "Sampled requests run to the end", MODEL, "sampled"),
    "latebind_fidelity_alarms": (Counter, "Alarms: fidelity fell or inputs changed", MODEL, "alarms"),
    "latebind_level_fidelity": (
        Gauge,
        "Share of the last samples for which requests with this promise would get the base model's answer",
        (*MODEL, "promised", "bound"),
    ),
    "latebind_level_alarms": (Counter, "Alarms: the fidelity of a level fell", (*MODEL, "promised")),
    "latebind_level_used": (Gauge, "1 if requests may be promised this fidelity, else 0", (*MODEL, "promised")),
    "latebind_retrainings": (Counter, "Retrainings by outcome", (*MODEL, "outcome")),
    "latebind_split_share": (Gauge, "Share of a model's requests that a version is to answer", MODEL),
    "latebind_shadow_fidelity": (
        Gauge,
        "Share of the last rows that a shadow version answered like the version that clients got",
        (*MODEL, "bound"),
    ),
    "latebind_shadow_rows": (Counter, "Rows sent to a shadow version", (*MODEL, "outcome"), "shadows"),
    "latebind_learned_caches": (Info, "Version of the learned caches in use", MODEL),
    "nv_inference_request_success": (Untyped, "Requests answered", MODEL),
    "nv_inference_request_failure": (Untyped, "Requests not answered", (*MODEL, "reason")),
    "nv_inference_count": (Untyped, "Inferences (rows) answered", MODEL),
    "nv_inference_exec_count": (Untyped, "Batches started, queries answered", MODEL),
    "nv_inference_pending_request_count": (Gauge, "Requests in flight", MODEL),
    # Inputs and outputs take no time: stages read and write them in the slots themselves.
    "nv_inference_request_duration_us": (Untyped, "Time to answer, summed", MODEL),
    "nv_inference_queue_duration_us": (Untyped, "Time in the queue, summed", MODEL),
    "nv_inference_compute_input_duration_us": (Untyped, "Time to move inputs: always 0", MODEL),
    "nv_inference_compute_infer_duration_us": (Untyped, "Time with a worker, summed", MODEL),
    "nv_inference_compute_output_duration_us": (Untyped, "Time to move outputs: always 0", MODEL),
    "nv_inference_first_response_histogram_ms": (Histogram, "Time to the first answer", MODEL),
    "nv_cpu_utilization": (
        Gauge,
        "Share of time that the cores were busy since the last scrape",
        (),
    ),
    "nv_cpu_memory_total_bytes": (Gauge, "Memory of the machine", ()),
    "nv_cpu_memory_used_bytes": (Gauge, "Memory in use on the machine", ()),
    "nv_gpu_utilization": (Gauge, "Share of time that the GPU was busy, from its driver", GPU),
    "nv_gpu_memory_total_bytes": (Gauge, "Memory of the GPU", GPU),
    "nv_gpu_memory_used_bytes": (Gauge, "Memory of the GPU in use", GPU),
    "nv_gpu_power_usage": (Gauge, "Power draw of the GPU, in watts", GPU),
    "nv_gpu_power_limit": (Gauge, "Power limit of the GPU, in watts", GPU),
    "nv_energy_consumption": (Gauge, "Energy used by the GPU since its driver was loaded, in joules", GPU),
}
OF_FIGURES = {figure: name for name, (_, _, _, *figures) in FAMILIES.items() for figure in figures}


class Exposition(Collector):
    """Metric families that appear once they have a value."""

    def __init__(self) -> None:
        self._found: dict[str, Any] = {}

    def describe(self) -> Iterable[Metric]:
        """Describe nothing: families appear with their values."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Return the families in the order in which they had their first value."""
        return self._found.values()

    def add(self, name: str, value: object, *labels: str) -> None:
        """Add a value of a family of `FAMILIES`."""
        kind, text, names, *_ = FAMILIES[name]
        family = self._found.get(name)
        if family is None:
            family = self._found[name] = kind(name, text, labels=names)
        family.add_metric(labels, value)

    def histogram(self, name: str, values: Distribution, *labels: str, unit: float = 1.0) -> None:
        """Add a distribution; `unit` is how many units of the family a second has."""
        counts = accumulate(values["counts"][: len(values["le"])])
        bounds = [str(le * unit) for le in values["le"]]
        buckets = [*zip(bounds, counts, strict=True), ("+Inf", values["count"])]
        kind, text, names, *_ = FAMILIES[name]
        family = self._found.setdefault(name, kind(name, text, labels=names))
        family.add_metric(labels, buckets, values["sum"] * unit)

    def add_figures(self, figures: Mapping[str, Any], *labels: str) -> None:
        """Add the engine's figures that `FAMILIES` has: distributions, numbers, numbers by stage or another label."""
        for figure, value in figures.items():
            name = OF_FIGURES.get(figure)
            if name is None:
                continue
            if isinstance(value, Mapping) and "le" in value:
                self.histogram(name, value, *labels)  # type: ignore[arg-type]
            elif isinstance(value, Mapping | list):
                for last, each in value.items() if isinstance(value, Mapping) else enumerate(value):
                    self.add(name, each, *labels, str(last))
            else:
                self.add(name, value, *labels)


def prometheus_text(
    snapshot: Snapshot,
    *,
    versions: Mapping[str, str],
    replies: Mapping[int, int],
    queries: Collection[str] = (),
    adaptation: Mapping[str, AdaptationFigures] | None = None,
    machine: Mapping[str, Figures] | None = None,
    reading: Mapping[str, Seconds] | None = None,
    turned_away: Mapping[str, Mapping[str, int]] | None = None,
    shares: Mapping[str, float] | None = None,
    shadows: Mapping[str, Mapping[str, int]] | None = None,
    agreement: Mapping[str, tuple[float | None, float, float]] | None = None,
) -> bytes:
    """Return the exposition of `snapshot`, of `replies` (HTTP replies by status), and of the rest.

    Labels come from `versions`, the models that are served, never from what a client sent: models that were unloaded
    while the engine sent this are left out. `queries` are those of them that are queries. For models in several
    versions, `shares` are in percent, `shadows` counts the answers of shadows, and `agreement` is the share that agreed
    with the others, with bounds. `turned_away` counts rows that got no slots, by reason.
    """
    found = Exposition()
    for status, count in sorted(replies.items()):
        found.add("latebind_http_replies", count, str(status))
    found.add("latebind_engine_restarts", snapshot.get("restarts", 0))
    found.add("latebind_figures_age_seconds", snapshot.get("age", 0.0))
    memory, steps = snapshot.get("memory"), snapshot.get("steps", {})
    found.add_figures(memory or {})
    for name, version in sorted(versions.items()):
        labels = public_name(name), version
        if name in snapshot["models"]:
            model = snapshot["models"][name]
            found.add_figures(model, *labels)
            if model.get("run_lengths"):
                found.add("latebind_padding_ratio", model["padded_lengths"] / model["run_lengths"], *labels)
            _add_triton(found, model, labels, is_query=name in queries)
        if reading and name in reading:
            found.histogram("latebind_reading_seconds", cast(Distribution, asdict(reading[name])), *labels)
        found.add_figures(snapshot.get("batching", {}).get(name, {}), *labels)
        for step, figures in steps.get(name, {}).items():
            found.add_figures(figures, *labels, step)
        if memory is not None and name in memory["models"]:
            of_model = memory["models"][name]
            found.add_figures(of_model, *labels)
            found.add("latebind_load_bytes", of_model["cached_bytes"], *labels, "page-cache")
            found.add("latebind_load_bytes", of_model["read_bytes"] - of_model["cached_bytes"], *labels, "disk")
        if shares and name in shares:
            found.add("latebind_split_share", shares[name] / 100.0, *labels)
        aside = {"turned_away": turned_away or {}, "shadows": shadows or {}}
        found.add_figures({figure: counts.get(name, {}) for figure, counts in aside.items()}, *labels)
        _add_bounded(found, "latebind_shadow_fidelity", (agreement or {}).get(name, (None, 0.0, 1.0)), labels)
        if adaptation and name in adaptation:
            _add_adaptation(found, adaptation[name], labels)
    for what, value in (machine or {}).get("cpu", {}).items():
        found.add(f"nv_cpu_{what}", value)
    for what, value in (machine or {}).get("gpu", {}).items():
        whole = what if what == "energy_consumption" else f"gpu_{what}"
        found.add(f"nv_{whole}", value, snapshot.get("gpu", ""))
    registry = CollectorRegistry(auto_describe=False)
    registry.register(found)
    return generate_latest(registry)


def _add_triton(found: Exposition, model: ModelMetrics, labels: Labels, *, is_query: bool) -> None:
    """Add what a model has under Triton's names."""
    outcomes: Mapping[str, int] = model["requests"]
    found.add("nv_inference_request_success", outcomes["answered"], *labels)
    for reason, kinds in FAILURES.items():
        found.add("nv_inference_request_failure", sum(outcomes[kind] for kind in kinds), *labels, reason)
    found.add("nv_inference_count", outcomes["answered"], *labels)
    found.add("nv_inference_exec_count", executions(model, is_query=is_query), *labels)
    found.add("nv_inference_pending_request_count", model["pending"], *labels)
    spent, queued = model["latency_seconds"]["sum"], model["queue_seconds"]["sum"]
    for part, seconds in (("request", spent), ("queue", queued), ("compute_infer", spent - queued)):
        found.add(f"nv_inference_{part}_duration_us", round(seconds * MICROSECONDS), *labels)
    for part in ("compute_input", "compute_output"):
        found.add(f"nv_inference_{part}_duration_us", 0, *labels)
    first = model.get("first_token_seconds", model["latency_seconds"])
    found.histogram("nv_inference_first_response_histogram_ms", first, *labels, unit=MILLISECONDS)


def _add_adaptation(found: Exposition, figures: AdaptationFigures, labels: Labels) -> None:
    _add_fidelity(found, "latebind_fidelity", figures, labels)
    for level in figures.get("levels", ()):
        of_level = (*labels, f"{level['promised']:g}")
        _add_fidelity(found, "latebind_level_fidelity", level, of_level)
        found.add("latebind_level_alarms", level["alarms"], *of_level)
        found.add("latebind_level_used", int(level["used"]), *of_level)
    found.add_figures(figures, *labels)
    found.add("latebind_retrainings", figures["retrained"] - figures["refused"], *labels, "published")
    found.add("latebind_retrainings", figures["refused"], *labels, "nothing_shown")
    found.add("latebind_learned_caches", {"number": figures["version"]}, *labels)


def _add_fidelity(found: Exposition, name: str, figures: AdaptationFigures | LevelFigures, labels: Labels) -> None:
    _add_bounded(found, name, (figures["fidelity"], figures["lower"], figures["upper"]), labels)


def _add_bounded(found: Exposition, name: str, figures: tuple[float | None, float, float], labels: Labels) -> None:
    """Add a share with its bounds; nothing where there is none."""
    share, lower, upper = figures
    if share is not None:
        for bound, value in (("", share), ("lower", lower), ("upper", upper)):
            found.add(name, value, *labels, bound)


# The machine ---------------------------------------------------------------------------------------------------------


class _Use(Structure):
    _fields_ = [("gpu", c_uint), ("memory", c_uint)]


class _Memory(Structure):
    _fields_ = [("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong)]


class Gpu:
    """One GPU, by its UUID (`GPU-...`). Raises `OSError` if there is no such GPU, or no driver."""

    def __init__(self, uuid: str) -> None:
        self.uuid = uuid
        self._library = CDLL(LIBRARY)
        self._device = c_void_p()
        self._library.nvmlInit_v2()
        if self._library.nvmlDeviceGetHandleByUUID(c_char_p(uuid.encode()), byref(self._device)):
            raise OSError(f"NVML has no GPU {uuid}")

    def figures(self) -> Figures:
        """Return utilisation (a share), watts, joules and bytes. A call may take milliseconds."""
        found: dict[str, float] = {}
        use, memory, number, energy = _Use(), _Memory(), c_uint(), c_ulonglong()
        if self._query("nvmlDeviceGetUtilizationRates", use):
            found["utilization"] = use.gpu / 100
        if self._query("nvmlDeviceGetMemoryInfo", memory):
            found |= {"memory_total_bytes": memory.total, "memory_used_bytes": memory.used}
        if self._query("nvmlDeviceGetPowerUsage", number):
            found["power_usage"] = number.value / 1e3
        if self._query("nvmlDeviceGetEnforcedPowerLimit", number):
            found["power_limit"] = number.value / 1e3
        if self._query("nvmlDeviceGetTotalEnergyConsumption", energy):
            found["energy_consumption"] = energy.value / 1e3
        return found

    def _query(self, function: str, result: Structure | c_uint | c_ulonglong) -> bool:
        status: int = getattr(self._library, function)(self._device, byref(result))
        return status == 0


class Machine:
    """The cores and the memory of this machine and, once one is asked for, a GPU."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._before = 0, 0
        self._gpu: Gpu | None = None

    def figures(self, gpu: str | None = None) -> dict[str, Figures]:
        """Return the figures of the `cpu` and, if `gpu` is the UUID of one here, of the `gpu`."""
        found = {"cpu": self._of_processor()}
        if gpu is not None and (self._gpu is None or self._gpu.uuid != gpu):
            try:
                self._gpu = Gpu(gpu)
            except (OSError, AttributeError):  # no driver, or one without such a function
                self._gpu = None
        if gpu is not None and self._gpu is not None:
            found["gpu"] = self._gpu.figures()
        return found

    def _of_processor(self) -> Figures:
        """Return the share of time that the cores were busy since the last call, and bytes of memory."""
        times = [int(time) for time in (self._proc / "stat").read_text().split("\n", 1)[0].split()[1 : 1 + GUEST]]
        whole, idle = sum(times), sum(times[IDLE])
        passed, rested = whole - self._before[0], idle - self._before[1]
        self._before = whole, idle
        lines = [line.split() for line in (self._proc / "meminfo").read_text().splitlines()]
        memory = {line[0]: int(line[1]) * KIBIBYTE for line in lines if len(line) > 1}
        return {
            "utilization": (passed - rested) / passed if passed > 0 else 0.0,
            "memory_total_bytes": memory["MemTotal:"],
            "memory_used_bytes": memory["MemTotal:"] - memory["MemAvailable:"],
        }
