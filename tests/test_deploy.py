"""What is under `deploy/` and in its documentation: it parses, names only what there is, and asks for no rights."""

import configparser
import importlib
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer

from latebind.cli.main import app
from latebind.cluster.application import check
from latebind.cluster.declared import Arguments
from latebind.domain.config import ServeConfig
from latebind.domain.metrics import ModelMetrics
from latebind.server.access import Access
from latebind.server.rest.routes import ROUTES

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
PAGES = ("deploy.md", "security.md", "cluster.md")
FILES = [*sorted(path for path in DEPLOY.rglob("*") if path.is_file()), *(ROOT / "docs" / page for page in PAGES)]
MANIFESTS = sorted(DEPLOY.glob("*.yaml"))
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
OF_OTHERS = OPTION.findall(
    "--build-arg --cap-drop --constraint --extra-index-url --from --from-file --from-literal --index-url --interval "
    "--no-cache-dir --no-install-recommends --now --read-only --security-opt --set --start-period --timeout "
    "--tmpfs --unix-socket --yes"
)


def options() -> set[str]:
    """Return the options of `latebind serve` as users type them."""
    commands: Any = typer.main.get_command(app)
    command = commands.get_command(None, "serve").load()
    return {name for option in command.params for name in (*option.opts, *option.secondary_opts)}


def documents(path: Path) -> list[Any]:
    yaml = pytest.importorskip("yaml")
    return list(yaml.safe_load_all(path.read_text()))


def containers(path: Path) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return the containers of all documents, each with the specification of its pod."""
    found = [document.get("spec", {}) for document in documents(path)]
    clusters = [spec["rayClusterConfig"] for spec in found if "rayClusterConfig" in spec]
    groups = [group for one in clusters for group in (one["headGroupSpec"], *one["workerGroupSpecs"])]
    pods = [spec.get("template", {}).get("spec", spec) for spec in (*found, *groups)]
    return [(pod, container) for pod in pods for container in pod.get("containers", ())]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_option_that_is_named_exists(path: Path) -> None:
    known = options() | {"--name", "--version", "--json", *OF_OTHERS}  # `--json` is of `latebind check`
    assert set(OPTION.findall(path.read_text())) <= known


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_manifests_are_whole_and_containers_have_no_rights_and_write_to_nothing_but_what_is_mounted(path: Path) -> None:
    for document in documents(path):
        assert {"apiVersion", "kind", "metadata"} <= set(document)
        assert ("data" if document["kind"] == "ConfigMap" else "spec") in document
    assert containers(path)
    for pod, container in containers(path):
        rights = pod.get("securityContext", {}) | container["securityContext"]
        assert rights["runAsNonRoot"] is True
        assert rights["runAsUser"] > 0
        assert rights["readOnlyRootFilesystem"] is True
        assert rights["allowPrivilegeEscalation"] is False
        assert rights["capabilities"] == {"drop": ["ALL"]}
        assert {mount["name"] for mount in container["volumeMounts"]} <= {volume["name"] for volume in pod["volumes"]}


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_probes_ask_for_what_needs_no_token(path: Path) -> None:
    open_to_all = [route.pattern() for route in ROUTES if route.access is Access.OPEN and route.method == "GET"]
    for _, container in containers(path):
        probes = [value for key, value in container.items() if key.endswith("Probe")]
        assert len(probes) >= 2 or container["name"] == "ray-head"  # that one's are the operator's
        asked = [probe["httpGet"]["path"] for probe in probes if "httpGet" in probe]
        assert all(any(pattern.fullmatch(path) for pattern in open_to_all) for path in asked)
        assert asked or container["name"] in {"ray-head", "ray-worker"}


def ray_service() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what KubeRay is told, and the settings of latebind that lie beside."""
    settings, service, *_ = documents(DEPLOY / "kuberay.yaml")
    return service["spec"], settings["data"]


def test_on_ray_the_application_is_one_that_there_is_and_its_settings_are_such_and_need_tokens() -> None:
    yaml, schema = pytest.importorskip("yaml"), pytest.importorskip("ray.serve.schema")
    spec, settings = ray_service()
    (one,) = schema.ServeDeploySchema.model_validate(yaml.safe_load(spec["serveConfigV2"])).applications
    module, name = one.import_path.split(":")
    assert callable(getattr(importlib.import_module(module), name))
    assert Path(msgspec.convert(one.args, Arguments).config).name in settings
    found = msgspec.toml.decode(*settings.values(), type=ServeConfig)
    assert found.server.token_file
    assert found.server.admin_token_file
    check("ray", found)


def test_on_ray_the_frontend_is_where_the_service_leads_and_nothing_of_ray_is_exposed() -> None:
    spec, settings = ray_service()
    cluster, found = spec["rayClusterConfig"], msgspec.toml.decode(*settings.values(), type=ServeConfig)
    assert cluster["authOptions"]["mode"] == "token"
    (frontend,) = [
        group for group in cluster["workerGroupSpecs"] if found.cluster.ingress in str(group["rayStartParams"])
    ]
    ports = {port["name"]: port["containerPort"] for port in frontend["template"]["spec"]["containers"][0]["ports"]}
    assert ports == {"http": found.server.port, "grpc": found.server.grpc_port}
    *_, service, within, to_frontend, operator = documents(DEPLOY / "kuberay.yaml")
    labels = frontend["template"]["metadata"]["labels"]
    for selector in (service["spec"]["selector"], to_frontend["spec"]["podSelector"]["matchLabels"]):
        assert selector.items() <= labels.items()
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    everybody = within["spec"]["podSelector"]["matchLabels"]
    assert all(everybody.items() <= group["template"]["metadata"]["labels"].items() for group in groups)
    assert within["spec"]["policyTypes"] == operator["spec"]["policyTypes"] == ["Ingress"]
    assert cluster["headGroupSpec"]["serviceType"] == "ClusterIP"


def test_the_chart_is_of_this_version_and_scales_by_slacks_that_metrics_tell() -> None:
    (chart,) = documents(DEPLOY / "chart" / "Chart.yaml")
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert chart["version"] == chart["appVersion"] == version
    schema = json.loads((DEPLOY / "chart" / "values.schema.json").read_text())["properties"]["autoscaling"]
    assert schema["properties"]["slack"]["enum"] == [str(bound) for bound in ModelMetrics([]).slack_seconds.le]


def test_the_image_runs_as_nobody_in_particular() -> None:
    users = re.findall(r"^USER (\d+)", (DEPLOY / "Containerfile").read_text(), re.MULTILINE)
    assert users
    assert all(map(int, users))


def test_the_image_says_what_it_holds() -> None:
    labels = dict(
        re.findall(r"org\.opencontainers\.image\.([\w.]+)=\"([^\"]+)\"", (DEPLOY / "Containerfile").read_text())
    )
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (labels["title"], labels["version"], labels["licenses"]) == (
        project["name"],
        project["version"],
        project["license"],
    )
    bases = re.findall(r"^FROM (\S+)", (DEPLOY / "Containerfile").read_text(), re.MULTILINE)
    assert {labels["base.name"]} == set(bases)


def test_the_service_is_confined() -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "latebind.service")
    service = unit["Service"]
    for name in ("NoNewPrivileges", "PrivateTmp", "ProtectHome", "DynamicUser", "RestrictNamespaces"):
        assert service[name] == "yes", name
    assert service["CapabilityBoundingSet"] == ""
    assert service["ProtectSystem"] == "strict"
    assert int(service["TimeoutStopSec"]) > 30  # what the frontend takes to drain
