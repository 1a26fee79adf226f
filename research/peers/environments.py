"""The virtual environments of peers: one folder for each, made on first use. Latebind itself needs none of them."""

import subprocess
import sys
import sysconfig
from pathlib import Path

from latebind.domain.errors import ConfigError

PACKAGES = {
    "triton": ("nvidia-pytriton==0.7.0", "numpy<2"),
    "fastapi": ("fastapi", "uvicorn", "uvloop", "httptools", "orjson", "numpy<2"),
    "litserve": ("litserve", "uvloop", "httptools", "orjson", "numpy<2"),
}
TORCH = "torch==2.13.0"  # what the peers compute with, where the part needs it: the version of this environment


def environment(folder: Path, peer: str, *more: str) -> Path:
    """Return the folder of a peer's environment, in which its packages and `more` are there. Raises `ConfigError`.

    What is installed is not looked at again: a file beside the packages says what was asked for.
    """
    path = folder / peer
    wanted = (*PACKAGES[peer], *more)
    if not (path / "bin" / "python").exists():
        _run([sys.executable, "-m", "venv", str(path)], f"no environment could be made in {path}")
    done = path / "latebind-peer.txt"
    missing = set(wanted) - set(done.read_text().split("\n") if done.exists() else ())
    if missing:
        command = [str(path / "bin" / "python"), "-m", "pip", "install", "--quiet", *wanted]
        _run(command, f"packages of {peer} could not be installed in {path}")
        done.write_text("\n".join(wanted))
    return path


def site_packages(path: Path) -> Path:
    """Return where an environment has its packages."""
    return Path(sysconfig.get_path("purelib", "venv", {"base": str(path), "platbase": str(path)}))


def _run(command: list[str], failure: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise ConfigError(f"{failure}: {last}")
