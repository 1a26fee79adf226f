"""Checks whether a regular expression of a tokenizer file can take long: only forms that cannot explode are allowed.

The library behind `tokenizers` (Oniguruma) backtracks. What matters is how many ways there are to match one stretch of
text before the search gives up at a place: an expression may have one unbounded loop that can give back what it
matched, and a limited number of ways besides. The patterns with which language models split texts need no more.
"""

import string
from dataclasses import dataclass

MOST_CHARACTERS = 2_000  # of an expression
MOST_WAYS = 512  # to match at one place, loops apart
MOST_WIDTH = 1_000  # characters that an expression without loops expands to
FEW = 32  # repetitions up to which a loop counts as ways
DEEPEST = 8  # groups within groups
SEEN = 64  # characters that are noted, for texts to try an expression on

_SETS = frozenset("sSdDwWhH")
_PLAIN = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "a": "\a", "e": "\x1b"}
_PLACES = frozenset("bBAZz")
_SIGNS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


class Explosive(ValueError):
    """An expression that is refused; the message says why."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some repetitions of one character (`body` is None) or of a group; `high` is None if unbounded."""

    body: "tuple[tuple[_Piece, ...], ...] | None" = None
    low: int = 1
    high: int | None = 1
    kept: bool = False  # repetitions are not given back (`a++`, `(?>a+)`)
    looks: bool = False  # it matches a place: an anchor or a lookaround

    @property
    def fixed(self) -> bool:
        """Whether it matches in one way only."""
        if self.low != self.high or self.looks:
            return False
        return self.body is None or (len(self.body) == 1 and all(piece.fixed for piece in self.body[0]))

    @property
    def may_fail(self) -> bool:
        if self.looks:
            return True
        return self.low > 0 and (self.body is None or all(any(piece.may_fail for piece in way) for way in self.body))

    @property
    def width(self) -> int:
        """Characters that it expands to when it is compiled."""
        once = 1 if self.body is None else sum(piece.width for way in self.body for piece in way)
        return once * max(self.low, self.high or 1, 1)


def check_expression(pattern: str) -> set[str]:
    """Return characters that a pattern involves; raises `Explosive` unless it is certainly harmless."""
    if len(pattern) > MOST_CHARACTERS:
        raise Explosive(f"has {len(pattern)} characters, more than {MOST_CHARACTERS}")
    reader = _Reader(pattern)
    ways = reader.alternatives(0)
    if reader.place < len(pattern):
        raise Explosive("has a ) without a (")
    if sum(piece.width for way in ways for piece in way) > MOST_WIDTH:
        raise Explosive(f"expands to more than {MOST_WIDTH} characters")
    number, loops = _cost(ways, may_fail=False)
    if loops > 1:
        raise Explosive("has several loops in a row that give back what they matched")
    if number > MOST_WAYS:
        raise Explosive(f"can match in more than {MOST_WAYS} ways at one place")
    return reader.seen


def _cost(ways: tuple[tuple[_Piece, ...], ...], *, may_fail: bool) -> tuple[int, int]:
    """Return in how many ways these match at a place, and the most unbounded loops that one of them may give back.

    A loop gives back what it matched only if something after it `may_fail`.
    """
    number = most_loops = 0
    for way in ways:
        product, loops, behind = 1, 0, may_fail
        for piece in reversed(way):
            if piece.body is not None:
                inner, inner_loops = _cost(piece.body, may_fail=behind and not piece.kept)
                product *= inner
                loops += inner_loops
            if piece.low != piece.high and behind and not piece.kept:
                if piece.high is None or piece.high > FEW:
                    loops += 1
                else:
                    product *= piece.high - piece.low + 1
            behind = behind or piece.may_fail
        number += product
        most_loops = max(most_loops, loops)
    return number, most_loops


