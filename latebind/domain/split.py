"""Several versions of a model at once: which of them answers a request, and which are shadows.

A version other than the main one is served as a separate model with a name such as `resnet:2`. No model name has a
colon, so the name is unique in figures and logs. Clients know it as version 2 of `resnet`.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from latebind.domain.errors import ConfigError

SHADOW = "shadow"
BESIDE = ":"  # between the name of a model and a version that is not its main one
HOW = "write it as 1:90,2:10, in percent of its requests; 3:shadow sends version 3 copies; 2 alone gives it all"


def public_name(name: str) -> str:
    """Return the name that clients use for a served model."""
    return name.partition(BESIDE)[0]


@dataclass(frozen=True, slots=True)
class Split:
    """Versions of a `model`: the `shares` of requests that each answers, in percent, and `shadows`, which get copies.

    The first is the main one: its description is that of the model, and queries use it. It also answers if another one
    is not available.
    """

    model: str
    shares: Mapping[str, float]
    shadows: tuple[str, ...] = ()

    @classmethod
    def read(cls, text: str) -> Self:
        """Return the split of an option such as `resnet=1:90,2:10`. Raises `ConfigError`."""
        model, equals, shares = text.partition("=")
        if not model or not equals:
            raise ConfigError(f"--split {text!r:.140}: name the model, as in resnet=1:90,2:10")
        return cls.of(model, shares)

    @classmethod
    def of(cls, model: str, text: str) -> Self:
        """Return the split of a model that is written as `1:90,2:10,3:shadow`. Raises `ConfigError`."""
        title = f"the split {text!r:.140} of {model!r:.140}"
        shares: dict[str, float] = {}
        shadows: list[str] = []
        parts = [part.strip() for part in text.split(",")]
        for part in parts:
            version, colon, share = part.partition(":")
            if not (version.isascii() and version.isdecimal()) or (colon and not share):
                raise ConfigError(f"{title}: {HOW}")
            if version in shares or version in shadows:
                raise ConfigError(f"{title} has version {version} twice: give each once")
            if share == SHADOW:
                shadows.append(version)
                continue
            try:
                shares[version] = float(share) if colon else 100.0
            except ValueError:
                raise ConfigError(f"{title}: {HOW}") from None
            if not 0.0 <= shares[version] <= 100.0:
                raise ConfigError(f"{title} gives version {version} {share} %: give 0 to 100")
        if abs(sum(shares.values()) - 100.0) > 1e-6:
            raise ConfigError(f"{title} comes to {sum(shares.values()):g} %: the sum must be 100")
        return cls(model, shares, tuple(shadows))

    @property
    def main(self) -> str:
        """The version that answers requests that name none."""
        return next(iter(self.shares))

    @property
    def versions(self) -> tuple[str, ...]:
        """All versions, shadows last."""
        return (*self.shares, *self.shadows)

    @property
    def served(self) -> dict[str, str]:
        """The name that each version is served by."""
        return {
            version: self.model if version == self.main else f"{self.model}{BESIDE}{version}"
            for version in self.versions
        }

    def as_served(self, before: "Split") -> "Split":
        """Return this with the main version of `before` if both have the same versions, so that nothing is loaded."""
        if set(before.versions) != set(self.versions) or before.main not in self.shares:
            return self
        return Split(self.model, {version: self.shares[version] for version in before.shares if version in self.shares}
                     | dict(self.shares), self.shadows)  # fmt: skip

    def written(self) -> str:
        """Return it as `of` reads it."""
        shares = [f"{version}:{share:g}" for version, share in self.shares.items()]
        return ",".join([*shares, *(f"{version}:{SHADOW}" for version in self.shadows)])


class Chooser:
    """Chooses the version for each request of a split.

    Requests with the same key get the same version while the shares stay the same: the first whose cumulative share is
    above the hash of the key, in percent. Those without take turns, so that after any number of requests no version is
    a whole request away from its share.
    """

    def __init__(self, split: Split) -> None:
        self.split = split
        self._credit = dict.fromkeys(split.shares, 0.0)

    def version(self, key: str = "") -> str:
        """Return the version that is to answer a request."""
        shares = self.split.shares
        if key:
            digest = hashlib.sha256(f"{self.split.model}\0{key}".encode()).digest()
            place = int.from_bytes(digest[:8], "big") / 2**64 * 100.0
            for version, share in shares.items():
                place -= share
                if place < 0.0:
                    return version
            return [*shares][-1]
        for version, share in shares.items():
            self._credit[version] += share
        chosen = max(self._credit, key=self._credit.__getitem__)
        self._credit[chosen] -= 100.0
        return chosen
