"""NVIDIA Triton's own C++ server, which comes inside the package nvidia-pytriton, with its Python backend."""

import os
import shutil
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from research.peers.environments import site_packages
from research.peers.frameworks import APPS
from research.peers.processes import Served, free_port, running

CONFIG = """name: "{name}"
backend: "python"
max_batch_size: {batch}
input [ {{ name: "x", data_type: TYPE_FP32, dims: {shape} }} ]
output [ {{ name: "y", data_type: TYPE_FP32, dims: {answer} }} ]
instance_group [ {{ count: {instances}, kind: KIND_CPU }} ]
dynamic_batching {{
  max_queue_delay_microseconds: 0
  default_queue_policy {{ timeout_action: REJECT, default_timeout_microseconds: {time_out} }}
}}
"""
HTTP_THREADS = 2


@contextmanager
def serve(
    environment: Path,
    folder: Path,
    name: str,
    *,
    shape: tuple[int, ...],
    answer: tuple[int, ...],
    batch: int,
    instances: int,
    time_out: int = 0,
    more: Mapping[str, str] = {},
) -> Iterator[Served]:
    """Serve a model of `apps/networks.py` that maps x `(B, *shape)` to y `(B, *answer)`, both float32.

    Who waits in its queue for more than `time_out` microseconds is refused; 0: nobody is.
    """
    packages = site_packages(environment)
    binaries = packages / "pytriton" / "tritonserver"
    backends = _backends(binaries, folder)
    version = folder / "models" / name / "1"
    version.mkdir(parents=True, exist_ok=True)
    shutil.copy(APPS / "triton_model.py", version / "model.py")
    shutil.copy(APPS / "networks.py", version)
    shapes = {"shape": list(shape), "answer": list(answer)}
    config = CONFIG.format(name=name, batch=batch, instances=instances, time_out=time_out, **shapes)
    (version.parent / "config.pbtxt").write_text(config)
    http, grpc = free_port(), free_port()
    options = {
        "model-repository": folder / "models",
        "backend-directory": backends,
        "http-address": "127.0.0.1",
        "http-port": http,
        "http-thread-count": HTTP_THREADS,
        "grpc-address": "127.0.0.1",
        "grpc-port": grpc,
        "allow-metrics": "false",
        "log-verbose": 0,
    }
    libraries = f"{sysconfig.get_config_var('LIBDIR')}:{packages / 'nvidia_pytriton.libs'}"
    path = f"{environment / 'bin'}:{os.environ['PATH']}"  # its stub takes packages from the first Python that it finds
    paths = {"LD_LIBRARY_PATH": libraries, "PATH": path, **more}
    command = [str(binaries / "bin" / "tritonserver"), *(f"--{name}={value}" for name, value in options.items())]
    ready = f"/v2/models/{name}/ready"
    with running(command, http=http, grpc=grpc, ready=ready, log=folder / "log", more=paths) as served:
        yield served


def _backends(binaries: Path, folder: Path) -> Path:
    """Return a folder with the Python backend and the stub for this version of Python."""
    backends = folder / "backends"
    if not backends.exists():
        shutil.copytree(binaries / "backends", backends)
        stubs = binaries / "python_backend_stubs" / sysconfig.get_python_version()
        shutil.copy(stubs / "triton_python_backend_stub", backends / "python")
    return backends
