import pytest

from latebind.preprocessing.expressions import Explosive, check_expression
from tests.preprocessing.making import CL100K, GPT2

KNOWN = {
    "GPT-2": GPT2,
    "Llama 3": CL100K,
    "Qwen 2": CL100K.replace(r"\p{N}{1,3}", r"\p{N}"),
    "o200k": (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
        r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "GPT-4 with possessive loops": (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}|"
        r" ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
    ),
    "DeepSeek": (
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
        r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "BLOOM": r" ?[^(\s|[.,!?…。，、।۔،])]+",  # noqa: RUF001
    "CLIP": r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
    "spaces": r"\s+",
    "two spaces and more": " {2,}",
    "ideographs": "[一-龥\u3040-\u309f\u30a0-\u30ff]+",
    "three digits": r"\p{N}{1,3}",
    "ends of lines": r"[\r\n]",
    "with an option": r"(?i)abc|d",
    "hexadecimal": r"\x41\x{1F600}\u00e9+",
    "sets of POSIX": r"[[:alpha:]_]+|[^[:space:]]",
    "all of two sets": r"[\p{L}&&[^\p{Han}]]+",
}


@pytest.mark.parametrize("pattern", KNOWN.values(), ids=KNOWN)
def test_patterns_of_real_models_pass(pattern: str) -> None:
    check_expression(pattern)


EXPLOSIVE = {
    "(a+)+b": "several ways",
    "(a*)*b": "several ways",
    "(?:a|a)+b": "several ways",
    "(?:a|ab)*c": "several ways",
    "((a{0,16}){0,16}){0,16}b": "several ways",
    "(a?){40}b": "several ways",
    "(?:a+)?(?:a+)?b": "several loops",
    "a*a*b": "several loops",
    r"\s*\s*x": "several loops",
    "(?:a*|b)(?:a*|c)d": "several loops",
    "a{0,300}a{0,300}b": "several loops",
    "a?" * 20 + "b": "ways at one place",
    "a{0,30}" * 4 + "b": "ways at one place",
    "((a{99}){99}){99}": "expands",
    "(a{9999}|b)": "expands",
    r"(a)\1+": r"\1",
    r"(?<n>a)\k<n>": "group",
    r"\g<0>": r"\g",
    "(?=a+b)a": "looks around",
    "(?<!a*)b": "looks around",
    "(?:(?!a|b+)c)*": "looks around",
    "(?~abc)": "group",
    "(?(a)b|c)": "group",
    "(*FAIL)": "group",
    "(?{code})": "group",
    "(?x) a +": "group",
    "a(?i)b|c": "group",
    "a{1,3}+": "repeats a repetition",
    "a**": "repeats a repetition",
    "(?:^)*a": "several ways",
    "^*a": "matches a place",
    "(?:)*a": "matches nothing",
    "a{x}": "number of repetitions",
    "a{": "number of repetitions",
    "a{3,1}": "wrong way round",
    "*a": "repeats nothing",
    "(a": "without a )",
    "a)": "without a (",
    "[a": "ends in the middle",
    "[]a]": "begins with ]",
    "a\\": "ends in the middle",
    r"\p{": "property",
    r"\x{zz}": "number of a character",
    r"\Xa": r"\X",
    "(" * 20 + ")" * 20: "within each other",
    "[" * 20 + "]" * 20: "",
    "a" * 3_000: "characters",
}


@pytest.mark.parametrize("pattern", EXPLOSIVE, ids=lambda pattern: pattern[:20])
def test_patterns_that_can_explode_are_refused_with_the_reason(pattern: str) -> None:
    with pytest.raises(Explosive) as refused:
        check_expression(pattern)
    assert EXPLOSIVE[pattern] in str(refused.value)


def test_characters_of_a_pattern_are_told_for_texts_to_try_it_on() -> None:
    assert check_expression(r"q+\x41|[x-z\n]") == {"q", "A", "x", "-", "z", "\n"}


def test_no_pattern_breaks_the_reader() -> None:
    import random

    drawn = random.Random(0)
    passed = 0
    for _ in range(20_000):
        pattern = "".join(drawn.choices(r"ab()[]{}|?*+\pPdsxu09,:=!<>^$.&- ", k=drawn.randint(0, 24)))
        try:
            check_expression(pattern)
            passed += 1
        except Explosive:
            pass
    assert 0 < passed < 20_000
