"""What the fork server is told and answers: one message each way for a process, with descriptors beside it."""

import struct
from dataclasses import dataclass

MESSAGE_BYTES = 1 << 18
MOST_DESCRIPTORS = 16
STANDARD = 3  # descriptors that come first: input, output and errors
STATUS = struct.Struct("=i")  # how a process ended, as `subprocess` has it


@dataclass(frozen=True, slots=True)
class Fork:
    """Fork a process that calls `main` of a module, with the numbers of its further descriptors and then `words`.

    It has the caller's directory, environment and cores; `name` is what `top` and `ps -o comm` show, 15 bytes at most.
    """

    module: str
    words: list[str]
    name: str
    directory: str
    environment: dict[str, str]
    cores: list[int]


@dataclass(frozen=True, slots=True)
class Born:
    """It runs, or `error` (an errno) kept it from that. A handle on it comes along, and where its status is told."""

    process: int = 0
    error: int | None = None
