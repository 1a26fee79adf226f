"""What is served of a repository: the newest version of each model and the queries, by name."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from latebind.domain.errors import LatebindError, NotFound
from latebind.domain.names import instead
from latebind.queries.file.definition import ENDING, model_names, query_name
from latebind.queries.file.lines import Source
from latebind.repository.listing import Repository, check_inside, find_served
from latebind.repository.manifest import MANIFEST, NAME

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

    @property
    def names(self) -> tuple[str, ...]:
        """All models and queries."""
        return (*self.models, *self.queries)

    def needing(self, models: Collection[str]) -> tuple[str, ...]:
        """Return the queries that need any of these models."""
        return tuple(name for name, query in self.queries.items() if not set(query.models).isdisjoint(models))

    def only(self, names: Iterable[str]) -> "Serving":
        """Return these models and queries, and the queries that need any of them."""
        return self._picked(self._with_needing(names))

    def without(self, names: Iterable[str]) -> "Serving":
        """Return the models and queries that `only` leaves out."""
        return self._picked({*self.names} - self._with_needing(names))

    def with_(self, other: "Serving") -> "Serving":
        """Return this and another together; if both have a name, the other's entry is taken."""
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

    def _picked(self, names: Collection[str]) -> "Serving":
        return Serving(
            {name: path for name, path in self.models.items() if name in names},
            {name: query for name, query in self.queries.items() if name in names},
        )

    def _with_needing(self, names: Iterable[str]) -> set[str]:
        found = set(names)
        return found | set(self.needing(found))


class Selection:
    """The part of a repository that is served: all of it, or the models and queries of these `names`."""

    def __init__(self, place: Path, names: Sequence[str] = ()) -> None:
        self.place = place
        self._names = tuple(names)

    def first(self) -> Serving:
        """Return all that is to be served; raises if something is missing or incomplete."""
        models, queries = find_served(self.place, self._names)
        return _serving(models, queries)

    def passed_over(self) -> tuple[str, ...]:
        """Return, for the operator, which folders of versions are not served though they look like some, and why."""
        if (self.place / MANIFEST).is_file() or not self.place.is_dir():
            return ()
        return Repository(self.place).passed_over(self._names)

    def names(self) -> tuple[str, ...]:
        """Return the names that exist now and are to be served; models are not verified."""
        if (self.place / MANIFEST).is_file():
            return (_name(self.place),)
        models = {listed.name for listed in Repository(self.place).models()}
        queries = {path.name.removesuffix(ENDING) for path in self.place.glob(f"*{ENDING}") if path.is_file()}
        found = sorted(models) + sorted(queries)
        return tuple(name for name in found if not self._names or name in self._names)

    def fresh(self, name: str, version: str | None = None) -> Serving:
        """Return what `find` returns; a remote repository is read again first."""
        return self.find(name, version)

    def find(self, name: str, version: str | None = None) -> Serving:
        """Return a model in a version, by default the newest, or a query with its models.

        Raises `NotFound` and `RepositoryError`, and `QueryError` for a query file that cannot be read.
        """
        query = self.place / f"{name}{ENDING}"
        if NAME.fullmatch(name) and query.is_file():
            check_inside(query, self.place)
            _check_version(f"query {name!r}", version, _version_in(query))
            return _serving([self._needed(model) for model in model_names(query)], [query])
        if (self.place / MANIFEST).is_file():
            if name != _name(self.place):
                raise NotFound(f"there is no model {name!r:.140} in the repository{instead(name, self.names())}")
            _check_version(f"model {name!r}", version, _number(self.place))
            return _serving([self.place], [])
        try:
            return _serving([Repository(self.place).open(name, version).path], [])
        except NotFound:
            raise NotFound(self._nothing(name, version)) from None

    def _needed(self, model: str) -> Path:
        """Verify a model that a query needs, and return its directory. Raises `NotFound`."""
        repository = Repository(self.place)
        try:
            return repository.open(model).path
        except NotFound:
            there = dict.fromkeys(listed.name for listed in repository.models())
            raise NotFound(f"there is no model {model!r:.140} in the repository{instead(model, there)}") from None

    def _nothing(self, name: str, version: str | None) -> str:
        """Return the message for a model or version that does not exist."""
        versions = [listed.version for listed in Repository(self.place).models() if listed.name == name]
        if versions:
            return _no_version(f"model {name!r}", version, versions)
        return f"there is no model {name!r:.140} in the repository{instead(name, self.names())}"

    def explain(self, error: LatebindError | OSError) -> str:
        """Return an error's message for clients: without the path of the repository."""
        return _told_from(self.place, _told_from(self.place.resolve(), str(error)))


def _serving(models: Iterable[Path], queries: Iterable[Path]) -> Serving:
    files = [QueryFile(path, model_names(path)) for path in queries]
    return Serving({_name(path): path for path in models}, {query_name(file.path): file for file in files})


def _name(directory: Path) -> str:
    """Return the name of a model from its directory, `NAME` or `NAME/NUMBER`."""
    directory = directory.absolute()
    return directory.parent.name if directory.name.isdecimal() else directory.name


def _number(directory: Path) -> str:
    """Return the version of a model from its directory; it is 1 where that has no number, as `Repository` lists it."""
    name = directory.absolute().name
    return name if name.isdecimal() else "1"


def _version_in(query: Path) -> str:
    """Return the version that a query's file says, 1 where it says none; the engine checks that it is a number."""
    return str(Source.read(query).values.get("version", "1"))


def _check_version(title: str, wanted: str | None, there: str) -> None:
    """Raise `NotFound` unless the version that is there is the one that is wanted, if any is."""
    if wanted not in {None, there}:
        raise NotFound(_no_version(title, wanted, [there]))


def _no_version(title: str, wanted: str | None, there: Sequence[str]) -> str:
    return f"{title} has no version {wanted!r:.40} in the repository: it has {', '.join(there)}"


def _told_from(place: Path, message: str) -> str:
    """Return the message with paths as they are from this folder."""
    path = rf"(?<![\w./-]){re.escape(str(place))}"
    message = re.sub(f"{path}/", "", message)
    if len(place.parts) < 2:  # one word, which the message may have in another sense
        return message
    return re.sub(rf"{path}(?![\w-])", "the repository", message)
