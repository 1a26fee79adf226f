"""The application for a Serve config file: `import_path: latebind.cluster.declared:application`.

So KubeRay, or `serve deploy`, starts what `latebind serve --on ray` starts, with a file for the options.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from latebind.cluster.application import bound, check
from latebind.cluster.replica import Application
from latebind.domain.config import ServeConfig
from latebind.domain.errors import ConfigError
from latebind.repository.mirror import open_selection

LEAST_SECRET = 32  # bytes


class Arguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The `args` of the application in that file.

    `repository` is a folder that all nodes have, or a URL; `models` are those to serve, by default all. `config` is a
    TOML file of `latebind serve`. `secret_file` holds the secret that ingress and replicas share, 32 bytes or more.
    """

    repository: str
    secret_file: str
    models: tuple[str, ...] = ()
    config: str = ""


def application(args: Mapping[str, Any]) -> Any:
    """Return the application for Ray Serve. Raises `ConfigError`, which names what is wrong."""
    try:
        found = msgspec.convert(dict(args), Arguments)
        text = _read(found.config) if found.config else b""
        settings = msgspec.toml.decode(text, type=ServeConfig)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"the arguments of the application, or its config file, are wrong: {error}") from error
    check("ray", settings)
    secret = _read(found.secret_file).decode("ascii", "replace").strip()
    if len(secret) < LEAST_SECRET or not secret.isalnum():
        raise ConfigError(f"{found.secret_file} has no secret: write one with `openssl rand -hex 32`")
    selection, file = open_selection(found.repository, found.models, settings.repository), msgspec.toml.decode(text)
    return bound(Application(selection, settings, secret, explicit=tuple(file.get("engine", {}))))


def _read(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
