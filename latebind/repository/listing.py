"""All models under one root, `root/<name>/` or `root/<name>/<number>/` for a version, and which of them are served.

`root/<name>.query.toml` is a query, whose steps are models beside it.
"""

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from latebind.domain.errors import LatebindError, NotFound, RepositoryError
from latebind.domain.split import BESIDE, Split, public_name
from latebind.domain.wording import instead
from latebind.queries.file.definition import ENDING, model_names, query_name
from latebind.queries.file.source import Source
from latebind.repository.directory import MANIFEST, NAME, VERSION, ModelDirectory


@dataclass(frozen=True, slots=True)
class Listed:
    """A model version that exists; it has not been verified."""

    name: str
    version: str
    path: Path


class Repository:
    """Finds models by name and version. It only lists; `ModelDirectory` reads and verifies.

    Links within the root are followed; other links are ignored.
    """

    def __init__(self, root: Path | str) -> None:
        self._root = Path(root)

    def models(self) -> tuple[Listed, ...]:
        """Return all models and versions, by name and then by ascending number; raises if the root does not exist."""
        if not self._root.is_dir():
            raise RepositoryError(f"{self._root} is not a directory: give the folder that contains the models")
        return tuple(listed for folder in self._folders() for listed in self._versions(folder.name))

    def names(self) -> list[str]:
        """Return the names of all models, sorted; raises as `models` does."""
        return list(dict.fromkeys(listed.name for listed in self.models()))

    def passed_over(self, names: Sequence[str] = ()) -> tuple[str, ...]:
        """Return why folders that look like versions of these models (none: of all) are skipped."""
        notes = []
        for folder in self._folders():
            if (names and folder.name not in names) or not is_inside(folder, self._root):
                continue
            for path in sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")):
                complete, reason = (path / MANIFEST).is_file(), ""
                if not VERSION.fullmatch(path.name):
                    reason = "a version must be named by a number: rename it" if complete else ""
                elif not is_inside(path, self._root):
                    reason = "it is a link that leads out of the repository: replace it by its target"
                elif not complete:
                    reason = f"it has no {MANIFEST}, so it is incomplete: build or copy it again"
                notes += [f"{path} is skipped: {reason}"] if reason else []
        return tuple(notes)

    def open(self, name: str, version: str | None = None) -> ModelDirectory:
        """Verify and return a model, by default its newest version; raises `NotFound` with what exists."""
        if NAME.fullmatch(name):
            check_inside(self._root / name, self._root)
        found = self._versions(name) if NAME.fullmatch(name) and (self._root / name).is_dir() else ()
        if not found:
            raise NotFound(f"there is no model {name!r:.140} in {self._root}{instead(name, self.names())}")
        chosen = [listed for listed in found if version in {None, listed.version}]
        if not chosen:
            raise NotFound(_no_version(f"model {name!r}", version, self._root, [one.version for one in found]))
        return ModelDirectory.open(chosen[-1].path)

    def path_for(self, name: str, version: str) -> Path:
        """Return the path for a model of this name and numeric version; raises for invalid names."""
        if not NAME.fullmatch(name) or not VERSION.fullmatch(version):
            raise RepositoryError(
                f"{name!r} version {version!r}: a name has letters, digits, '.', '_', '-' (128 at most), "
                "a version is a number"
            )
        if self._root.exists() and not self._root.is_dir():
            raise RepositoryError(f"{self._root} is a file: name a folder for models, which is created if needed")
        return self._root / name / version

    def _folders(self) -> list[Path]:
        return sorted(path for path in self._root.iterdir() if path.is_dir() and NAME.fullmatch(path.name))

    def _versions(self, name: str) -> tuple[Listed, ...]:
        folder = self._root / name
        if not is_inside(folder, self._root):
            return ()
        whole = (Listed(name, "1", folder),) if (folder / MANIFEST).is_file() else ()
        versions = [path for path in folder.iterdir() if VERSION.fullmatch(path.name) and (path / MANIFEST).is_file()]
        inside = sorted((path.name for path in versions if is_inside(path, self._root)), key=int)
        return whole + tuple(Listed(name, number, folder / number) for number in inside)


