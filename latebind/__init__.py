"""latebind: a prediction server for PyTorch models that decides late."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from latebind.domain.sizes import Dim
    from latebind.hosting import serve, serving

__version__ = "0.1.0"
__all__ = ["Dim", "__version__", "serve", "serving"]


def __getattr__(name: str) -> Any:
    """Import the Python interface on first use: it needs torch, and most of the package does not."""
    if name == "Dim":
        from latebind.domain.sizes import Dim  # noqa: PLC0415

        return Dim
    if name in {"serve", "serving"}:
        from latebind import hosting  # noqa: PLC0415

        return getattr(hosting, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