class _Reader:
    """Reads an expression as Oniguruma does, and refuses what it would have to guess."""

    def __init__(self, pattern: str) -> None:
        self.pattern, self.place = pattern, 0
        self.seen = set[str]()

    def alternatives(self, depth: int) -> tuple[tuple[_Piece, ...], ...]:
        """Read up to the end of a group, or of the expression."""
        if depth > DEEPEST:
            raise Explosive(f"has more than {DEEPEST} groups within each other")
        ways, way = list[tuple[_Piece, ...]](), list[_Piece]()
        while self._ahead not in {"", ")"}:
            if self._takes("|"):
                ways.append(tuple(way))
                way = []
            elif (piece := self._piece(depth)) is not None:
                way.append(piece)
        return (*ways, tuple(way))

    @property
    def _ahead(self) -> str:
        return self.pattern[self.place : self.place + 1]

    def _takes(self, word: str) -> bool:
        found = self.pattern.startswith(word, self.place)
        if found:
            self.place += len(word)
        return found

    def _next(self) -> str:
        if not self._ahead:
            raise Explosive("ends in the middle")
        self.place += 1
        return self.pattern[self.place - 1]

    def _note(self, character: str) -> None:
        if len(self.seen) < SEEN:
            self.seen.add(character)

    def _piece(self, depth: int) -> _Piece | None:
        character = self._next()
        if character == "(":
            piece = self._group(depth)
        elif character == "[":
            self._class(0)
            piece = _Piece()
        elif character == "\\":
            piece = _Piece(looks=self._escaped())
        elif character in "^$":
            piece = _Piece(looks=True)
        elif character in "*+?{":
            raise Explosive(f"has a {character} that repeats nothing")
        else:
            if character != ".":
                self._note(character)
            piece = _Piece()
        return None if piece is None else self._repeated(piece)

    def _repeated(self, piece: _Piece) -> _Piece:
        if self._ahead not in {"*", "+", "?", "{"}:
            return piece
        sign = self._next()
        low, bound = self._interval() if sign == "{" else _SIGNS[sign]
        kept = sign != "{" and self._takes("+")
        if not kept:
            self._takes("?")  # lazy: the ways are the same
        if self._ahead in {"*", "+", "?", "{"}:
            raise Explosive("repeats a repetition")
        if piece.looks:
            raise Explosive("repeats what matches a place")
        if piece.body is not None and (bound is None or bound > 1) and not piece.fixed:
            raise Explosive("repeats a group that matches in several ways")
        if piece.body is not None and not piece.width:
            raise Explosive("repeats a group that matches nothing")
        return _Piece(piece.body, low, bound, kept or piece.kept)

    def _interval(self) -> tuple[int, int | None]:
        end = self.pattern.find("}", self.place)
        least, comma, most = self.pattern[self.place : max(end, self.place)].partition(",")
        for number in (least, most):
            if len(number) > 4 or not set(number) <= set(string.digits):
                raise Explosive("has a { that begins no number of repetitions")
        if end < 0 or not (least or most):
            raise Explosive("has a { that begins no number of repetitions")
        self.place = end + 1
        low = int(least or 0)
        high = (int(most) if most else None) if comma else low
        if high is not None and high < low:
            raise Explosive("has a number of repetitions whose bounds are the wrong way round")
        return low, high

    def _group(self, depth: int) -> _Piece | None:
        looks = kept = False
        if self._takes("?"):
            if self._takes("<=") or self._takes("<!") or self._takes("=") or self._takes("!"):
                looks = True
            elif self._takes(">"):
                kept = True
            else:
                start = self.place - 2
                while self._ahead and self._ahead in "ims-":
                    self.place += 1
                if start == 0 and self._takes(")"):  # elsewhere it would reach over the alternatives that follow
                    return None
                if not self._takes(":"):
                    raise Explosive("has a kind of group that is not known to be harmless")
        elif self._ahead == "*":
            raise Explosive("has a kind of group that is not known to be harmless")
        body = self.alternatives(depth + 1)
        if not self._takes(")"):
            raise Explosive("has a ( without a )")
        if looks and not all(piece.fixed for way in body for piece in way):
            raise Explosive("looks around for what matches in several ways")
        return _Piece(body, kept=kept, looks=looks)

    def _escaped(self) -> bool:
        """Read what follows a backslash; return whether it matches a place."""
        character = self._next()
        if character in _PLACES:
            return True
        if character in "pP":
            self._property()
        elif character in "xu":
            self._note(self._code(character))
        elif character in _PLAIN:
            self._note(_PLAIN[character])
        elif character not in _SETS:
            if character.isalnum():
                raise Explosive(f"has \\{character}, which is not known to be harmless")
            self._note(character)
        return False

    def _property(self) -> None:
        end = self.pattern.find("}", self.place)
        name = self.pattern[self.place + 1 : max(end, self.place)]
        if not self._takes("{") or end < 0 or len(name) > 64 or not name.strip("^").replace("_", "").isalnum():
            raise Explosive("has a \\p without the name of a property")
        self.place = end + 1

    def _code(self, kind: str) -> str:
        if kind == "x" and self._takes("{"):
            end = self.pattern.find("}", self.place)
            digits, after = self.pattern[self.place : max(end, self.place)], end + 1
        else:
            length = 2 if kind == "x" else 4
            digits, after = self.pattern[self.place : self.place + length], self.place + length
            if len(digits) < length:
                digits = ""
        if not 0 < len(digits) <= 6 or not set(digits) <= set(string.hexdigits) or int(digits, 16) > 0x10FFFF:
            raise Explosive(f"has a \\{kind} without the number of a character")
        self.place = after
        return chr(int(digits, 16))

    def _class(self, depth: int) -> None:
        """Read a set of characters after its `[`; sets may be nested."""
        if depth > DEEPEST:
            raise Explosive(f"has more than {DEEPEST} sets of characters within each other")
        self._takes("^")
        if self._ahead == "]":
            raise Explosive("has a set of characters that begins with ]")
        while not self._takes("]"):
            if self._takes("[:"):
                end = self.pattern.find(":]", self.place)
                if end < 0 or not self.pattern[self.place : end].strip("^").isalpha():
                    raise Explosive("has a [: without the name of a set")
                self.place = end + 2
            elif self._takes("["):
                self._class(depth + 1)
            elif self._takes("\\"):
                if self._ahead in _PLACES:
                    raise Explosive(f"has \\{self._ahead} in a set of characters")
                self._escaped()
            else:
                self._note(self._next())
