"""What forked processes do in tests: `main` is called with the numbers of descriptors and the words of the test."""

import atexit
import json
import os
import signal
import socket
import sys
from pathlib import Path

from latebind.forks.process import ForkServer


def main(arguments: list[str]) -> None:
    """Do what the last word says; what there is to tell goes to the first descriptor."""
    told, what = int(arguments[0]), arguments[-1]
    if what == "tell":
        found = {
            "words": arguments[1:],
            "directory": os.getcwd(),
            "environment": dict(os.environ),
            "cores": sorted(os.sched_getaffinity(0)),
            "name": Path("/proc/self/comm").read_text().strip(),
            "engine": "latebind.engine.process" in sys.modules,
            "wave": "wave" in sys.modules,
            "files": len(os.listdir("/proc/self/fd")),
        }
        os.write(told, json.dumps(found).encode())
    elif what == "wait":
        os.write(told, b"there")
        signal.pause()
    elif what == "serve":
        asked, _asking = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        assert ForkServer(asked, linger=0.01).serve() is None
        os.write(told, b"ended")
    elif what == "inherit":
        atexit.register(os.write, told, b"taken apart")
        os.write(told, b"done")
    elif what == "say":
        sys.stdout.write("out")
        sys.stderr.write("err")
    elif what == "fail":
        raise ValueError("this fails")
