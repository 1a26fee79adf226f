"""The engine's figures in Prometheus format, under latebind's names, and under Triton's where they mean the same.

Those of the machine are its processor and memory, and the GPU that the engine computes on: from NVIDIA's own library
(NVML), which comes with the driver. What NVML does not know, as for a part of a GPU, is left out.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from ctypes import CDLL, Structure, byref, c_char_p, c_uint, c_ulonglong, c_void_p
from itertools import accumulate
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
    UnknownMetricFamily,
)
from prometheus_client.registry import Collector

from latebind.server.description import executions
from latebind.server.gateway import AdaptationFigures, Distribution, Memory, ModelMetrics, Snapshot

MICROSECONDS = 1e6
MILLISECONDS = 1e3
MODEL = ("model", "version")
PROC = Path("/proc")
IDLE = slice(3, 5)  # positions in /proc/stat: idle, and waiting for a disk
GUEST = 8  # times from this position on are counted elsewhere too
KIBIBYTE = 1024
LIBRARY = "libnvidia-ml.so.1"
Figures = Mapping[str, float]
FAILURES = {
    "REJECTED": ("refused_full", "refused_late", "refused_loading"),
    "CANCELED": ("cancelled",),
    "BACKEND": ("failed",),
    "OTHER": ("expired", "not_loaded"),
}
DURATIONS = {  # inputs and outputs take no time: stages read and write them in the slots themselves
    "request": "Time to answer",
    "queue": "Time in the queue",
    "compute_input": "Time in which inputs were moved: none",
    "compute_infer": "Time with a worker",
    "compute_output": "Time in which outputs were moved: none",
}


def prometheus_text(
    snapshot: Snapshot,
    *,
    versions: Mapping[str, str],
    replies: Mapping[int, int],
    queries: Collection[str] = (),
    adaptation: Mapping[str, AdaptationFigures] | None = None,
    machine: Mapping[str, Figures] | None = None,
) -> bytes:
    """Return the exposition of `snapshot`, of `replies` (HTTP replies by status), and of the rest.

    Labels come from `versions`, the models that are served, never from what a client sent. `queries` are those of them
    that are queries.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Snapshot(snapshot, versions, replies, queries, adaptation or {}))
    if machine:
        registry.register(_Machine(machine, snapshot.get("gpu", "")))
    return generate_latest(registry)


