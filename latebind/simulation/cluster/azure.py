"""Reads the Azure Functions trace of 2019 (Shahrad et al., ATC 2020): invocations by function and minute."""

import csv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from latebind.domain.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Invocations:
    """How often each function was called in each minute, `counts` (functions, minutes) int64, and what triggers it."""

    counts: NDArray[np.int64]
    triggers: tuple[str, ...]


def read_invocations(file: Path, only: tuple[str, ...] = ()) -> Invocations:
    """Read a trace, and keep only functions with one of the triggers in `only` (all functions if `only` is empty).

    `file` is a day of the published trace, such as `invocations_per_function_md.anon.d01.csv`, or an .npz file with
    `counts` (functions, minutes) and `trigger` (functions). Raises `ConfigError` if it is neither.
    """
    try:
        found = _from_arrays(file) if file.suffix == ".npz" else _from_table(file, only)
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise ConfigError(
            f"{file} is no trace: {error}; give a day's CSV file of the Azure trace, or an .npz"
        ) from error
    places = [place for place, trigger in enumerate(found.triggers) if not only or trigger in only]
    if not places or not found.counts.shape[1]:
        raise ConfigError(
            f"{file} has no functions that {' or '.join(only) or 'anything'} calls: "
            "give a day's CSV file of the Azure trace, or an .npz"
        )
    return Invocations(found.counts[places], tuple([found.triggers[place] for place in places]))


def _from_arrays(file: Path) -> Invocations:
    with np.load(file, allow_pickle=False) as arrays:
        counts, triggers = arrays["counts"], arrays["trigger"]
    if counts.ndim != 2 or triggers.shape != counts.shape[:1]:
        raise ValueError(f"its counts are {counts.shape} and its triggers {triggers.shape}")
    if not np.issubdtype(counts.dtype, np.integer):
        raise ValueError(f"its counts are {counts.dtype}, no whole numbers")
    if np.any(counts < 0):
        raise ValueError("some of its counts are below 0")
    return Invocations(counts.astype(np.int64), tuple(triggers.tolist()))


def _from_table(file: Path, only: tuple[str, ...]) -> Invocations:
    """Read a CSV file with the columns HashOwner, HashApp, HashFunction, Trigger, and one for each minute, from 1."""
    with file.open(newline="") as lines:
        rows = csv.DictReader(lines)
        minutes = [name for name in rows.fieldnames or () if name.isdigit()]
        if not minutes:
            raise ValueError("it has no columns of minutes")
        asked = [row for row in rows if not only or row["Trigger"] in only]
        counts = np.array([[int(row[minute]) for minute in minutes] for row in asked], dtype=np.int64)
    return Invocations(counts.reshape(len(asked), len(minutes)), tuple([row["Trigger"] for row in asked]))
