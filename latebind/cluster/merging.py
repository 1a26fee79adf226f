"""Merges what all replicas report: statistics are added up, metrics get a label with the replica's name. Pure."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

Json = dict[str, Any]

NAMES = frozenset(("name", "version", "batch_size"))  # fields that are not figures
METRIC = re.compile(r"([^{ ]+)(\{?)")


def merged_statistics(found: Sequence[Json]) -> Json:
    """Return the protocol's statistics of several replicas, added up model by model."""
    models: dict[tuple[str, str], Json] = {}
    for statistics in found:
        for model in statistics["model_stats"]:
            key = model["name"], model["version"]
            models[key] = _added(models[key], model) if key in models else model
    return {"model_stats": [models[key] for key in sorted(models)]}


def _added(one: Any, other: Any, name: str = "") -> Any:
    """Return the sum of two figures called `name`, or of all figures within."""
    if isinstance(one, dict):
        return {key: _added(value, other[key], key) for key, value in one.items()}
    if name == "batch_stats":
        sizes = {batch["batch_size"]: batch for batch in one}
        for batch in other:
            size = batch["batch_size"]
            sizes[size] = _added(sizes[size], batch) if size in sizes else batch
        return [sizes[size] for size in sorted(sizes)]
    if name in NAMES:
        return one
    return max(one, other) if name == "last_inference" else one + other  # memory is a list


def labeled(texts: Mapping[str, str]) -> str:
    """Return one Prometheus exposition made of the replicas' own, each sample with the label `replica`.

    The samples of one family follow its description, as the format requires. Names of replicas need no escaping.
    """
    about: dict[str, dict[str, str]] = {}  # by family: its HELP and its TYPE
    samples: dict[str, list[str]] = {}
    for replica, text in texts.items():
        family = ""
        for line in text.splitlines():
            if line.startswith("# "):
                _, kind, family, _ = line.split(" ", 3)
                about.setdefault(family, {}).setdefault(kind, line)
            elif line:
                name, brace = METRIC.match(line).groups()  # type: ignore[union-attr]
                rest = line[len(name) + len(brace) :]
                label = f'{{replica="{replica}"' + ("," if brace else "}")
                samples.setdefault(family, []).append(f"{name}{label}{rest}")
    lines = [line for family, texts in about.items() for line in (*texts.values(), *samples.get(family, ()))]
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
