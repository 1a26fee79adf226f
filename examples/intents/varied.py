"""Texts made of others, as nobody wrote them: what a network and those that answer for it may learn to agree on.

A network that was fine-tuned is sure of nearly all that it learned from. What it answers where it is not, predictors
learn of texts that lie between those, and no label is needed for that.
"""

from collections.abc import Sequence
from random import Random

LEFT_OUT, EXCHANGED = 0.2, 0.25  # shares of the words
LEAST, MOST = 0.3, 0.7  # of a text that is joined with another
SWAPPED = 0.3  # of the texts, in which two neighbors change places


def varied(texts: Sequence[str], *, copies: int, seed: int) -> list[str]:
    """Return `copies` texts made of each: words left out, its begin with another's end, or words of any exchanged."""
    random = Random(seed)
    split = [text.split() or [""] for text in texts]
    every = [word for words in split for word in words]
    return [" ".join(_vary(words, split, every, random)) for _ in range(copies) for words in split]


def _vary(words: Sequence[str], others: Sequence[Sequence[str]], every: Sequence[str], random: Random) -> list[str]:
    how = random.random()
    if how < 0.4:
        found = [word for word in words if random.random() >= LEFT_OUT] or [words[0]]
    elif how < 0.75:
        other = random.choice(others)
        first, rest = (max(1, round(len(part) * random.uniform(LEAST, MOST))) for part in (words, other))
        found = [*words[:first], *other[-rest:]]
    else:
        found = [random.choice(every) if random.random() < EXCHANGED else word for word in words]
    if len(found) > 2 and random.random() < SWAPPED:
        place = random.randrange(len(found) - 1)
        found[place], found[place + 1] = found[place + 1], found[place]
    return found
