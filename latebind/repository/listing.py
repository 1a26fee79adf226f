"""All models under one root: `root/<name>/` is a model, `root/<name>/<number>/` are its versions.

`root/<name>.query.toml` is a query, whose steps are models beside it.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from latebind.domain.errors import NotFound, RepositoryError
from latebind.domain.names import instead
from latebind.queries.file.definition import ENDING, model_names, query_name
from latebind.repository.directory import ModelDirectory
from latebind.repository.manifest import MANIFEST, NAME, VERSION


@dataclass(frozen=True, slots=True)
class Listed:
    """A model version that exists; it has not been verified."""

    name: str
    version: str
    path: Path


class Repository:
    """Finds models by name and version. It only lists; `ModelDirectory` reads and verifies.

    Links are followed within the root; what is behind other links is ignored.
    """

    def __init__(self, root: Path | str) -> None:
        self._root = Path(root)

    def models(self) -> tuple[Listed, ...]:
        """Return all models and versions, by name and then by ascending number; raises if the root does not exist."""
        if not self._root.is_dir():
            raise RepositoryError(f"{self._root} is not a directory: give the folder in which the models are")
        names = sorted(path.name for path in self._root.iterdir() if path.is_dir() and NAME.fullmatch(path.name))
        return tuple(listed for name in names for listed in self._versions(name))

    def passed_over(self, names: Sequence[str] = ()) -> tuple[str, ...]:
        """Return for each folder that looks like a version of these models (none: of all) why it is none."""
        folders = sorted(path for path in self._root.iterdir() if path.is_dir() and NAME.fullmatch(path.name))
        wanted = [folder for folder in folders if not names or folder.name in names]
        inside = [path for folder in wanted if is_inside(folder, self._root) for path in sorted(folder.iterdir())]
        told = [(path, self._no_version(path)) for path in inside if path.is_dir() and not path.name.startswith(".")]
        return tuple(f"{path} is passed over: {reason}" for path, reason in told if reason)

    def _no_version(self, path: Path) -> str:
        """Return why a folder within that of a model is no version; empty if it is one, or means to be none."""
        numbered, complete = VERSION.fullmatch(path.name), (path / MANIFEST).is_file()
        if not numbered:
            return "the name of a version is a number: rename it" if complete else ""
        if not is_inside(path, self._root):
            return "it is a link that leads out of the repository: put there what it leads to"
        return "" if complete else f"it has no {MANIFEST}, so it was not written to its end: build or copy it again"

    def open(self, name: str, version: str | None = None) -> ModelDirectory:
        """Verify and return a model, by default its newest version; raises `NotFound` with the models that exist."""
        if NAME.fullmatch(name):
            check_inside(self._root / name, self._root)
        found = self._versions(name) if NAME.fullmatch(name) and (self._root / name).is_dir() else ()
        chosen = [listed for listed in found if version in {None, listed.version}]
        if not chosen:
            wanted = name if version is None else f"{name}/{version}"
            there = dict.fromkeys(listed.name if version is None else _titled(listed) for listed in self.models())
            raise NotFound(f"there is no model {wanted!r} in {self._root}{instead(wanted, there)}")
        return ModelDirectory.open(chosen[-1].path)

    def path_for(self, name: str, version: str) -> Path:
        """Return the path for a model of this name and numeric version; raises for invalid names."""
        if not NAME.fullmatch(name) or not VERSION.fullmatch(version):
            raise RepositoryError(
                f"{name!r} version {version!r}: a name has letters, digits, '.', '_', '-' (128 at most), "
                "a version is a number"
            )
        if self._root.exists() and not self._root.is_dir():
            raise RepositoryError(f"{self._root} is a file: name a folder for models, which is made if it is not there")
        return self._root / name / version

    def _versions(self, name: str) -> tuple[Listed, ...]:
        folder = self._root / name
        if not is_inside(folder, self._root):
            return ()
        whole = (Listed(name, "1", folder),) if (folder / MANIFEST).is_file() else ()
        numbers = sorted((path.name for path in folder.iterdir() if self._is_version(path)), key=int)
        return whole + tuple(Listed(name, number, folder / number) for number in numbers)

    def _is_version(self, path: Path) -> bool:
        whole = VERSION.fullmatch(path.name) and (path / MANIFEST).is_file()
        return bool(whole) and is_inside(path, self._root)


def _titled(listed: Listed) -> str:
    return f"{listed.name}/{listed.version}"


def is_inside(path: Path, root: Path) -> bool:
    """Return whether a path, with all links followed, is under the root."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root))  # `resolve` raises for a loop of links


def check_inside(path: Path, root: Path) -> None:
    """Raise `RepositoryError` unless a path, with all links followed, is under the root."""
    if not is_inside(path, root):
        raise RepositoryError(f"{path} is a link that leads out of the repository: put there what it leads to")


def find_models(place: Path, names: Sequence[str] | None = None) -> list[Path]:
    """Return the directories of the newest versions of all models in `place`, or of those named.

    `place` may also be a model directory itself. Raises `NotFound` or `RepositoryError` with what exists.
    """
    if (place / MANIFEST).is_file() and not names:
        return [place]
    repository = Repository(place)
    wanted = names or sorted({listed.name for listed in repository.models()})
    if not wanted:
        raise RepositoryError(f"{place} holds no model: make one with `latebind build`")
    return [repository.open(name).path for name in wanted]


def find_queries(place: Path, names: Sequence[str] | None = None) -> list[Path]:
    """Return the files of all queries in `place`, or of those among `names`, which may also name models."""
    files = sorted(path for path in place.glob(f"*{ENDING}") if path.is_file()) if place.is_dir() else []
    for path in files:
        check_inside(path, place)
    return [path for path in files if not names or path.name.removesuffix(ENDING) in names]


def find_served(place: Path, names: Sequence[str] | None = None) -> tuple[list[Path], list[Path]]:
    """Return the model directories and query files in `place`: all, or those named and the models that they need.

    Raises what `find_models` raises, and `QueryError` for a query file that cannot be read.
    """
    queries = find_queries(place, names)
    if not names:
        try:
            return find_models(place), queries
        except RepositoryError as error:
            raise RepositoryError(f"{error}{_without(place, queries)}") from None
    wanted = [name for name in names if name not in map(query_name, queries)]
    wanted += [model for path in queries for model in model_names(path)]
    return find_models(place, list(dict.fromkeys(wanted))), queries


def sort_out(place: Path) -> tuple[list[ModelDirectory], dict[str, str]]:
    """Return the newest versions of all intact models in `place`, and by name what is wrong with the others.

    Raises `RepositoryError` if there is no model at all.
    """
    if (place / MANIFEST).is_file():
        return [ModelDirectory.open(place)], {}
    repository, whole, wrong = Repository(place), [], {}
    for name in sorted({listed.name for listed in repository.models()}):
        try:
            whole.append(repository.open(name))
        except RepositoryError as error:
            wrong[name] = str(error)
    if not whole and not wrong:
        raise RepositoryError(f"{place} holds no model: make one with `latebind build`")
    return whole, wrong


def _without(place: Path, queries: Sequence[Path]) -> str:
    """Return the arguments that serve only what is intact; empty if nothing is."""
    if not place.is_dir() or (place / MANIFEST).is_file() or not Repository(place).models():
        return ""
    _, wrong = sort_out(place)
    models = dict.fromkeys(listed.name for listed in Repository(place).models() if listed.name not in wrong)
    names = [*models, *(query_name(path) for path in queries if set(model_names(path)) <= set(models))]
    return f". To serve the others: {' '.join(f'--model {name}' for name in names)}" if names else ""
