"""`make lint`: what is under deploy/ and .github/, as those see it who read it. It needs the extra `lint`."""

import json
import subprocess
import sys
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from tests.test_deploy import documents, options

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "chart"
KUBERNETES = "1.37"
BIN = Path(sys.executable).parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def said_by(command: str, *words: str) -> str:
    """Return what a command of the extra `lint` prints; it must find nothing wrong."""
    if not (BIN / command).is_file():
        pytest.skip(f"{command} is not installed: pip install 'latebind[lint]'")
    done = subprocess.run([BIN / command, *words], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_workflows_fit_their_schema() -> None:
    schema = ("--builtin-schema", "vendor.github-workflows")
    said_by("check-jsonschema", *schema, *map(str, WORKFLOWS))


def test_workflows_are_safe_to_run_on_what_strangers_send() -> None:
    said_by("zizmor", "--offline", "--no-progress", *map(str, WORKFLOWS))


def test_settings_of_compiled_wheels_fit_their_schema() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    pytest.importorskip("cibuildwheel")
    schema = json.loads((resources.files("cibuildwheel") / "resources" / "cibuildwheel.schema.json").read_text())
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["cibuildwheel"]
    jsonschema.validate(settings, schema)


@pytest.mark.parametrize(("machine", "count"), [("x86_64", 4), ("aarch64", 4)])
def test_compiled_wheels_are_built_for_each_python_on_each_machine(machine: str, count: int) -> None:
    said = said_by("cibuildwheel", "--platform", "linux", "--archs", machine, "--print-build-identifiers").split()
    assert len(said) == count
    assert all(one.endswith(f"manylinux_{machine}") for one in said)


def test_the_recipe_of_the_image_is_one_that_others_would_write() -> None:
    said_by("hadolint", "deploy/Containerfile")


VALUES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "by cpu": {"autoscaling": {"by": "cpu"}, "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}}},
    "by slack": {"autoscaling": {"by": "slack", "max": 4}, "networkPolicy": {"enabled": False}},
    "of a URL": {
        "models": {"url": "s3://bucket/models", "watch": 60},
        "arguments": ["--memory=2GiB", "--log-format=json"],
        "env": [{"name": "AWS_ACCESS_KEY_ID", "valueFrom": {"secretKeyRef": {"name": "store", "key": "id"}}}],
        "nodeSelector": {"disk": "fast"},
        "tolerations": [{"key": "cpu", "operator": "Exists"}],
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
        ],
    },
}


def rendered(values: dict[str, Any], name: str = "latebind") -> list[dict[str, Any]]:
    """Return what a release of the chart would be made of."""
    helm, yaml = pytest.importorskip("helm_python"), pytest.importorskip("yaml")
    with helm.Chart.load(CHART) as chart:
        texts = chart.render(values, name=name, namespace="serving")
    found = [one for path, text in texts.items() if path.endswith(".yaml") for one in yaml.safe_load_all(text)]
    return [one for one in found if one]


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_helm_finds_nothing_wrong_with_the_chart(values: dict[str, Any]) -> None:
    helm = pytest.importorskip("helm_python")
    found = helm.lint(CHART, values, strict=True)
    assert found["errors"] == []
    assert [one["error"] for one in found["messages"] if one["severity"] > 1] == []


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_what_the_chart_makes_fits_the_schemas_of_those_who_take_it(values: dict[str, Any]) -> None:
    validate = pytest.importorskip("kubernetes_validate").validate
    keda = pytest.importorskip("cloudcoil.models.keda.v1alpha1")
    prometheus = pytest.importorskip("cloudcoil.models.prometheus_operator.v1")
    own = {"ScaledObject": keda.ScaledObject, "ServiceMonitor": prometheus.ServiceMonitor}
    for one in rendered(values, "shop"):
        assert one["metadata"]["name"] == "shop-latebind"
        if one["kind"] in own:
            read = own[one["kind"]].model_validate(one)
            assert read.model_dump(mode="json", by_alias=True, exclude_none=True) == one  # and nothing is unknown
        else:
            validate(one, KUBERNETES, strict=True)


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_the_chart_gives_options_that_there_are_and_finds_its_own_pods(values: dict[str, Any]) -> None:
    found = {one["kind"]: one["spec"] for one in rendered(values)}
    template = found["Deployment"]["template"]
    (container,) = template["spec"]["containers"]
    named = {word.partition("=")[0] for word in container["args"][2:]}
    assert named <= options()
    labels = template["metadata"]["labels"].items()
    assert found["Deployment"]["selector"]["matchLabels"].items() <= labels
    assert found["Service"]["selector"].items() <= labels
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in template["spec"]["volumes"]}
    assert ("replicas" in found["Deployment"]) is not (
        {"HorizontalPodAutoscaler", "ScaledObject"} & set(found) != set()
    )


def test_the_manifest_for_those_without_helm_is_the_chart_without_values() -> None:
    chart = {one["kind"]: one for one in rendered({})}
    assert chart == {one["kind"]: one for one in documents(ROOT / "deploy" / "kubernetes.yaml")}


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"replica": 2}, "replica"),
        ({"autoscaling": {"by": "slack", "slack": "0.3"}}, "slack"),
        ({"models": {"url": "bucket/models"}}, "url"),
        ({"models": {"claim": ""}}, "name the volume claim"),
        ({"arguments": ["serve"]}, "arguments"),
    ],
)
def test_values_that_are_none_are_refused_and_named(values: dict[str, Any], told: str) -> None:
    helm = pytest.importorskip("helm_python")
    with pytest.raises(helm.HelmError, match=told):
        rendered(values)


@pytest.mark.parametrize("name", ["kubernetes.yaml", "kserve.yaml", "kuberay.yaml"])
def test_resources_of_kubernetes_itself_fit_their_schemas(name: str) -> None:
    validate = pytest.importorskip("kubernetes_validate").validate
    for one in documents(ROOT / "deploy" / name):
        if "." not in one["apiVersion"].partition("/")[0] or one["apiVersion"].startswith("networking.k8s.io/"):
            validate(one, KUBERNETES, strict=True)
        elif one["kind"] == "ClusterServingRuntime":
            pod = {"containers": one["spec"]["containers"], "volumes": one["spec"]["volumes"]}
            validate(
                {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": pod}, KUBERNETES, strict=True
            )
