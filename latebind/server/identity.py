"""By what name a request goes in logs, errors and traces: the client's where that is harmless, else one of ours."""

import re
import secrets

HARMLESS = re.compile(r"[A-Za-z0-9._:/@+=-]{1,128}", re.ASCII)  # nothing that could forge a line or a label


def request_id(given: str = "") -> str:
    """Return the client's id for its request, or a new one where it gave none that can be shown as it is."""
    return given if HARMLESS.fullmatch(given) else secrets.token_hex(8)
