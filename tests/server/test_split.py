"""Several versions of a model at once, over HTTP and gRPC: shares, keys, shadows, and changes without a lost call."""

import asyncio
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import torch

from latebind.domain.config import EngineConfig, FrontendConfig, PolicyConfig
from latebind.domain.errors import InvalidRequest, NotFound
from latebind.domain.model import About, Task, TensorSpec
from latebind.domain.split import Chooser, Split
from latebind.engine.catalogue import Catalogue
from latebind.engine.engines import Engines
from latebind.engine.order import EngineOrder
from latebind.repository.listing import Selection
from latebind.server.frontend import Frontend
from latebind.server.rest.tasks.asking import chosen
from latebind.server.service import Service
from tests.engine.started import ask
from tests.forked import FORKS
from tests.server.arithmetic import SPECS_BY_NAME, Arithmetic
from tests.server.shelf import Shelf
from tests.server.words import RAW
from tests.versions import QUERY, WIDTH, add_version, spoil

FACTORS = {1: 2.0, 2: 3.0, 3: -1.0}  # what each version multiplies by; the third is greatest at another place
KEY = "x-user"
ROW = {"name": "x", "shape": [1, WIDTH], "datatype": "FP32", "data": [float(number) for number in range(1, WIDTH + 1)]}


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    torch.set_num_threads(1)
    for version, factor in FACTORS.items():
        add_version(tmp_path, "scale", version, factor)
    (tmp_path / "asking.query.toml").write_text(QUERY)
    return tmp_path


class Client:
    """Asks a server, and knows what it answered."""

    def __init__(
        self, session: aiohttp.ClientSession, frontend: Frontend, engines: Engines, catalogue: Catalogue
    ) -> None:
        self.session = session
        self.frontend = frontend
        self.engines = engines
        self.catalogue = catalogue

    async def ask(self, path: str = "scale", key: str = "") -> str:
        """Return the version that answered, having seen that its answer is that version's."""
        headers = {KEY: key} if key else {}
        async with self.session.post(f"/v2/models/{path}/infer", json={"inputs": [ROW]}, headers=headers) as reply:
            told = await reply.json()
            assert reply.status == 200, told
        assert told["model_name"] == path.partition("/")[0]
        if told["model_name"] == "scale":
            assert told["outputs"][0]["data"][0] == FACTORS[int(told["model_version"])]
        return str(told["model_version"])

    async def load(self, **parameters: str) -> tuple[int, str]:
        """Load the model with these parameters; return the status and what was said."""
        async with self.session.post("/v2/repository/models/scale/load", json={"parameters": parameters}) as reply:
            return reply.status, await reply.text()

    async def json(self, path: str, method: str = "get") -> Any:
        async with self.session.request(method, path) as reply:
            assert reply.status == 200
            return await reply.json()

    async def figures(self, name: str) -> dict[tuple[str, ...], float]:
        """Return what `/metrics` says under a name, by its labels."""
        async with self.session.get("/metrics") as reply:
            lines = [line for line in (await reply.text()).splitlines() if line.startswith(f"{name}{{")]
        found = {}
        for line in lines:
            labels, _, value = line.removeprefix(f"{name}{{").rpartition("} ")
            found[tuple(sorted(labels.split(",")))] = float(value)
        return found


@asynccontextmanager
async def serving(shop: Path, split: str) -> AsyncIterator[Client]:
    selection = Selection(shop, splits=[Split.read(split)])
    engines = await Engines.start(EngineOrder((), EngineConfig(), PolicyConfig()), selection.first(), FORKS)
    config = FrontendConfig(port=0, grpc_port=0, manage=True, split_by=KEY, deadline=60.0)
    catalogue = Catalogue(engines, selection)
    try:
        async with Frontend(engines, config, catalogue=catalogue) as frontend:
            url, patience = f"http://127.0.0.1:{frontend.port}", aiohttp.ClientTimeout(total=60)
            async with aiohttp.ClientSession(url, timeout=patience) as session:
                yield Client(session, frontend, engines, catalogue)
    finally:
        await engines.close()


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 300))


