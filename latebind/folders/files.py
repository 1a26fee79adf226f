"""A folder as Hugging Face saves a model: which of its files are read, and what is refused because of them.

The files that are read, configurations, vocabularies and safetensors, are linked one by one into a folder of their own
(`taken`). So code that reads it cannot find anything else that came with the model: no code, no pickle, no adapter of
another model.
"""

import json
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf, prod
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from latebind.domain.errors import ConfigError
from latebind.repository.directory import NAME

TEXT, PAIR, LABEL = "text", "text_pair", "label"  # the columns, and the raw inputs of texts
HUB = "hf:"  # before a name at the hub
CONFIG, MODULES = "config.json", "modules.json"
WEIGHTS, SHARDS = "model.safetensors", "model.safetensors.index.json"
ENDINGS = (".json", ".txt", ".model", ".spm", ".safetensors")  # of what is read
PART = re.compile(r"[0-9]{1,2}_[A-Za-z]{1,60}")  # a folder of sentence-transformers, such as 1_Pooling
ADAPTER = "adapter_config.json"  # of weights that belong to another model
PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
CODE = "auto_map"  # under which a configuration names code of its folder
QUANTIZED = ("quantization_config", "compression_config")
MOST_JSON_BYTES = 16 << 20  # of a configuration
MOST_TEXT_BYTES = 64 << 20  # of a vocabulary
MOST_FILES = 1_000
MOST_DEEP = 1_000  # layers
MOST_NUMBER = 1 << 24  # of whatever makes a network large
LAYERS = re.compile(r"layers|depth|blocks|groups")
BASES = ("rope", "partial_rotary", "max_length")  # of frequencies, and what only generation has
SAVE = "save it again with `model.save_pretrained(FOLDER)`"


@dataclass(frozen=True, slots=True)
class Taken:
    """What is read of a folder. `path` has links to these files alone; `shown` is the name that users know."""

    path: Path
    shown: str
    modules: tuple["Part", ...] = ()

    @property
    def network(self) -> Path:
        """Where the network's own files are."""
        return self.path / self.modules[0].path if self.modules else self.path

    def json(self, name: str) -> dict[str, Any]:
        """Return a configuration, empty if there is none. Raises `ConfigError`."""
        found = _read_json(self.path / name, self.shown) if (self.path / name).is_file() else {}
        if not isinstance(found, dict):
            raise ConfigError(f"{self.shown}: {name} is not an object: {SAVE}")
        return found

    def own(self, name: str) -> dict[str, Any]:
        """Return a configuration that is beside the network's."""
        return self.json(str((self.network / name).relative_to(self.path)))

    def weights(self) -> list[Path]:
        """Return the network's files of weights."""
        place = self.network
        if (place / WEIGHTS).is_file():
            return [place / WEIGHTS]
        named = _read_json(place / SHARDS, self.shown).get("weight_map")
        names = sorted({str(name) for name in named.values()}) if isinstance(named, Mapping) else []
        if not names or any(not NAME.fullmatch(name) or not (place / name).is_file() for name in names):
            raise ConfigError(f"{self.shown}: {SHARDS} names missing files: copy the whole folder")
        return [place / name for name in names]


@dataclass(frozen=True, slots=True)
class Part:
    """A module of sentence-transformers: what it is, such as Pooling, and the subfolder that has its files."""

    kind: str
    path: str


def is_folder(source: str) -> bool:
    """Return whether this names a folder of a model, or one at the hub, rather than a function."""
    return source.startswith(HUB) or Path(source).is_dir()


@contextmanager
def taken(folder: Path, shown: str) -> Iterator[Taken]:
    """Yield what is read of a folder. Raises `ConfigError`, in one sentence, for what is not served."""
    if not (folder / CONFIG).is_file() and not (folder / MODULES).is_file():
        adapter = _has(folder, ADAPTER)
        lora = " (it has only an adapter: merge it into its model first)" if adapter else ""
        raise ConfigError(f"{shown} has no {CONFIG}: name a folder that `save_pretrained` wrote{lora}")
    with tempfile.TemporaryDirectory(prefix="latebind-folder-") as place:
        path = Path(place)
        _link(folder, path, shown)
        for part in sorted(folder.iterdir()):
            if PART.fullmatch(part.name) and part.is_dir():
                (path / part.name).mkdir()
                _link(part, path / part.name, shown)
        found = Taken(path, shown, _modules(path, shown))
        _check(found, folder)
        yield found


def _has(folder: Path, name: str) -> bool:
    return (folder / name).is_file()