class _Snapshot(Collector):
    def __init__(
        self,
        snapshot: Snapshot,
        versions: Mapping[str, str],
        replies: Mapping[int, int],
        queries: Collection[str],
        adaptation: Mapping[str, AdaptationFigures],
    ) -> None:
        models = snapshot["models"]
        self._models = [((name, versions[name]), models[name]) for name in sorted(models) if name in versions]
        self._restarts, self._age = snapshot.get("restarts", 0), snapshot.get("age", 0.0)
        tallies = snapshot.get("batching", {})
        self._tallies = [((name, versions[name]), tallies[name]) for name in sorted(tallies) if name in versions]
        self._memory = snapshot.get("memory")
        steps = snapshot.get("steps", {})
        self._steps = [
            ((name, versions[name], step), figures)
            for name in sorted(steps)
            if name in versions
            for step, figures in steps[name].items()
        ]
        self._versions = versions
        self._replies = replies
        self._query_names = queries
        self._adaptation = [((name, versions[name]), adaptation[name]) for name in adaptation if name in versions]

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        yield from self._latebind_counters()
        yield from self._latebind_histograms()
        yield from self._sequences()
        yield from self._batching()
        if self._steps:
            yield from self._queries()
        if self._memory is not None:
            yield from self._residency(self._memory)
        yield from self._learned_caches()
        yield from self._triton()

    def _latebind_counters(self) -> Iterator[Metric]:
        requests = CounterMetricFamily("latebind_requests", "Requests by how they ended", labels=[*MODEL, "outcome"])
        left_at = CounterMetricFamily("latebind_left_at", "Answers by the stage they left at", labels=[*MODEL, "stage"])
        batches = CounterMetricFamily("latebind_batches", "Batches by size at their start", labels=[*MODEL, "size"])
        stage_runs = CounterMetricFamily("latebind_stage_runs", "Stages run, once per batch", labels=MODEL)
        row_stages = CounterMetricFamily("latebind_row_stages", "Stages run, once per request", labels=MODEL)
        failures = CounterMetricFamily("latebind_stage_failures", "Stages that raised, once per batch", labels=MODEL)
        pending = GaugeMetricFamily("latebind_pending_requests", "Requests accepted and not yet ended", labels=MODEL)
        replies = CounterMetricFamily("latebind_http_replies", "HTTP replies by status", labels=["status"])
        for labels, model in self._models:
            for outcome, count in model["requests"].items():
                requests.add_metric([*labels, outcome], count)
            for stage, count in enumerate(model["left_at"]):
                left_at.add_metric([*labels, str(stage)], count)
            for size, count in sorted(model["batches"].items(), key=lambda item: int(item[0])):
                batches.add_metric([*labels, size], count)
            stage_runs.add_metric(labels, model["stage_runs"])
            row_stages.add_metric(labels, model["row_stages"])
            failures.add_metric(labels, model["stage_failures"])
            pending.add_metric(labels, model["pending"])
        for status, count in sorted(self._replies.items()):
            replies.add_metric([str(status)], count)
        restarts = CounterMetricFamily("latebind_engine_restarts", "Times the engine was replaced", self._restarts)
        age = GaugeMetricFamily("latebind_figures_age_seconds", "Age of these figures; 0 while the engine answers")
        age.add_metric([], self._age)
        yield from (requests, left_at, batches, stage_runs, row_stages, failures, pending, replies, restarts, age)

    def _latebind_histograms(self) -> Iterator[Metric]:
        latency = HistogramMetricFamily("latebind_latency_seconds", "Arrival to answer", labels=MODEL)
        queue = HistogramMetricFamily("latebind_queue_seconds", "Arrival to first stage", labels=MODEL)
        slack = HistogramMetricFamily(
            "latebind_admission_slack_seconds", "Deadline left beyond the estimate, at arrival", labels=MODEL
        )
        for labels, model in self._models:
            latency.add_metric(labels, _buckets(model["latency_seconds"]), model["latency_seconds"]["sum"])
            queue.add_metric(labels, _buckets(model["queue_seconds"]), model["queue_seconds"]["sum"])
            slack.add_metric(labels, _buckets(model["slack_seconds"]), model["slack_seconds"]["sum"])
        yield from (latency, queue, slack)

    def _sequences(self) -> Iterator[Metric]:
        tokens = CounterMetricFamily("latebind_tokens", "Tokens written", labels=MODEL)
        first = HistogramMetricFamily("latebind_first_token_seconds", "Arrival to first token", labels=MODEL)
        for labels, model in self._models:
            if "first_token_seconds" in model:
                tokens.add_metric(labels, model["tokens"])
                values = model["first_token_seconds"]
                first.add_metric(labels, _buckets(values), values["sum"])
        yield from (tokens, first)

    def _batching(self) -> Iterator[Metric]:
        by_size = [*MODEL, "size"]
        runs = CounterMetricFamily("latebind_runs", "Stages run, by how many requests were in it", labels=by_size)
        seconds = CounterMetricFamily("latebind_run_seconds", "Time of stages, by their requests", labels=by_size)
        for labels, model in self._models:
            for size, count in sorted(model["runs"].items(), key=lambda item: int(item[0])):
                runs.add_metric([*labels, size], count)
            for size, spent in sorted(model["run_seconds"].items(), key=lambda item: int(item[0])):
                seconds.add_metric([*labels, size], spent)
        merges = CounterMetricFamily("latebind_merges", "Times two sub-batches became one", labels=MODEL)
        preemptions = CounterMetricFamily("latebind_preemptions", "Times one rested for newcomers", labels=MODEL)
        refills = CounterMetricFamily("latebind_refills", "Requests that joined a worker at work", labels=MODEL)
        for labels, tally in self._tallies:
            merges.add_metric(labels, tally["merges"])
            preemptions.add_metric(labels, tally["preemptions"])
            refills.add_metric(labels, tally["refills"])
        yield from (runs, seconds, merges, preemptions, refills)

    def _queries(self) -> Iterator[Metric]:
        labels = [*MODEL, "step"]
        answered = CounterMetricFamily(
            "latebind_query_steps", "Steps of queries by the model that answered", labels=[*labels, "answered_by"]
        )
        budget = CounterMetricFamily("latebind_query_step_budget_seconds", "Time planned for steps", labels=labels)
        spent = HistogramMetricFamily("latebind_query_step_seconds", "Time that steps took", labels=labels)
        replans = CounterMetricFamily("latebind_query_replans", "Steps planned behind others", labels=labels)
        for step, figures in self._steps:
            for model, count in figures["answered"].items():
                answered.add_metric([*step, model], count)
            budget.add_metric(step, figures["budget_seconds"])
            spent.add_metric(step, _buckets(figures["spent_seconds"]), figures["spent_seconds"]["sum"])
            replans.add_metric(step, figures["replanned"])
        yield from (answered, budget, spent, replans)

    def _residency(self, memory: Memory) -> Iterator[Metric]:
        budget = GaugeMetricFamily("latebind_memory_budget_bytes", "What models may take together")
        resident = GaugeMetricFamily("latebind_resident_bytes", "What is in memory", labels=MODEL)
        whole = GaugeMetricFamily("latebind_model_bytes", "What all of a model takes in memory", labels=MODEL)
        evictions = CounterMetricFamily("latebind_evictions", "Times pieces gave their memory back", labels=MODEL)
        failures = CounterMetricFamily("latebind_load_failures", "Loads that failed", labels=MODEL)
        read = CounterMetricFamily("latebind_load_bytes", "What loads read, by where it lay", labels=[*MODEL, "tier"])
        loads = HistogramMetricFamily("latebind_load_seconds", "Loads that ended well", labels=MODEL)
        budget.add_metric([], memory["budget_bytes"])
        for name, model in sorted(memory["models"].items()):
            if name not in self._versions:  # unloaded while the engine told this
                continue
            labels = (name, self._versions[name])
            resident.add_metric(labels, model["resident_bytes"])
            whole.add_metric(labels, model["bytes"])
            evictions.add_metric(labels, model["evictions"])
            failures.add_metric(labels, model["failures"])
            read.add_metric([*labels, "page-cache"], model["cached_bytes"])
            read.add_metric([*labels, "disk"], model["read_bytes"] - model["cached_bytes"])
            loads.add_metric(labels, _buckets(model["load_seconds"]), model["load_seconds"]["sum"])
        yield from (budget, resident, whole, evictions, failures, read, loads)

    def _learned_caches(self) -> Iterator[Metric]:
        fidelity = GaugeMetricFamily(
            "latebind_fidelity", "Share of the last samples answered as the base model does", labels=[*MODEL, "bound"]
        )
        samples = CounterMetricFamily("latebind_fidelity_samples", "Requests run to the end beside", labels=MODEL)
        alarms = CounterMetricFamily(
            "latebind_fidelity_alarms", "Times fidelity fell or inputs came to look different", labels=MODEL
        )
        retrained = CounterMetricFamily("latebind_retrainings", "Retrainings by outcome", labels=[*MODEL, "outcome"])
        version = InfoMetricFamily("latebind_learned_caches", "The version in use", labels=MODEL)
        for labels, found in self._adaptation:
            if found["fidelity"] is not None:
                for bound, value in (("", found["fidelity"]), ("lower", found["lower"]), ("upper", found["upper"])):
                    fidelity.add_metric([*labels, bound], value)
            samples.add_metric(labels, found["sampled"])
            alarms.add_metric(labels, found["alarms"])
            retrained.add_metric([*labels, "published"], found["retrained"] - found["refused"])
            retrained.add_metric([*labels, "nothing_shown"], found["refused"])
            version.add_metric(labels, {"number": found["version"]})
        yield from (fidelity, samples, alarms, retrained, version)

    def _triton(self) -> Iterator[Metric]:
        """Yield metrics under Triton's names, untyped, because a counter's name would get the suffix `_total`."""
        success = UnknownMetricFamily("nv_inference_request_success", "Requests answered", labels=MODEL)
        failure = UnknownMetricFamily(
            "nv_inference_request_failure", "Requests not answered", labels=[*MODEL, "reason"]
        )
        count = UnknownMetricFamily("nv_inference_count", "Inferences (rows) answered", labels=MODEL)
        executed = UnknownMetricFamily("nv_inference_exec_count", "Batches started, queries answered", labels=MODEL)
        pending = GaugeMetricFamily("nv_inference_pending_request_count", "Requests under way", labels=MODEL)
        summed = {
            part: UnknownMetricFamily(f"nv_inference_{part}_duration_us", f"{what}, summed", labels=MODEL)
            for part, what in DURATIONS.items()
        }
        first = HistogramMetricFamily(
            "nv_inference_first_response_histogram_ms", "Time to the first answer", labels=MODEL
        )
        for labels, model in self._models:
            outcomes = model["requests"]
            success.add_metric(labels, outcomes["answered"])
            for reason, kinds in FAILURES.items():
                failure.add_metric([*labels, reason], sum(outcomes[kind] for kind in kinds))
            count.add_metric(labels, outcomes["answered"])
            executed.add_metric(labels, executions(model, is_query=labels[0] in self._query_names))
            pending.add_metric(labels, model["pending"])
            for part, seconds in _durations(model).items():
                summed[part].add_metric(labels, round(seconds * MICROSECONDS))
            latency = model.get("first_token_seconds", model["latency_seconds"])
            first.add_metric(labels, _buckets(latency, MILLISECONDS), latency["sum"] * MILLISECONDS)
        yield from (success, failure, count, executed, pending, *summed.values(), first)


