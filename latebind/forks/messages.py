"""The messages to and from the fork server: one each way for a process, with descriptors beside it."""

import struct
from dataclasses import dataclass, field

MESSAGE_BYTES = 1 << 18
MOST_DESCRIPTORS = 16
STANDARD = 3  # descriptors that come first: input, output and errors
STATUS = struct.Struct("=i")  # an exit status in `subprocess`'s form


@dataclass(frozen=True, slots=True)
class Fork:
    """Asks for a process that calls `main` of a module, with the numbers of its further descriptors, then `words`.

    It gets the caller's directory, environment and cores. `name` is shown by `top` and `ps -o comm`, 15 bytes at most.
    `imports` are modules that it will need: they are imported before it is forked, once for all that follow.
    """

    module: str
    words: list[str]
    name: str
    directory: str
    environment: dict[str, str]
    cores: list[int]
    imports: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ForkResult:
    """The process id, or the `error` (an errno) that prevented the fork.

    A handle of the process and the pipe on which its exit status will be sent come with it.
    """

    process: int = 0
    error: int | None = None
