"""Settings that make no sense are refused where they are made."""

from math import nan

import msgspec
import pytest
from msgspec.structs import fields, replace

from latebind.domain.config import ServeConfig
from latebind.domain.errors import ConfigError

PARTS = {part.name: part.default for part in fields(ServeConfig)}
NUMBERS = [(part, one.name) for part, usual in PARTS.items() for one in fields(usual) if one.type is float]


@pytest.mark.parametrize(("part", "name"), NUMBERS)
def test_what_is_not_a_number_is_refused(part: str, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{part}\.{name} is nan"):
        replace(PARTS[part], **{name: nan})
    with pytest.raises(ConfigError, match=f"{name} is nan"):
        msgspec.toml.decode(f"[{part}]\n{name} = nan\n", type=ServeConfig)
