"""Reads the Azure Functions trace of 2019 (Shahrad et al., ATC 2020): invocations by function and minute."""

import csv
import zipfile
from pathlib import Path

import numpy as np

from latebind.domain.errors import ConfigError
from latebind.simulation.traces import Service

TRIGGERS = ("http", "timer")  # nothing else is asked for, and a whole day is long


def read_trace(file: Path) -> list[Service]:
    """Return the functions of a trace that are called by HTTP or a timer, with the counts of each minute.

    `file` is one of the published `invocations_per_function_md.anon.d01.csv`, or an .npz of `counts` (functions,
    minutes) and `trigger` (functions). Raises `ConfigError` where it is neither.
    """
    try:
        services = _from_arrays(file) if file.suffix == ".npz" else _from_table(file)
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise ConfigError(
            f"{file} is no trace: {error}; give a day's CSV file of the Azure trace, or an .npz"
        ) from error
    if not services:
        raise ConfigError(
            f"{file} has no functions that HTTP or a timer calls: give a day's CSV file of the Azure trace, or an .npz"
        )
    return services


def _from_arrays(file: Path) -> list[Service]:
    with np.load(file, allow_pickle=False) as arrays:
        counts, triggers = arrays["counts"], arrays["trigger"]
    rows = zip(counts.tolist(), triggers.tolist(), strict=True)
    return [Service(tuple(row), trigger) for row, trigger in rows if trigger in TRIGGERS]


def _from_table(file: Path) -> list[Service]:
    """Read HashOwner, HashApp, HashFunction, Trigger and a column for each minute, from 1 on."""
    with file.open(newline="") as lines:
        rows = csv.DictReader(lines)
        minutes = [name for name in rows.fieldnames or () if name.isdigit()]
        if not minutes:
            raise ValueError("it has no columns of minutes")
        asked = (row for row in rows if row["Trigger"] in TRIGGERS)
        return [Service(tuple([int(row[minute]) for minute in minutes]), row["Trigger"]) for row in asked]
