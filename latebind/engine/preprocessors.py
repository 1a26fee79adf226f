"""The preprocessors of a generation's models; the frontend loads them while the engine starts."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from latebind.domain.errors import LatebindError, RepositoryError
from latebind.domain.model import NOTHING_KNOWN, About, ModelSpec
from latebind.preprocessing.preprocessor import Preprocessor
from latebind.repository.directory import MODEL, ModelDirectory, read_manifest
from latebind.repository.listing import Fingerprint, Serving

SECONDS = 60.0  # that loading one may take

Opens = Callable[[ModelDirectory, About], Preprocessor]


def open_preprocessor(directory: ModelDirectory, about: About) -> Preprocessor:
    """Open the preprocessor of a model directory. Only models with one need what this imports."""
    from latebind.preprocessing import opening  # noqa: PLC0415

    return opening.open_preprocessor(directory, about)


class Described(msgspec.Struct):
    """What is read from `model.json` here, without torch."""

    about: About = NOTHING_KNOWN


class Unreadable(LatebindError):
    """A model whose preprocessor cannot be loaded, and why."""

    def __init__(self, model: str, error: object) -> None:
        super().__init__(str(error))
        self.model = model


class Preprocessors:
    """Loads preprocessors by `opens`, one after another, in a thread. It keeps those of unchanged directories."""

    def __init__(self, opens: Opens) -> None:
        self._opens = opens
        self._kept: dict[Fingerprint, Preprocessor | None] = {}

    async def load(
        self, models: Mapping[str, Path], seen: Mapping[str, Fingerprint | None]
    ) -> tuple[dict[str, Preprocessor], Unreadable | None]:
        """Return those of the models that have raw inputs, up to the first that cannot be loaded, and its error.

        A model that has gone has no fingerprint in `seen`, and is left to the engine to report.
        """
        found: dict[str, Preprocessor] = {}
        for model, path in models.items():
            try:
                one = await self._of(path, seen[model])
            except (LatebindError, OSError) as error:
                return found, Unreadable(model, error)
            if one is not None:
                found[model] = one
        return found, None

    def keep(self, serving: Serving) -> None:
        """Forget all preprocessors but those of these models."""
        used = {serving.fingerprint_of(model) for model in serving.models}
        self._kept = {seen: one for seen, one in self._kept.items() if seen in used}

    async def _of(self, path: Path, seen: Fingerprint | None) -> Preprocessor | None:
        if seen is None:
            return None
        if seen not in self._kept:
            try:
                async with asyncio.timeout(SECONDS):
                    self._kept[seen] = await asyncio.to_thread(self._load, path)
            except TimeoutError:
                raise RepositoryError(
                    f"{path}: its preprocessor was not loaded within {SECONDS:g} s: build the model again"
                ) from None
        return self._kept[seen]

    def _load(self, path: Path) -> Preprocessor | None:
        try:
            return self._opened(ModelDirectory(path, read_manifest(path).files))  # each file is verified as it is read
        except RepositoryError:
            return self._opened(ModelDirectory.open(path))  # it may have been half replaced

    def _opened(self, directory: ModelDirectory) -> Preprocessor | None:
        about = directory.read_json(MODEL, Described).about
        if not about.raw:
            return None
        found = self._opens(directory, about)
        if found.raw != about.raw:
            raise RepositoryError(f"{directory.path} does not say how its inputs are to be read: build it again")
        return found


def check_fits(model: str, preprocessor: Preprocessor, spec: ModelSpec, *, changed: bool) -> None:
    """Raise `Unreadable` unless a preprocessor makes the inputs of the model that an engine has loaded.

    Also raises if the model's files have `changed` meanwhile: the engine may have read the new ones, and this the old.
    """
    if changed:
        raise Unreadable(model, f"{model} was replaced while it was loaded: load it again")
    takes = {tensor.name for tensor in spec.inputs}
    if preprocessor.makes != takes:
        made = f"it takes {sorted(takes)}, but its preprocessor makes {sorted(preprocessor.makes)}"
        raise Unreadable(model, f"{model} cannot be used, because {made}: build it again")
