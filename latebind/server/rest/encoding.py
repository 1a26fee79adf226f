"""The body of an infer reply: JSON, most of which is the same for every reply to a call, then binary data."""

from typing import Final

import orjson

from latebind.domain.model import ModelSpec
from latebind.server.calls import Call
from latebind.server.gateway import Answer
from latebind.server.rest.infer_json import Encoded
from latebind.server.results import json_values, raw_output, result
from latebind.server.templates import ReplyParameters, Template, template_of

NUMPY: Final = orjson.OPT_SERIALIZE_NUMPY


def encode(spec: ModelSpec, answer: Answer, call: Call, reply_parameters: ReplyParameters) -> Encoded:
    """Return the body of the reply to a call made for `spec`, with the outputs that its client wants."""
    template = template_of(spec, answer, call, reply_parameters, _template)
    text, pieces = template[0], 1
    blobs = list[bytes | memoryview]()
    for wanted in call.wanted:
        if wanted.place is not None:
            wanted.place.write(result(wanted, answer).raw())
        elif wanted.binary:
            blobs.append(raw_output(wanted, answer))
        else:
            text += orjson.dumps(json_values(wanted, answer), option=NUMPY) + template[pieces]
            pieces += 1
    return Encoded(b"".join((text, *blobs)), len(text)) if blobs else Encoded(text)


def _template(spec: ModelSpec, answer: Answer, call: Call, reply_parameters: ReplyParameters) -> Template:
    """Return the pieces of JSON before, between and after the data of the outputs that are sent as JSON."""
    reply: dict[str, object] = {"model_name": spec.name, "model_version": spec.version}
    if call.id:
        reply["id"] = call.id
    if parameters := reply_parameters(spec, answer):
        reply["parameters"] = parameters
    pieces, before = list[bytes](), orjson.dumps(reply)[:-1] + b',"outputs":['
    for wanted in call.wanted:
        found = result(wanted, answer)
        entry: dict[str, object] = {"name": wanted.tensor.name, "datatype": found.datatype, "shape": found.shape}
        if wanted.place is not None:  # nothing more: the C++ client takes all parameters for binary data
            before += orjson.dumps(entry) + b","
        elif wanted.binary:
            entry["parameters"] = {"binary_data_size": found.raw().nbytes}
            before += orjson.dumps(entry) + b","
        else:
            pieces.append(before + orjson.dumps(entry)[:-1] + b',"data":')
            before = b"},"
    return (*pieces, before.removesuffix(b",") + b"]}")
