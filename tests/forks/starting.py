"""A module that starts a process as it is imported, as compilers of torch do."""

import subprocess

STARTED = subprocess.Popen(["true"])
