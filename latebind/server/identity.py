"""The id of a request in logs, errors and traces: the client's own if that is safe to show, else a new one."""

import re
import secrets

HARMLESS = re.compile(r"[A-Za-z0-9._:/@+=-]{1,128}", re.ASCII)  # nothing that could forge a line or a label


def request_id(given: str = "") -> str:
    """Return the client's id for its request, or a new one if it gave none or one that is not safe to show."""
    return given if HARMLESS.fullmatch(given) else secrets.token_hex(8)
