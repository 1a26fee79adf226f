"""The optional packages that some commands need, and how to install them."""

EXTRAS = {
    "aiohttp": "bench",
    "grpc": "grpc",
    "grpc_health": "grpc",
    "openvino": "openvino",
    "plotly": "report",
    "psutil": "bench",
    "ray": "ray",
    "sklearn": "demo",
    "tritonclient": "grpc",
}
"""Packages by the name that they are imported by, and the extra of latebind that brings each."""


def what_to_install(error: ModuleNotFoundError) -> str | None:
    """Return what is missing and how to get it; None for a module that no extra brings."""
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS:
        return None
    return f"{package} is not installed: pip install 'latebind[{EXTRAS[package]}]'"
