"""Finds a policy by name: one that the package has, or a class of one's own by its dotted path. Pure."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from latebind.domain.errors import ConfigError


def find(key: str, name: str, known: Mapping[str, str]) -> Any:
    """Return what `name` stands for: one of the `known` names, or `package.module:Name`, which is imported.

    Each process that decides imports it for itself, so a path and not an object is what configurations hold. `key` is
    the setting that has the name, for messages. Raises `ConfigError` where there is nothing of this name.
    """
    path = known.get(name, name)
    module, _, attribute = path.partition(":")
    if not attribute:
        raise ConfigError(
            f"{key} is {name!r}: take {' or '.join(known)}, or name a class of your own as package.module:Class"
        )
    try:
        return getattr(import_module(module), attribute)
    except ImportError as error:
        raise ConfigError(f"{key} is {name!r}, which cannot be imported ({error}): is it on PYTHONPATH?") from error
    except AttributeError:
        raise ConfigError(f"{key} is {name!r}: {module} has no {attribute}") from None
