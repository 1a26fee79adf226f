"""The process in which a tokenizer file is tested, with limits. It is run by its path and imports nothing of latebind.

It reads from its input the file and texts, each after its length in 8 bytes, and reports in its output whether all went
well. What the library prints when it fails is ignored.
"""

import resource
import sys
import time

PASSED = "passed"


def main() -> None:
    """Take the folder of the library, the bytes of address space, and seconds of processor time: all, and of a text."""
    place, space, seconds, of_text = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    for what, most in (
        (resource.RLIMIT_AS, space),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
    ):
        resource.setrlimit(what, (most, most))
    sys.path.append(place)
    from tokenizers import Tokenizer  # noqa: PLC0415  # after the limits are set

    tokenizer = Tokenizer.from_str(_read().decode())
    tokenizer.encode("a", "b")
    while text := _read().decode():
        begun = time.process_time()
        resource.setrlimit(resource.RLIMIT_CPU, (int(begun + of_text) + 2, seconds))  # ends one that hangs
        ids = tokenizer.encode(text).ids
        tokenizer.decode(ids[:4_096])
        taken = time.process_time() - begun
        if taken > of_text:
            print(f"{len(text.encode())} bytes of {text[:20]!r} took {taken:.1f} s, more than {of_text:g}")
            return
    print(PASSED)


def _read() -> bytes:
    length = int.from_bytes(sys.stdin.buffer.read(8), "little")
    return sys.stdin.buffer.read(length)


if __name__ == "__main__":
    main()