def _link(folder: Path, into: Path, shown: str) -> None:
    """Link the files that are read. Links are followed: a cache of the hub consists of them."""
    for number, file in enumerate(sorted(folder.iterdir())):
        if number >= MOST_FILES:
            raise ConfigError(f"{shown} has more than {MOST_FILES} files: name the folder of one model")
        if file.suffix not in ENDINGS or file.name == ADAPTER or not file.is_file():
            continue
        most = MOST_JSON_BYTES if file.suffix == ".json" and file.name != "tokenizer.json" else MOST_TEXT_BYTES
        if file.suffix != ".safetensors" and (size := file.stat().st_size) > most:
            raise ConfigError(f"{shown}: {file.name} has {size} bytes, and at most {most} are read")
        (into / file.name).symlink_to(file.resolve())


def _read_json(file: Path, shown: str) -> Any:
    try:
        return json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{shown}: {file.name} is invalid JSON ({error}): {SAVE}") from None


def _modules(path: Path, shown: str) -> tuple[Part, ...]:
    """Return the modules that sentence-transformers chains, in order; none if there is no such list."""
    if not (path / MODULES).is_file():
        return ()
    listed, found = _read_json(path / MODULES, shown), list[Part]()
    for one in listed if isinstance(listed, list) else ():
        kind, place = (one.get("type"), one.get("path")) if isinstance(one, dict) else (None, None)
        if not isinstance(kind, str) or not isinstance(place, str) or not (place == "" or PART.fullmatch(place)):
            break
        if not kind.startswith("sentence_transformers."):
            raise ConfigError(f"{shown} has a module of its own code, {kind:.80}: no code of a folder is run")
        found.append(Part(kind.rpartition(".")[2], place))
    if not found or len(found) < len(listed) or found[0].kind != "Transformer":
        raise ConfigError(f"{shown}: {MODULES} does not begin with a Transformer and go on with modules: {SAVE}")
    return tuple(found)


def _check(found: Taken, folder: Path) -> None:
    """Refuse what is not served because of its files."""
    shown, place = found.shown, found.network
    if not (place / CONFIG).is_file():
        raise ConfigError(f"{shown} has no {CONFIG}: {SAVE}")
    for file in sorted(found.path.rglob("*.json")):
        if file.name in {"tokenizer.json", "vocab.json", SHARDS}:
            continue
        value = _read_json(file, shown)
        if isinstance(value, dict) and value.get(CODE):
            raise ConfigError(
                f"{shown} needs code of its own ({CODE} in {file.name}), and no code of a folder is run: "
                f"save it with a class that transformers has"
            )
    config = _read_json(place / CONFIG, shown)
    if not isinstance(config, dict):
        raise ConfigError(f"{shown}: {CONFIG} is not an object: {SAVE}")
    _check_numbers(config, shown)
    for key in QUANTIZED:
        if quantization := config.get(key):
            kind = str(quantization.get("quant_method", "")) if isinstance(quantization, dict) else ""
            raise ConfigError(
                f"{shown} is quantized{f' ({kind:.40})' if kind else ''}, and only plain numbers are read: "
                "name the folder that it was made of"
            )
    if not (place / WEIGHTS).is_file() and not (place / SHARDS).is_file():
        there = sorted(file.name for file in (folder / place.relative_to(found.path)).iterdir())
        pickled = [name for name in there if name.endswith(PICKLED)]
        if pickled:
            raise ConfigError(
                f"{shown} has its weights in {pickled[0]:.80} only, a pickle, which may contain code: "
                f"{SAVE}, which writes {WEIGHTS}"
            )
        raise ConfigError(f"{shown} has no {WEIGHTS}: {SAVE}")


def _check_numbers(value: object, shown: str, key: str = "") -> None:
    """Raise `ConfigError` for a whole number of a configuration that makes a network too large to wait for."""
    if isinstance(value, dict):
        for name, item in value.items():
            _check_numbers(item, shown, str(name))
    elif isinstance(value, list):
        for item in value:
            _check_numbers(item, shown, key)
    elif isinstance(value, int) and abs(value) > _most(key):
        raise ConfigError(f"{shown}: {CONFIG} has {key:.60} {value!s:.40}: no network has so many")


def _most(key: str) -> float:
    """Return the largest number that a configuration may have under a key."""
    return inf if key.startswith(BASES) else MOST_DEEP if LAYERS.search(key) else MOST_NUMBER


def count_numbers(files: Sequence[Path], shown: str) -> int:
    """Return how many numbers the tensors in these files have. Raises `ConfigError` for other files."""
    found = 0
    for file in files:
        try:
            with safe_open(str(file), "pt") as opened:
                found += sum(prod(opened.get_slice(name).get_shape()) for name in opened.keys())  # noqa: SIM118
        except (SafetensorError, OSError, ValueError) as error:
            raise ConfigError(f"{shown}: {file.name} is not a safetensors file ({error}): {SAVE}") from None
    return found
