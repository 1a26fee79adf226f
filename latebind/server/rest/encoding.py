"""The body of an infer reply: JSON, then the binary data of the outputs that the client wants in this form."""

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import orjson

from latebind.domain.model import ModelSpec
from latebind.server.calls import Call
from latebind.server.gateway import Answer
from latebind.server.rest.infer_json import Encoded
from latebind.server.results import result

NUMPY: Final = orjson.OPT_SERIALIZE_NUMPY
ReplyParameters: TypeAlias = Callable[[ModelSpec, Answer], Mapping[str, object]]


def encode(spec: ModelSpec, answer: Answer, call: Call, reply_parameters: ReplyParameters) -> Encoded:
    """Return the body of the reply to a call made for `spec`, with the outputs that its client wants."""
    spec = answer.spec or spec
    reply: dict[str, object] = {"model_name": spec.name, "model_version": spec.version}
    if call.id:
        reply["id"] = call.id
    if parameters := reply_parameters(spec, answer):
        reply["parameters"] = parameters
    entries = list[dict[str, object]]()
    blobs = list[bytes | memoryview]()
    for wanted in call.wanted:
        found = result(wanted, answer)
        entry: dict[str, object] = {"name": wanted.tensor.name, "datatype": found.datatype, "shape": found.shape}
        if wanted.place is not None:  # nothing more: the C++ client takes all parameters for binary data
            wanted.place.write(found.raw())
        elif wanted.binary:
            blobs.append(found.raw())
            entry["parameters"] = {"binary_data_size": found.raw().nbytes}
        else:
            entry["data"] = found.flat()
        entries.append(entry)
    reply["outputs"] = entries
    text = orjson.dumps(reply, option=NUMPY)
    return Encoded(b"".join((text, *blobs)), len(text)) if blobs else Encoded(text)