class _Machine(Collector):
    """The figures of the machine, under Triton's names."""

    def __init__(self, figures: Mapping[str, Figures], gpu: str) -> None:
        self._figures = figures
        self._gpu = gpu

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        for name, value in self._figures.get("cpu", {}).items():
            gauge = GaugeMetricFamily(f"nv_cpu_{name}", "Of the machine, since the metrics were asked for last")
            gauge.add_metric([], value)
            yield gauge
        for name, value in self._figures.get("gpu", {}).items():
            whole = name if name == "energy_consumption" else f"gpu_{name}"
            gauge = GaugeMetricFamily(f"nv_{whole}", "Of the GPU, as its driver tells", labels=["gpu_uuid"])
            gauge.add_metric([self._gpu], value)
            yield gauge


def _durations(model: ModelMetrics) -> dict[str, float]:
    """Return the total seconds of answered requests, by what they were spent on."""
    spent, queued = model["latency_seconds"]["sum"], model["queue_seconds"]["sum"]
    return {
        "request": spent,
        "queue": queued,
        "compute_input": 0.0,
        "compute_infer": spent - queued,
        "compute_output": 0.0,
    }


def _buckets(values: Distribution, unit: float = 1.0) -> list[tuple[str, float]]:
    """Return Prometheus's cumulative buckets; `unit` is how many units of the result a second has."""
    counts = accumulate(values["counts"][: len(values["le"])])
    bounds = [str(le * unit) for le in values["le"]]
    return [*zip(bounds, counts, strict=True), ("+Inf", values["count"])]


