"""The page's files, and plotly's script from its installed package, with the headers that restrict a browser."""

import asyncio
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from latebind.domain.errors import NotFound
from latebind.server.rest.request import Headers, Reply

TYPES = {
    ".html": b"text/html; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
}
PLOTLY = "plotly.js"
POLICY = (  # inline styles are allowed because plotly writes some; they can fetch nothing from other sites
    b"default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    b"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SAFE: Headers = (
    (b"content-security-policy", POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)
AGAIN = (b"cache-control", b"no-cache")
FOR_AN_HOUR = (b"cache-control", b"private, max-age=3600")


class Files:
    """Reads the page's files once, when the first is asked for. No other path can be read."""

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}

    async def reply(self, name: str) -> Reply:
        """Return a file. Raises `NotFound`."""
        if name == PLOTLY:
            return await _plotly()
        if not self._files:
            self._files = await asyncio.to_thread(_read)
        if name not in self._files:
            raise NotFound("there is no such file of the dashboard")
        kind = TYPES[Path(name).suffix]
        return Reply(self._files[name], ((b"content-type", kind), AGAIN, *SAFE))


def _read() -> dict[str, bytes]:
    found = {}
    for file in files(__package__).joinpath("page").iterdir():
        if Path(file.name).suffix in TYPES:
            found[file.name] = file.read_bytes()
    return found


async def _plotly() -> Reply:
    """Return plotly's script without importing plotly; the page works without it where it is not installed."""
    spec = find_spec("plotly")
    if spec is None or spec.origin is None:
        raise NotFound("charts need plotly: pip install 'latebind[report]'")
    file = Path(spec.origin).parent / "package_data" / "plotly.min.js"
    try:
        script = await asyncio.to_thread(file.read_bytes)
    except OSError:
        raise NotFound("the plotly that is installed has no script: pip install 'latebind[report]'") from None
    return Reply(script, ((b"content-type", TYPES[".js"]), FOR_AN_HOUR, *SAFE))