def test_versions_answer_by_their_shares_by_key_and_by_name(shop: Path) -> None:
    async def test() -> None:
        async with serving(shop, "scale=1:75,2:25") as client:
            assert Counter([await client.ask() for _ in range(40)]) == {"1": 30, "2": 10}
            users = {f"user-{number}": await client.ask(key=f"user-{number}") for number in range(20)}
            assert set(users.values()) == {"1", "2"}
            for user, version in users.items():
                assert [await client.ask(key=user) for _ in range(3)] == [version] * 3
            assert [await client.ask("scale/versions/2") for _ in range(3)] == ["2"] * 3
            assert await client.ask("scale/versions/1") == "1"
            assert await client.ask("asking") == "1"
            assert await client.catalogue.reload() == []  # there is a version 3, and the split says 1 and 2
            async with client.session.post("/v2/models/scale/versions/3/infer", json={"inputs": [ROW]}) as reply:
                assert reply.status == 404

    run(test())


def test_clients_are_told_of_one_model_with_its_versions(shop: Path) -> None:
    async def test() -> None:
        async with serving(shop, "scale=1:75,2:25") as client:
            assert (await client.json("/v2/models/scale"))["versions"] == ["1", "2"]
            assert (await client.json("/v2/models/scale/versions/2"))["name"] == "scale"
            assert (await client.json("/v2/models/scale/versions/2/config"))["name"] == "scale"
            assert await client.json("/v2/models") == {"models": ["asking", "scale"]}
            listed = await client.json("/v2/repository/index", "post")
            assert [(one["name"], one["version"], one["state"]) for one in listed] == [
                ("asking", "1", "READY"),
                ("scale", "1", "READY"),
                ("scale", "2", "READY"),
            ]
            assert await client.ask("scale/versions/2") == "2"
            stats = (await client.json("/v2/models/scale/versions/2/stats"))["model_stats"]
            assert [(one["name"], one["version"], one["inference_count"]) for one in stats] == [("scale", "2", 1)]
            shares = await client.figures("latebind_split_share")
            assert shares == {('model="scale"', 'version="1"'): 0.75, ('model="scale"', 'version="2"'): 0.25}

    run(test())


def test_over_grpc_it_is_the_same(shop: Path) -> None:
    grpc = pytest.importorskip("tritonclient.grpc.aio")

    async def test() -> None:
        async with (
            serving(shop, "scale=1:50,2:50") as client,
            grpc.InferenceServerClient(f"127.0.0.1:{client.frontend.grpc_port}") as triton,
        ):
            tensor = grpc.InferInput("x", [1, WIDTH], "FP32")
            tensor.set_data_from_numpy(torch.ones(1, WIDTH).numpy())

            async def version(**how: Any) -> str:
                answer = await triton.infer("scale", [tensor], **how)
                told = answer.get_response()
                assert told.model_name == "scale"
                assert answer.as_numpy(told.outputs[0].name)[0, 0] == FACTORS[int(told.model_version)]
                return str(told.model_version)

            assert Counter([await version() for _ in range(10)]) == {"1": 5, "2": 5}
            assert [await version(model_version="2") for _ in range(2)] == ["2", "2"]
            keyed = {user: await version(headers={KEY: user}) for user in map(str, range(8))}
            assert {user: await version(headers={KEY: user}) for user in map(str, range(8))} == keyed
            await triton.load_model("scale", config=None, files=None)  # all of its versions anew
            assert Counter([await version() for _ in range(10)]) == {"1": 5, "2": 5}

    run(test())


