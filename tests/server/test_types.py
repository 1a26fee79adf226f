"""Numbers that neither JSON nor numpy has: bfloat16, from a module to what clients get of it."""

import asyncio
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
import tritonclient.grpc.aio as triton_grpc
import tritonclient.http.aio as triton_http
from torch import Tensor, nn

from latebind.domain.errors import QueryError
from latebind.domain.sizes import Dim
from latebind.engine.engines import probe
from latebind.program.build import build_program
from latebind.program.metadata import read_model
from latebind.queries.file.definition import read_query
from latebind.repository.directory import ModelDirectory
from latebind.server.gateway import Array, as_numbers
from tests.building import made_once
from tests.server.real import real_frontend, until_all_is_free

LONGEST = 6


class Halves(nn.Module):
    """`(B, L, 4) bfloat16` in and out, each word by itself."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 3).bfloat16()

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(x)) - 0.5


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_once(tmp_path_factory, "types", built)


def built(folder: Path) -> None:
    how = {"backends": ["eager"], "min_stage_seconds": 0.0, "max_overhead": None, "max_batch": 4}
    for name, dims in (("fixed", ()), ("sized", (Dim("L", 1, LONGEST),))):
        build_program(
            Halves(),
            {"x": torch.randn(2, 3, 4).bfloat16()},
            directory=folder / name,
            name=name,
            dims=dims,
            sizes={"x": ["L", 4]} if dims else None,
            **how,  # type: ignore[arg-type]
        )


def bits(tensor: Tensor) -> Array:
    return tensor.view(torch.uint16).numpy()


def test_bits_of_bfloat16_stand_for_its_numbers() -> None:
    tensor = torch.tensor([0.0, -0.0, 1.0, -2.5, 3e38, float("inf"), 1e-40]).bfloat16()
    np.testing.assert_array_equal(as_numbers(bits(tensor), "bfloat16"), tensor.float().numpy())


def test_bfloat16_goes_in_and_out_as_the_module_has_it(models: Path) -> None:
    async def test() -> None:
        async with real_frontend(models, grpc_port=0) as (client, frontend):
            await probe(client, ["fixed", "sized"])
            module = Halves()
            async with (
                triton_http.InferenceServerClient(f"127.0.0.1:{frontend.port}") as http,
                triton_grpc.InferenceServerClient(f"127.0.0.1:{frontend.grpc_port}") as grpc,
            ):
                told = await http.get_model_metadata("sized")
                assert told["inputs"] == [{"name": "x", "datatype": "BF16", "shape": [-1, -1, 4]}]
                for name, length in (("fixed", 3), ("sized", 1), ("sized", LONGEST)):
                    rows = torch.randn(2, length, 4).bfloat16()
                    with torch.inference_mode():
                        wanted = module(rows).float().numpy()
                    for kind, stub in ((triton_http, http), (triton_grpc, grpc)):
                        given = kind.InferInput("x", [2, length, 4], "BF16")
                        given.set_data_from_numpy(rows.float().numpy().astype(ml_dtypes.bfloat16))
                        (output,) = (await http.get_model_metadata(name))["outputs"]
                        found = (await stub.infer(name, [given])).as_numpy(output["name"]).astype(np.float32)
                        np.testing.assert_allclose(found, wanted, rtol=2**-6, atol=2**-6)
                        best = kind.InferRequestedOutput(output["name"], class_count=1)
                        told = (await stub.infer(name, [given], outputs=[best])).as_numpy(output["name"])
                        for text, row in zip(told[:, 0], wanted, strict=True):
                            assert float(text.split(b":")[0]) == pytest.approx(row.max(), rel=2**-6)
            await until_all_is_free(client)

    asyncio.run(test())


def test_a_query_does_not_compute_with_bfloat16(models: Path, tmp_path: Path) -> None:
    file = tmp_path / "asks.query.toml"
    file.write_text('[nodes.first]\nmodels = ["fixed"]\n[outputs]\ny = "first.output"\n')
    spec = read_model(ModelDirectory.open(models / "fixed")).spec()
    with pytest.raises(QueryError, match="bfloat16"):
        read_query(file, {"fixed": spec}, {})
