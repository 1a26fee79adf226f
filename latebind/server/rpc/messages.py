"""The protocol's protobuf messages, from the package of its clients. Imported only if gRPC is on."""

from typing import Any

from latebind.domain.errors import ConfigError

try:
    import grpc
    from google.protobuf import json_format
    from google.protobuf.message import DecodeError
    from google.protobuf.message_factory import GetMessageClass
    from grpc_health.v1 import health_pb2
    from tritonclient.grpc import service_pb2
except ImportError as missing:
    raise ConfigError(
        f"server.grpc_port: gRPC needs missing packages ({missing.name}): "
        "pip install 'latebind[grpc]', or leave --grpc-port out"
    ) from missing

Message = Any  # one of those below

INFERENCE = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"]

__all__ = ["DecodeError", "grpc", "health_pb2", "service_pb2"]


def message_class(described: Any) -> Message:
    """Return the class of messages of this kind."""
    return GetMessageClass(described)


def from_json(value: object, message: Message) -> Message:
    """Fill a message from its JSON form and return it; unknown fields are ignored."""
    return json_format.ParseDict(value, message, ignore_unknown_fields=True)
