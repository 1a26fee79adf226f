"""Shared memory of clients over HTTP: register regions, list them, unregister them."""

import msgspec

from latebind.server.rest.context import Context
from latebind.server.rest.request import Reply, Request, json_reply, read_json
from latebind.server.shared_memory import CudaRegions, Registration

CUDA = CudaRegions()


class CudaRegistration(msgspec.Struct):
    """The JSON of a CUDA registration; none of its fields is read."""


async def status(context: Context, request: Request) -> Reply:
    """`GET /v2/systemsharedmemory[/region/NAME]/status`."""
    return json_reply(context.service.regions.status(request.region))


async def register(context: Context, request: Request) -> Reply:
    """`POST /v2/systemsharedmemory/region/NAME/register`."""
    assert request.region is not None
    context.service.regions.register(request.region, await read_json(request, Registration, context.limits))
    return Reply()


async def unregister(context: Context, request: Request) -> Reply:
    """`POST /v2/systemsharedmemory[/region/NAME]/unregister`."""
    context.service.regions.unregister(request.region)
    return Reply()


async def cuda_status(context: Context, request: Request) -> Reply:
    """`GET /v2/cudasharedmemory[/region/NAME]/status`."""
    del context
    return json_reply(CUDA.status(request.region))


async def cuda_register(context: Context, request: Request) -> Reply:
    """`POST /v2/cudasharedmemory/region/NAME/register`."""
    assert request.region is not None
    await read_json(request, CudaRegistration, context.limits)
    CUDA.register(request.region)
    return Reply()


async def cuda_unregister(context: Context, request: Request) -> Reply:
    """`POST /v2/cudasharedmemory[/region/NAME]/unregister`."""
    del context
    CUDA.unregister(request.region)
    return Reply()
