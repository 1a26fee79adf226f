"""A watch over fidelity: sampled answers beside the base model's, and an alarm when too many differ. Pure.

The alarm is a Shiryaev-Roberts e-detector (Shin, Ramdas and Rinaldo 2023, section 4): bets that more than the allowed
share differ, opened anew with every sample, so a change is found whenever it comes. While the fidelity is at its
target or above, alarms are at least `PATIENCE` samples apart in expectation, whatever the traffic.
"""

PATIENCE = 4_000.0  # samples
TIMES_WORSE = (1.5, 2.5, 5.0, 10.0)  # how much worse than allowed each bet takes it to be
MOST_WORSE = 0.7  # the most that a bet may suppose to differ


class FidelityWatch:
    """Watches that at most a share `1 - target` of answers differs from the base model's."""

    def __init__(self, target: float) -> None:
        self._allowed = min(max(1.0 - target, 1e-4), 0.5)
        self._wealth = [0.0] * len(TIMES_WORSE)
        self.seen = 0
        self.alarms = 0
        self.thin(0.0)

    def thin(self, left_out: float) -> None:
        """From now on, behind each sample that differs and is added, those of the next `left_out` that differ are not.

        So a smaller share of what is added may differ: of independent samples that differ with the allowed probability
        a, a share a / (1 + a (1 - a) left_out).
        """
        allowed = self._allowed / (1.0 + self._allowed * (1.0 - self._allowed) * left_out)
        supposed = [min(MOST_WORSE, times * allowed) for times in TIMES_WORSE]
        self._if_differs = [worse / allowed for worse in supposed]
        self._if_same = [(1.0 - worse) / (1.0 - allowed) for worse in supposed]

    def add(self, same: bool) -> bool:
        """Take in one comparison; True is an alarm, after which the watch begins anew."""
        self.seen += 1
        pay = self._if_same if same else self._if_differs
        self._wealth = [(wealth + 1.0) * factor for wealth, factor in zip(self._wealth, pay, strict=True)]
        if sum(self._wealth) / len(self._wealth) < PATIENCE:
            return False
        self.alarms += 1
        self.restart()
        return True

    def restart(self) -> None:
        """Forget what was seen: other answers are given from now on."""
        self._wealth = [0.0] * len(self._wealth)
