"""Merges what all replicas report: statistics are added up, metrics get a label with the replica's name. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

Json = dict[str, Any]

COUNTS = ("inference_count", "execution_count")


def merged_statistics(found: Sequence[Json]) -> Json:
    """Return the protocol's statistics of several replicas, added up model by model."""
    models: dict[tuple[str, str], Json] = {}
    for told in found:
        for model in told["model_stats"]:
            key = model["name"], model["version"]
            models[key] = _added(models[key], model) if key in models else model
    return {"model_stats": [models[key] for key in sorted(models)]}


def labelled(texts: Mapping[str, str]) -> str:
    """Return one Prometheus exposition made of the replicas' own, each sample with the label `replica`.

    The samples of one family follow its description, as the format requires.
    """
    about: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for replica, text in texts.items():
        family = ""
        for line in text.splitlines():
            if line.startswith("# HELP "):
                family = line.split(" ", 3)[2]
                about.setdefault(family, [line])
            elif line.startswith("# TYPE "):
                if len(about[family]) == 1:
                    about[family].append(line)
            elif line:
                samples.setdefault(family, []).append(_with_label(line, replica))
    lines = [line for family, said in about.items() for line in (*said, *samples.get(family, ()))]
    return "".join(f"{line}\n" for line in lines)


def own_figures(*, replies: Mapping[int, int], replicas: int, moved: int) -> str:
    """Return the exposition of the ingress's own counters."""
    statuses = "".join(
        f'latebind_ingress_replies_total{{status="{status}"}} {count}\n' for status, count in sorted(replies.items())
    )
    return (
        "# HELP latebind_ingress_replies_total HTTP replies of the ingress by status\n"
        f"# TYPE latebind_ingress_replies_total counter\n{statuses}"
        "# HELP latebind_ingress_moved_total Calls that another replica was asked after one was lost\n"
        f"# TYPE latebind_ingress_moved_total counter\nlatebind_ingress_moved_total {moved}\n"
        "# HELP latebind_ingress_replicas Replicas that the ingress knows\n"
        f"# TYPE latebind_ingress_replicas gauge\nlatebind_ingress_replicas {replicas}\n"
    )


def _added(one: Json, other: Json) -> Json:
    return {
        **one,
        **{name: one[name] + other[name] for name in COUNTS},
        "last_inference": max(one["last_inference"], other["last_inference"]),
        "inference_stats": _durations(one["inference_stats"], other["inference_stats"]),
        "batch_stats": _batches(one["batch_stats"], other["batch_stats"]),
        "memory_usage": [*one["memory_usage"], *other["memory_usage"]],
    }


def _batches(one: Sequence[Json], other: Sequence[Json]) -> list[Json]:
    sizes = {batch["batch_size"]: batch for batch in one}
    for batch in other:
        size = batch["batch_size"]
        if size in sizes:
            kinds = {name: value for name, value in batch.items() if name != "batch_size"}
            sizes[size] = {"batch_size": size, **_durations({name: sizes[size][name] for name in kinds}, kinds)}
        else:
            sizes[size] = batch
    return [sizes[size] for size in sorted(sizes)]


def _durations(one: Json, other: Json) -> Json:
    return {kind: {key: one[kind][key] + other[kind][key] for key in one[kind]} for kind in one}


def _with_label(sample: str, replica: str) -> str:
    """Return a sample with one more label; the names of replicas need no escaping."""
    name, brace, rest = sample.partition("{")
    if brace and " " not in name:
        return f'{name}{{replica="{replica}",{rest}'
    name, _, value = sample.partition(" ")
    return f'{name}{{replica="{replica}"}} {value}'
