"""What is under `deploy/` and in its documentation: it parses, names only what there is, and asks for no rights."""

import configparser
import re
from pathlib import Path
from typing import Any

import pytest
import typer

from latebind.cli.serve import app
from latebind.server.access import Access
from latebind.server.rest.routes import ROUTES

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
FILES = [*sorted(DEPLOY.iterdir()), ROOT / "docs" / "deploy.md", ROOT / "docs" / "security.md"]
MANIFESTS = sorted(DEPLOY.glob("*.yaml"))
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
OF_OTHERS = {"--build-arg", "--cap-drop", "--constraint", "--extra-index-url", "--from", "--from-file", "--interval"}
OF_OTHERS |= {"--no-cache-dir", "--now", "--read-only", "--security-opt", "--start-period", "--timeout", "--tmpfs"}


def options() -> set[str]:
    """Return the options of `latebind serve` as users type them."""
    command: Any = typer.main.get_command(app)
    return {name for option in command.params for name in (*option.opts, *option.secondary_opts)}


def documents(path: Path) -> list[Any]:
    yaml = pytest.importorskip("yaml")
    return list(yaml.safe_load_all(path.read_text()))


def containers(path: Path) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return the containers of all documents, each with the specification of its pod."""
    specs = [document["spec"] for document in documents(path)]
    pods = [spec.get("template", {}).get("spec", spec) for spec in specs]
    return [(pod, container) for pod in pods for container in pod.get("containers", ())]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_option_that_is_named_exists(path: Path) -> None:
    known = options() | {"--name"} | OF_OTHERS
    assert set(OPTION.findall(path.read_text())) <= known


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_manifests_are_whole(path: Path) -> None:
    for document in documents(path):
        assert {"apiVersion", "kind", "metadata", "spec"} <= set(document)
    assert containers(path)


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_containers_have_no_rights_and_write_to_nothing_but_what_is_mounted(path: Path) -> None:
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
    open_to_all = [pattern for pattern, method, access, _ in ROUTES if access is Access.OPEN and method == "GET"]
    for _, container in containers(path):
        probes = [value["httpGet"]["path"] for key, value in container.items() if key.endswith("Probe")]
        assert len(probes) >= 2
        assert all(any(pattern.fullmatch(probe) for pattern in open_to_all) for probe in probes)


def test_the_image_runs_as_nobody_in_particular() -> None:
    lines = (DEPLOY / "Containerfile").read_text().splitlines()
    users = [line.split()[1] for line in lines if line.startswith("USER ")]
    assert users
    assert all(user.split(":")[0].isdecimal() and int(user.split(":")[0]) for user in users)


def test_the_service_is_confined() -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "latebind.service")
    service = unit["Service"]
    for name in ("NoNewPrivileges", "PrivateTmp", "ProtectHome", "DynamicUser", "RestrictNamespaces"):
        assert service[name] == "yes", name
    assert service["CapabilityBoundingSet"] == ""
    assert service["ProtectSystem"] == "strict"
    assert int(service["TimeoutStopSec"]) > 30  # what the door takes to drain
