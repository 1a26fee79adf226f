"""The statistics that a running server reports for its models, as rows of a table."""

import json
import time
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from latebind.cli.console import Row
from latebind.domain.errors import ConfigError
from latebind.server.access import read_token

ROUTE = "/v2/models/stats"
PATIENCE = 10.0  # seconds


def read_statistics(url: str, token_file: Path | None = None) -> list[Mapping[str, Any]]:
    """Ask the server at `url` for the statistics of all models.

    Raises `ConfigError` if it does not return them, and for a file that holds no token.
    """
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"--url is {url!r}: give one such as http://127.0.0.1:8000")
    token = {} if token_file is None else {"Authorization": f"Bearer {read_token(token_file)}"}
    try:
        with urlopen(Request(url.rstrip("/") + ROUTE, headers=token), timeout=PATIENCE) as reply:  # noqa: S310
            found: list[Mapping[str, Any]] = json.load(reply)["model_stats"]
    except HTTPError as error:
        raise ConfigError(f"{url} answers {error.code}: {error.read(1000).decode(errors='replace')}") from None
    except OSError as error:
        why = error.reason if isinstance(error, URLError) else error
        raise ConfigError(f"{url} does not answer ({why}): does `latebind serve` run there?") from None
    except (HTTPException, ValueError, KeyError, TypeError):
        said = "answers with something else than statistics: give the address behind `latebind serves at`, not gRPC's"
        raise ConfigError(f"{url} {said}") from None
    return found


def row(model: Mapping[str, Any]) -> Row:
    """Return the figures of one model since the server began; times in milliseconds are those of answered requests."""
    stats, batches = model["inference_stats"], model["execution_count"]
    last = model["last_inference"]
    return {
        "model": model["name"],
        "version": model["version"],
        "answered": stats["success"]["count"],
        "not answered": stats["fail"]["count"],
        "mean ms": _milliseconds(stats["success"]),
        "waiting": _milliseconds(stats["queue"]),
        "with a worker": _milliseconds(stats["compute_infer"]),
        "batches": batches,
        "requests a batch": f"{model['inference_count'] / batches:.2f}" if batches else "",
        "last": f"{max(0.0, time.time() - last / 1e3):.0f} s ago" if last else "never",
    }


def _milliseconds(figures: Mapping[str, int]) -> str:
    return f"{figures['ns'] / figures['count'] / 1e6:.3f}" if figures["count"] else ""