def _no_version(title: str, wanted: str | None, root: Path, there: Sequence[str]) -> str:
    return f"{title} has no version {wanted!r:.40} in {root}: it has {', '.join(there)}"


def is_inside(path: Path, root: Path) -> bool:
    """Return whether a path, with all links followed, is under the root."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root))  # `resolve` raises for a loop of links


def check_inside(path: Path, root: Path) -> None:
    """Raise `RepositoryError` unless a path, with all links followed, is under the root."""
    if not is_inside(path, root):
        raise RepositoryError(f"{path} is a link that leads out of the repository: replace it by its target")


NEWEST: Mapping[str, str] = {}  # no model is wanted in another version


def find_models(place: Path, names: Sequence[str] | None = None, versions: Mapping[str, str] = NEWEST) -> list[Path]:
    """Return the directories of all models in `place`, or of those named, the newest unless `versions` name another.

    `place` may also be a model directory itself. Raises `NotFound` or `RepositoryError` with what exists.
    """
    if (place / MANIFEST).is_file() and not names:
        return [place]
    repository = Repository(place)
    wanted = names or repository.names()
    if not wanted:
        raise RepositoryError(f"{place} contains no model: make one with `latebind build`")
    return [repository.open(name, versions.get(name)).path for name in wanted]


def find_queries(place: Path, names: Sequence[str] | None = None) -> list[Path]:
    """Return the files of all queries in `place`, or of those among `names`, which may also name models."""
    files = sorted(path for path in place.glob(f"*{ENDING}") if path.is_file()) if place.is_dir() else []
    for path in files:
        check_inside(path, place)
    return [path for path in files if not names or path.name.removesuffix(ENDING) in names]


def find_served(
    place: Path, names: Sequence[str] | None = None, versions: Mapping[str, str] = NEWEST
) -> tuple[list[Path], list[Path]]:
    """Return the model directories and query files in `place`: all, or those named and the models that they need.

    For `versions` see `find_models`. Raises what `find_models` raises, and `QueryError` for a query file that cannot be
    read.
    """
    queries = find_queries(place, names)
    if names:
        wanted = [name for name in names if name not in map(query_name, queries)]
        wanted += [model for path in queries for model in model_names(path)]
        return find_models(place, list(dict.fromkeys(wanted)), versions), queries
    try:
        return find_models(place, versions=versions), queries
    except RepositoryError as error:
        if not place.is_dir() or (place / MANIFEST).is_file() or not Repository(place).models():
            raise
        whole = [_name(directory.path) for directory in sort_out(place)[0]]
        others = [*whole, *(query_name(path) for path in queries if set(model_names(path)) <= set(whole))]
        how = f". To serve only the others: {' '.join(f'--model {name}' for name in others)}" if others else ""
        raise RepositoryError(f"{error}{how}") from None


def sort_out(place: Path) -> tuple[list[ModelDirectory], dict[str, str]]:
    """Return the newest versions of all intact models in `place`, and by name what is wrong with the others.

    Raises `RepositoryError` if there is no model at all.
    """
    if (place / MANIFEST).is_file():
        return [ModelDirectory.open(place)], {}
    repository, whole, wrong = Repository(place), [], {}
    for name in repository.names():
        try:
            whole.append(repository.open(name))
        except RepositoryError as error:
            wrong[name] = str(error)
    if not whole and not wrong:
        raise RepositoryError(f"{place} contains no model: make one with `latebind build`")
    return whole, wrong


Fingerprint = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class QueryFile:
    """The file of a query, and the models that it names."""

    path: Path
    models: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Serving:
    """What one engine serves: model directories and query files, by name."""

    models: Mapping[str, Path] = field(default_factory=dict)
    queries: Mapping[str, QueryFile] = field(default_factory=dict)

    @classmethod
    def of(cls, models: Iterable[Path], queries: Iterable[Path]) -> "Serving":
        """Return these directories and files. Raises `QueryError` for a query file that cannot be read."""
        files = {query_name(path): QueryFile(path, model_names(path)) for path in queries}
        return cls({_name(path): path for path in models}, files)

    @property
    def names(self) -> tuple[str, ...]:
        """All models and queries."""
        return (*self.models, *self.queries)

    def split_names(self) -> dict[str, str]:
        """Return the names of models of which several versions are served, by directory."""
        split = {public_name(name) for name in self.models if BESIDE in name}
        return {str(path): name for name, path in self.models.items() if public_name(name) in split}

    def needing(self, models: Collection[str]) -> tuple[str, ...]:
        """Return the queries that need any of these models."""
        return tuple(name for name, query in self.queries.items() if not set(query.models).isdisjoint(models))

    def only(self, names: Iterable[str]) -> "Serving":
        """Return these models and queries, and the queries that need any of them."""
        wanted = set(names)
        return self._part(wanted | set(self.needing(wanted)))

    def without(self, names: Iterable[str]) -> "Serving":
        """Return the models and queries that `only` leaves out."""
        return self._part(set(self.names) - set(self.only(names).names))

    def _part(self, names: Collection[str]) -> "Serving":
        return Serving(
            {name: path for name, path in self.models.items() if name in names},
            {name: query for name, query in self.queries.items() if name in names},
        )

    def with_(self, other: "Serving") -> "Serving":
        """Return this and another together; if a name is in both, the other's entry is taken."""
        return Serving({**self.models, **other.models}, {**self.queries, **other.queries})

    def renamed(self, names: Sequence[str]) -> "Serving":
        """Return this with the models' own names, given in order."""
        return replace(self, models=dict(zip(names, self.models.values(), strict=True)))

    def fingerprint_of(self, name: str) -> Fingerprint | None:
        """Return a value that changes when a model or query is replaced; None if it has gone."""
        path = self.queries[name].path if name in self.queries else self.models[name] / MANIFEST
        try:
            about = path.stat()
        except OSError:
            return None
        return str(path), about.st_mtime_ns, about.st_ino

    def explain(self, error: LatebindError) -> str:
        """Return an error's message for clients: with names in place of paths."""
        text, paths = str(error), {**self.models, **{name: query.path for name, query in self.queries.items()}}
        for name, path in sorted(paths.items(), key=lambda one: len(str(one[1])), reverse=True):
            text = text.replace(str(path.absolute()), name).replace(str(path), name)
        return text


