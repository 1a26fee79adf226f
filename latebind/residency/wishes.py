"""Models that requests were refused for want of: whether it pays to load one in the place of what is there. Pure.

Nobody waits for them, so nothing has to come, and what is in memory stays unless the policy holds the other to be worth
more. Of policies that keep models by importance that is asked with a margin, for importance is an estimate; others hold
whoever was asked for last to be worth most. And a model stays for a while once it has come, so that those who are
refused cannot have memory do nothing but load.
"""

from collections.abc import Iterator, Mapping, Sequence

from latebind.residency.base import EvictionPolicy, Victim
from latebind.residency.held import Held
from latebind.residency.importance import ByImportance

WORTH_MORE = 1.3  # times as much as what goes for it: of equal models none goes for the other
STAYS = 4.0  # times as long as it took to load: so a fifth of the memory at most is on its way for such


class Wishes:
    """What is asked for, whoever was asked for first in front; `policy` says what things are worth."""

    def __init__(self, policy: EvictionPolicy) -> None:
        self._policy = policy if isinstance(policy, ByImportance) else None
        self._models: dict[str, Held] = {}
        self._came: dict[str, float] = {}  # when models were last complete

    def __contains__(self, model: Held) -> bool:
        return model.name in self._models

    def __iter__(self) -> Iterator[Held]:
        return iter(list(self._models.values()))

    def add(self, model: Held) -> None:
        """Take in one that is not on its way."""
        self._models.setdefault(model.name, model)

    def discard(self, model: Held) -> None:
        """Forget one."""
        self._models.pop(model.name, None)

    def loaded(self, model: Held, now: float) -> None:
        """Hear that all of a model is there."""
        self.discard(model)
        self._came[model.name] = now

    def pays(self, wanted: Held, victims: Sequence[Victim], models: Mapping[str, Held], now: float) -> bool:
        """Tell whether these victims are to go for the rest of a model that nobody waits for."""
        going = [(models[victim.model], victim) for victim in victims]
        for model, _ in going:
            came = self._came.get(model.name)
            if came is not None and now - came < STAYS * model.footprint.penalty:
                return False
        if self._policy is None:
            return True
        loss = sum([self._policy.worth(model, now) * _lost(model, victim) for model, victim in going])
        return self._policy.gain(wanted, now) * wanted.stage_bytes > WORTH_MORE * loss


def _lost(model: Held, victim: Victim) -> int:
    """Return the bytes that are of no use once pieces go: all, where deadlines leave no time to load a stage again."""
    stage = victim.part is not None or min(victim.pieces) < model.footprint.stages
    return model.bytes if stage else model.size_of(victim.pieces)
