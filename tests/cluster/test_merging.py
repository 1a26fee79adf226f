"""What several replicas tell, as one."""

from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from latebind.cluster.merging import labelled, merged_statistics, own_figures

TEXT = """# HELP a_total Calls
# TYPE a_total counter
a_total{model="m"} 1.0
a_total{model="n x"} 2.0
# HELP b Bytes
# TYPE b gauge
b 3.0
"""


def model(name: str, count: int, *sizes: int) -> dict[str, Any]:
    spent = {"count": count, "ns": 10 * count}
    return {
        "name": name,
        "version": "1",
        "last_inference": count,
        "inference_count": count,
        "execution_count": count,
        "inference_stats": {"success": spent},
        "response_stats": {},
        "batch_stats": [{"batch_size": size, "compute_infer": spent} for size in sizes],
        "memory_usage": [],
    }


def test_statistics_are_added_up_model_by_model() -> None:
    found = merged_statistics(
        [{"model_stats": [model("a", 1, 1, 4)]}, {"model_stats": [model("b", 5), model("a", 2, 4)]}]
    )
    first, second = found["model_stats"]
    assert (first["inference_count"], first["last_inference"], second["inference_count"]) == (3, 2, 5)
    assert first["inference_stats"] == {"success": {"count": 3, "ns": 30}}
    assert first["batch_stats"] == [
        {"batch_size": 1, "compute_infer": {"count": 1, "ns": 10}},
        {"batch_size": 4, "compute_infer": {"count": 3, "ns": 30}},
    ]


def test_each_sample_says_whose_it_is_and_families_stay_together() -> None:
    text = labelled({"one": TEXT, "two": TEXT}) + own_figures(replies={200: 7}, replicas=2, moved=1)
    families = {family.name: family.samples for family in text_string_to_metric_families(text)}
    assert [(s.labels, s.value) for s in families["b"]] == [({"replica": "one"}, 3.0), ({"replica": "two"}, 3.0)]
    assert [s.labels for s in families["a"]] == [
        {"model": name, "replica": replica} for replica in ("one", "two") for name in ("m", "n x")
    ]
    assert families["latebind_ingress_replies"][0].value == 7.0