# The machine ---------------------------------------------------------------------------------------------------------


class Processor:
    """The cores and the memory of this machine."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._before = 0, 0

    def figures(self) -> Figures:
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
            raise OSError(f"NVML knows no GPU {uuid}")

    def figures(self) -> Figures:
        """Return utilisation (a share), watts, joules and bytes. A call may take milliseconds."""
        found: dict[str, float] = {}
        use, memory, number, energy = _Use(), _Memory(), c_uint(), c_ulonglong()
        if self._told("nvmlDeviceGetUtilizationRates", use):
            found["utilization"] = use.gpu / 100
        if self._told("nvmlDeviceGetMemoryInfo", memory):
            found |= {"memory_total_bytes": memory.total, "memory_used_bytes": memory.used}
        if self._told("nvmlDeviceGetPowerUsage", number):
            found["power_usage"] = number.value / 1e3
        if self._told("nvmlDeviceGetEnforcedPowerLimit", number):
            found["power_limit"] = number.value / 1e3
        if self._told("nvmlDeviceGetTotalEnergyConsumption", energy):
            found["energy_consumption"] = energy.value / 1e3
        return found

    def _told(self, question: str, answer: Structure | c_uint | c_ulonglong) -> bool:
        status: int = getattr(self._library, question)(self._device, byref(answer))
        return status == 0


class Machine:
    """Processor, memory and GPU, for `/metrics`."""

    def __init__(self) -> None:
        self._processor = Processor()
        self._gpu: Gpu | None = None

    def figures(self, gpu: str | None) -> dict[str, Figures]:
        """Return the figures of the `cpu` and, if `gpu` is the UUID of one here, of the `gpu`."""
        found = {"cpu": self._processor.figures()}
        if gpu is not None and (self._gpu is None or self._gpu.uuid != gpu):
            try:
                self._gpu = Gpu(gpu)
            except (OSError, AttributeError):  # no driver, or one that knows no such question
                self._gpu = None
        if gpu is not None and self._gpu is not None:
            found["gpu"] = self._gpu.figures()
        return found