class Selection:
    """The part of a repository that is served: all of it, or the models and queries of these `names`.

    Models of which several versions are served have an entry in `splits`, by name; others are served in the newest one.
    """

    def __init__(self, place: Path, names: Sequence[str] = (), splits: Sequence[Split] = ()) -> None:
        self.place = place
        self.splits = {split.model: split for split in splits}
        self._names = tuple(names)

    def first(self) -> Serving:
        """Return everything to be served; raises if something is missing or incomplete."""
        serving = Serving.of(*find_served(self.place, self._names, self._main_versions()))
        for model, split in self.splits.items():
            if model not in serving.models:
                raise NotFound(f"--split: no model {model!r:.140} is served{instead(model, serving.models)}")
            serving = serving.with_(self.versions_of(split))
        return serving

    def versions_of(self, split: Split) -> Serving:
        """Return the versions of a model, by the names that they are served by; raises what `find` raises."""
        repository = Repository(self.place)
        try:
            return Serving({name: repository.open(split.model, version).path for version, name in split.served.items()})
        except NotFound as error:
            raise NotFound(self.explain(error)) from None

    def _main_versions(self) -> dict[str, str]:
        return {model: split.main for model, split in self.splits.items()}

    def passed_over(self) -> tuple[str, ...]:
        """Return, for the operator, which folders that look like versions are not served, and why."""
        if (self.place / MANIFEST).is_file() or not self.place.is_dir():
            return ()
        return Repository(self.place).passed_over(self._names)

    def names(self) -> tuple[str, ...]:
        """Return the names to be served that exist now; models are not verified."""
        if (self.place / MANIFEST).is_file():
            return (_name(self.place),)
        queries = {path.name.removesuffix(ENDING) for path in self.place.glob(f"*{ENDING}") if path.is_file()}
        found = Repository(self.place).names() + sorted(queries)
        wanted = [name for name in found if not self._names or name in self._names]
        return tuple(served for name in wanted for served in (self._served(name) if name in self.splits else (name,)))

    def _served(self, model: str) -> tuple[str, ...]:
        return tuple(self.splits[model].served.values())

    def first_whole(self) -> tuple[Serving, dict[str, LatebindError | OSError]]:
        """Return the intact part of what is to be served, without splits, and by name what is wrong with the rest.

        Raises `NotFound` if a name that was asked for does not exist.
        """
        found, wrong = Serving(), dict[str, LatebindError | OSError]()
        for name in dict.fromkeys((*self._names, *Selection.names(self))):
            try:
                found = found.with_(self.find(name))
            except NotFound:
                raise
            except (LatebindError, OSError) as error:
                wrong[name] = error
        return found, wrong

    def fresh(self, name: str, version: str | None = None) -> Serving:
        """Return what `find` returns; a remote repository is read again first."""
        return self.find(name, version)

    def find(self, name: str, version: str | None = None) -> Serving:
        """Return a model in a version, by default the newest, or a query with its models.

        Raises `NotFound`, whose message hides where the repository is, `RepositoryError`, and `QueryError` for a query
        file that cannot be read.
        """
        if version is None:
            name, _, number = name.partition(BESIDE)
            main = self._main_versions()
            version = number or main.get(name)
            if number:
                return Serving({f"{name}{BESIDE}{number}": Repository(self.place).open(name, number).path})
        query, repository = self.place / f"{name}{ENDING}", Repository(self.place)
        try:
            if NAME.fullmatch(name) and query.is_file():
                check_inside(query, self.place)
                there = str(Source.read(query).values.get("version", "1"))  # the engine checks that it is a number
                versions = self._main_versions()
                title = "query"
                models = [repository.open(model, versions.get(model)).path for model in model_names(query)]
                found = Serving.of(models, [query])
            elif not (self.place / MANIFEST).is_file():
                return Serving.of([repository.open(name, version).path], [])
            elif name == _name(self.place):
                number = self.place.absolute().name
                found, title, there = Serving.of([self.place], []), "model", number if number.isdecimal() else "1"
            else:
                raise NotFound(f"there is no model {name!r:.140} in {self.place}{instead(name, self.names())}")
            if version not in {None, there}:
                raise NotFound(_no_version(f"{title} {name!r}", version, self.place, [there]))
        except NotFound as error:
            raise NotFound(self.explain(error)) from None
        return found

    def explain(self, error: LatebindError | OSError) -> str:
        """Return an error's message for clients: without the path of the repository."""
        return _relative_to(self.place, _relative_to(self.place.resolve(), str(error)))


def _name(directory: Path) -> str:
    """Return the name of a model from its directory, `NAME` or `NAME/NUMBER`."""
    directory = directory.absolute()
    return directory.parent.name if directory.name.isdecimal() else directory.name


def _relative_to(place: Path, message: str) -> str:
    """Return the message with paths relative to this folder."""
    path = rf"(?<![\w./-]){re.escape(str(place))}"
    message = re.sub(f"{path}/", "", message)
    if len(place.parts) < 2:  # a single word, which the message may use in another sense
        return message
    return re.sub(rf"{path}(?![\w-])", "the repository", message)
