"""The application as a Serve config file names it: what is wrong in its arguments is told by name."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from threading import get_ident

import pytest

from latebind.domain.errors import ConfigError

pytest.importorskip("ray")

from latebind.cluster.application import check
from latebind.cluster.declared import application
from latebind.cluster.deployments import looking
from latebind.domain.config import ServeConfig
from latebind.engine.cores import fitted


def arguments(folder: Path, *, secret: str = "s" * 64, config: str = "") -> dict[str, object]:
    (folder / "secret").write_text(secret)
    (folder / "latebind.toml").write_text(config)
    return {
        "repository": str(folder),
        "secret_file": str(folder / "secret"),
        "config": str(folder / "latebind.toml"),
    }


def test_an_application_is_an_ingress_before_replicas_on_a_node_of_its_kind(tmp_path: Path) -> None:
    found = application(arguments(tmp_path, config='[cluster]\nreplicas = 3\ncpus = 2.0\ningress = "frontend"\n'))
    ingress = found._bound_deployment
    (_, replicas) = ingress.init_args
    assert ingress.ray_actor_options["resources"] == {"frontend": 0.001}
    assert replicas._bound_deployment.num_replicas == 3
    assert replicas._bound_deployment.ray_actor_options["num_cpus"] == 2.0


@pytest.mark.parametrize(
    ("engine", "workers"), [("", 3), ("[engine]\nthreads = 3\n", 1), ("[engine]\nworkers = 1\n", 1)]
)
def test_a_replica_has_workers_for_the_cores_that_it_asks_for(engine: str, workers: int, tmp_path: Path) -> None:
    found = application(arguments(tmp_path, config=f"[cluster]\ncpus = 4.0\n{engine}"))
    (declared, _) = found._bound_deployment.init_args
    assert fitted(declared.settings, declared.explicit, on="ray").engine.worker_count == workers


@pytest.mark.parametrize(
    ("changes", "given", "told"),
    [
        ({"repo": "x"}, {}, "unknown field `repo`"),
        ({"repository": 3}, {}, "repository"),
        ({"config": "/nowhere.toml"}, {}, "/nowhere.toml cannot be read"),
        ({"secret_file": "/nowhere"}, {}, "/nowhere cannot be read"),
        ({}, {"secret": ""}, "has no secret"),
        ({}, {"secret": "short"}, "has no secret"),
        ({}, {"secret": "s" * 64 + "\r\nx-header: 1"}, "has no secret"),
        ({}, {"secret": "ü" * 64}, "has no secret"),
        ({}, {"config": "[engine]\ncores = [1]\n"}, "^--cores does not go with --on ray: .+"),
        ({}, {"config": "[server]\ndashboard = true\n"}, "^--dashboard does not go with --on ray: .+"),
        ({}, {"config": "[enigne]\n"}, "config file, are wrong"),
        ({}, {"config": "[cluster]\nreplicas = 0\n"}, "cluster.replicas"),
        ({}, {"config": "[cluster]\nreplicas = 3\nmax_replicas = 2\n"}, "cluster"),
    ],
)
def test_what_is_wrong_is_told(tmp_path: Path, changes: dict[str, object], given: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        application({**arguments(tmp_path, **given), **changes})


def test_options_that_make_no_sense_on_a_cluster_are_refused() -> None:
    check("ray", ServeConfig())
    with pytest.raises(ConfigError, match="--event-log"):
        check("ray", ServeConfig(), event_log=True)
    with pytest.raises(ConfigError, match="choose ray"):
        check("mars", ServeConfig())


def test_the_ingress_hears_of_replicas_in_its_own_thread() -> None:
    """Ray's router runs in a thread of its own: there, a list that calls go through would change under them."""

    class Handle:
        @asynccontextmanager
        async def choose_replica(
            self, told: Callable[[list[object]], object], *, _reserve: bool
        ) -> AsyncIterator[None]:
            await asyncio.to_thread(told, [1, 2])
            yield

    async def heard() -> list[tuple[object, int]]:
        found: list[tuple[object, int]] = []
        await looking(Handle())(lambda replicas: found.append((replicas, get_ident())))
        return found

    assert asyncio.run(heard()) == [([1, 2], get_ident())]
