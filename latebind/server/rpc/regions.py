"""Shared memory of clients over gRPC: register regions, list them, unregister them."""

from latebind.server.rpc.context import Caller, Context
from latebind.server.rpc.messages import Message, from_json, service_pb2
from latebind.server.shared_memory import CudaRegions, Registration

CUDA = CudaRegions()


async def status(context: Context, request: Message, caller: Caller) -> Message:
    """`SystemSharedMemoryStatus`, of all regions where it names none."""
    del caller
    found = {str(region["name"]): region for region in context.service.regions.status(request.name or None)}
    return from_json({"regions": found}, service_pb2.SystemSharedMemoryStatusResponse())


async def register(context: Context, request: Message, caller: Caller) -> Message:
    """`SystemSharedMemoryRegister`."""
    del caller
    context.service.regions.register(request.name, Registration(request.key, request.byte_size, request.offset))
    return service_pb2.SystemSharedMemoryRegisterResponse()


async def unregister(context: Context, request: Message, caller: Caller) -> Message:
    """`SystemSharedMemoryUnregister`, of all regions where it names none."""
    del caller
    context.service.regions.unregister(request.name or None)
    return service_pb2.SystemSharedMemoryUnregisterResponse()


async def cuda_status(context: Context, request: Message, caller: Caller) -> Message:
    """`CudaSharedMemoryStatus`."""
    del context, caller
    CUDA.status(request.name or None)
    return service_pb2.CudaSharedMemoryStatusResponse()


async def cuda_register(context: Context, request: Message, caller: Caller) -> Message:
    """`CudaSharedMemoryRegister`."""
    del context, caller
    CUDA.register(request.name)
    return service_pb2.CudaSharedMemoryRegisterResponse()


async def cuda_unregister(context: Context, request: Message, caller: Caller) -> Message:
    """`CudaSharedMemoryUnregister`, which some clients call whatever they use."""
    del context, caller
    CUDA.unregister(request.name or None)
    return service_pb2.CudaSharedMemoryUnregisterResponse()
