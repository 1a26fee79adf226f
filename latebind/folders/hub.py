"""Model folders on the Hugging Face hub: which files are fetched, and where they are stored; offline, its cache."""

import re
from os.path import abspath, basename
from pathlib import Path

from latebind.domain.errors import ConfigError
from latebind.folders.files import ENDINGS, HUB

NAMED = re.compile(r"(?P<repo>[\w.-]{1,96}(?:/[\w.-]{1,96})?)(?:@(?P<revision>[\w./-]{1,200}))?", re.ASCII)
ELSEWHERE = ("onnx/*", "openvino/*", "coreml/*", "tf/*", "gguf/*", "original/*", "checkpoint-*/*", "runs/*")


def folder_name(source: str) -> str:
    """Return the default name of a model from this folder, or from this name at the hub."""
    last = source.removeprefix(HUB).partition("@")[0] if source.startswith(HUB) else basename(abspath(source))
    return re.sub(r"[^A-Za-z0-9._-]+", "-", last.rpartition("/")[2]).lstrip("._-")[:128] or "model"


def local_folder(source: str) -> Path:
    """Return the folder on this machine that `source` names, such as models/minilm or hf:ORG/NAME@main.

    From the hub only data is fetched: configurations, vocabularies and safetensors. Raises `ConfigError`.
    """
    if not source.startswith(HUB):
        return Path(source)
    found = NAMED.fullmatch(source.removeprefix(HUB))
    if found is None or ".." in source:
        raise ConfigError(f"{source!r:.200}: write it as {HUB}ORG/NAME, or {HUB}ORG/NAME@REVISION")
    from huggingface_hub import snapshot_download  # noqa: PLC0415  (an extra)
    from huggingface_hub.errors import (  # noqa: PLC0415
        GatedRepoError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        return Path(
            snapshot_download(
                found["repo"],
                revision=found["revision"],
                allow_patterns=[f"*{ending}" for ending in ENDINGS],
                ignore_patterns=list(ELSEWHERE),
            )
        )
    except GatedRepoError:
        problem = "asks for consent: give it there, log in with `hf auth login`, and build again"
    except RepositoryNotFoundError:
        problem = "is not on the hub, or is private: check the name, or log in with `hf auth login`"
    except RevisionNotFoundError:
        problem = f"has no revision {found['revision']!r}"
    except LocalEntryNotFoundError:
        problem = (
            "is not in the cache, and the hub cannot be reached: fetch it on a machine with a network, or name a folder"
        )
    except Exception as error:  # from its client, which reports errors of networks and disks in various ways
        problem = f"cannot be fetched ({' '.join(str(error).split())[:300]})"
    raise ConfigError(f"{source} {problem}") from None