def test_a_hundred_changes_under_load_lose_no_call_and_keep_the_shares(shop: Path) -> None:
    splits = ["1:50,2:50", "1:90,2:10", "1:100,2:0", "2:75,1:25", "1:100,2:shadow", "2", "1:20,3:80", "1"]

    async def test() -> None:
        async with serving(shop, "scale=1:90,2:10") as client:
            over, more = False, asyncio.Event()
            answered = Counter[str]()

            async def go_on() -> None:
                while not over:
                    answered[await client.ask()] += 1
                    more.set()

            clients = [asyncio.create_task(go_on()) for _ in range(4)]
            for number in range(100):
                split = splits[0] if number % 5 else splits[number // 5 % len(splits)]  # most change shares alone
                status, said = await client.load(split=split)
                assert status == 200, said
                shares = Split.of("scale", split).shares
                before = answered.copy()
                async with asyncio.timeout(60):
                    while (asked := answered.total() - before.total()) < 40:
                        more.clear()
                        await more.wait()
                for version, share in shares.items():  # some were under way as it changed
                    assert abs((answered - before)[version] - share / 100 * asked) <= len(clients) + 1
            over = True
            await asyncio.gather(*clients)
            requests = await client.figures("latebind_requests_total")
            assert all(value == 0 for labels, value in requests.items() if 'outcome="answered"' not in labels)

    run(test())


def test_a_copy_of_a_version_is_told_from_it(shop: Path) -> None:
    shutil.copytree(shop / "scale" / "1", shop / "scale" / "4")

    async def test() -> None:
        async with serving(shop, "scale=4:50,1:50") as client:
            async with client.session.post("/v2/models/scale/versions/4/infer", json={"inputs": [ROW]}) as reply:
                assert (await reply.json())["model_version"] == "4"
            assert await client.ask("scale/versions/1") == "1"
            assert (await client.json("/v2/models/scale"))["versions"] == ["1", "4"]

    run(test())


def test_who_was_given_a_version_that_is_let_go_is_answered_by_the_main_one(shop: Path) -> None:
    async def test() -> None:
        async with serving(shop, "scale=1:50,2:50") as client:
            assert await ask(client.engines, "scale:2") == FACTORS[2]
            assert (await client.load(split="1"))[0] == 200
            assert await ask(client.engines, "scale:2") == FACTORS[1]
            with pytest.raises(NotFound, match="other:2"):
                await ask(client.engines, "other:2")

    run(test())


def test_where_a_version_is_not_available_the_main_one_answers() -> None:
    gateway = Arithmetic()
    shelf = Shelf(gateway)
    shelf.splits["scalar"] = Chooser(Split.of("scalar", "1:50,2:50"))
    service = Service(gateway, catalogue=shelf)
    assert [service.chosen("scalar").name for _ in range(4)] == ["scalar"] * 4


def test_a_model_in_two_versions_is_one_to_a_call_of_texts_that_names_none() -> None:
    outputs = (TensorSpec("embedding", "float32", (2,)),)
    embeds = replace(SPECS_BY_NAME["reads"], outputs=outputs, about=About(Task.EMBED, RAW))
    gateway = Arithmetic(embeds, replace(embeds, name="reads:2", version="2"), SPECS_BY_NAME["scalar"])
    shelf = Shelf(gateway)
    shelf.splits["reads"] = Chooser(Split.of("reads", "1:50,2:50"))
    service = Service(gateway, catalogue=shelf)
    assert [chosen(service, None, Task.EMBED).name for _ in range(4)] == ["reads", "reads:2"] * 2
    with pytest.raises(InvalidRequest, match=r"of which there are reads$"):
        chosen(service, "scalar", Task.EMBED)


def test_a_promoted_version_is_the_model_and_stays_it(shop: Path) -> None:
    async def test() -> None:
        async with serving(shop, "scale=1:90,2:10") as client:
            assert (await client.load(split="2"))[0] == 200
            assert {await client.ask() for _ in range(5)} == {"2"}
            assert (await client.json("/v2/models/scale"))["versions"] == ["2"]
            assert await client.catalogue.reload() == []
            assert {await client.ask() for _ in range(5)} == {"2"}
            assert (await client.load(split="1"))[0] == 200
            assert await client.ask() == "1"
            async with client.session.post(
                "/v2/repository/models/scale/unload", json={"parameters": {"unload_dependents": True}}
            ) as reply:
                assert reply.status == 200
            assert (await client.json("/v2/repository/index", "post"))[-1]["state"] == "UNAVAILABLE"

    run(test())


@pytest.mark.parametrize(
    ("parameters", "status", "says"),
    [
        ({"split": "1:90,2:20"}, 400, "comes to 110 %"),
        ({"split": "1:90,9:10"}, 404, "has no version '9'"),
        ({"split": "1", "version": "1"}, 400, "no version"),
    ],
)
def test_what_cannot_be_split_is_refused_and_all_stays(
    shop: Path, parameters: dict[str, str], status: int, says: str
) -> None:
    async def test() -> None:
        async with serving(shop, "scale=1:50,2:50") as client:
            found, said = await client.load(**parameters)
            assert found == status
            assert says in said
            assert Counter([await client.ask() for _ in range(10)]) == {"1": 5, "2": 5}

    run(test())


def test_a_faulty_version_does_not_come_up_and_all_stays(shop: Path) -> None:
    spoil(shop / "scale" / "3")

    async def test() -> None:
        async with serving(shop, "scale=1:50,2:50") as client:
            status, said = await client.load(split="1:50,3:50")
            assert status == 400, said
            assert Counter([await client.ask() for _ in range(10)]) == {"1": 5, "2": 5}

    run(test())


def test_a_model_that_is_not_there_is_told_at_the_start(shop: Path) -> None:
    with pytest.raises(NotFound, match="no model 'scal' is served"):
        Selection(shop, splits=[Split.read("scal=1")]).first()
    with pytest.raises(NotFound, match="no version '7'"):
        Selection(shop, splits=[Split.read("scale=1:50,7:50")]).first()


def test_shadows_are_not_asked_for_more_than_runs_beside(shop: Path) -> None:
    async def test() -> None:
        async with serving(shop, "scale=1:100,2:shadow") as client:
            await asyncio.gather(*[client.ask() for _ in range(50)])
            rows: dict[tuple[str, ...], float] = {}
            async with asyncio.timeout(60):
                while sum(rows.values()) < 50:
                    rows = await client.figures("latebind_shadow_rows_total")
            assert rows['model="scale"', 'outcome="passed_over"', 'version="2"'] >= 40
            assert rows['model="scale"', 'outcome="same"', 'version="2"'] >= 1

    run(test())


def test_shadows_are_asked_aside_and_compared(shop: Path) -> None:
    async def test() -> None:
        async with serving(shop, "scale=1:100,2:shadow,3:shadow") as client:

            async def outcomes(version: int) -> dict[str, float]:
                found = await client.figures("latebind_shadow_rows_total")
                return {labels[1]: rows for labels, rows in found.items() if labels[2] == f'version="{version}"'}

            assert {await client.ask() for _ in range(5)} == {"1"}
            async with asyncio.timeout(60):
                while not ((await outcomes(2)).get('outcome="same"') and (await outcomes(3)).get('outcome="other"')):
                    assert await client.ask() == "1"
            for version, other in ((2, "other"), (3, "same")):
                assert not (await outcomes(version)).get(f'outcome="{other}"')
                assert not (await outcomes(version)).get('outcome="failed"')
            told = await client.figures("latebind_shadow_fidelity")
            of = {(labels[0], labels[2]): value for labels, value in told.items()}
            assert len(of) == 6
            for number, wanted in (("2", 1.0), ("3", 0.0)):
                share, lower, upper = (of[f'bound="{one}"', f'version="{number}"'] for one in ("", "lower", "upper"))
                assert share == wanted
                assert 0.0 <= lower <= share <= upper <= 1.0
                assert 0.0 < upper - lower < 1.0  # of a few rows nobody is sure

    run(test())
