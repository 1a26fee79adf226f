"""The shared memory of clients: what they register, what is there, and what they are done with."""

import msgspec

from latebind.server.rest.desk import Desk
from latebind.server.rest.request import Reply, Request, json_reply, read_json
from latebind.server.shared_memory import CudaRegions, Registration

CUDA = CudaRegions()


class CudaRegistration(msgspec.Struct):
    """The JSON of a CUDA registration, of which nothing is read."""


async def status(desk: Desk, request: Request) -> Reply:
    """`GET /v2/systemsharedmemory[/region/NAME]/status`."""
    return json_reply(desk.service.regions.status(request.region))


async def register(desk: Desk, request: Request) -> Reply:
    """`POST /v2/systemsharedmemory/region/NAME/register`."""
    assert request.region is not None
    desk.service.regions.register(request.region, await read_json(request, Registration, desk.limits))
    return Reply()


async def unregister(desk: Desk, request: Request) -> Reply:
    """`POST /v2/systemsharedmemory[/region/NAME]/unregister`."""
    desk.service.regions.unregister(request.region)
    return Reply()


async def cuda_status(desk: Desk, request: Request) -> Reply:
    """`GET /v2/cudasharedmemory[/region/NAME]/status`."""
    del desk
    return json_reply(CUDA.status(request.region))


async def cuda_register(desk: Desk, request: Request) -> Reply:
    """`POST /v2/cudasharedmemory/region/NAME/register`."""
    assert request.region is not None
    await read_json(request, CudaRegistration, desk.limits)
    CUDA.register(request.region)
    return Reply()


async def cuda_unregister(desk: Desk, request: Request) -> Reply:
    """`POST /v2/cudasharedmemory[/region/NAME]/unregister`."""
    del desk
    CUDA.unregister(request.region)
    return Reply()
