"""Tokenizers as the families of models have them, taught on the spot on a few sentences."""

import json
from collections.abc import Callable, Sequence
from functools import cache, wraps
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

SENTENCES = (
    "Can you tell me what the weather will be like in Berlin tomorrow?",
    "Please transfer 250 dollars from my savings account to checking.",
    "How do I make a carrot cake without eggs, and how long must it bake?",
    "Die Straße wird am Montag gesperrt; nehmen Sie die nächste Ausfahrt.",
    "Le garçon mange une pomme près de l'église.",
    "我想预订明天去上海的机票。",
    "don't   panic -- it's only 3.14159 (approximately)!",
    "The quick brown fox jumps over the lazy dog.\n\tA new line follows.",
)
# What texts may have that tokenizers treat in ways of their own.
HARD = (
    *SENTENCES, "", " ", "a", "  leading and trailing  ", "UPPER lower MiXeD", "café cafe\u0301",
    "a[SEP]b <mask> c</s>d", "ﷺ ﬁne ① \uff12", "👩\u200d👩\u200d👧 🇩🇪", "\u00ad\u200b\ufeffzero", "x" * 300,
    "word " * 60, "\uff11\uff12\uff13 \u0663 Ⅷ", "\x00\x01\x7f", "…—“quoted”",
)  # fmt: skip
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def taught(make: Callable[[], Tokenizer]) -> Callable[[], Tokenizer]:
    """Teach it once, for it would learn something else each time; return a copy at each call."""
    once = cache(lambda: make().to_str())

    @wraps(make)
    def copy() -> Tokenizer:
        return Tokenizer.from_str(once())

    return copy


@taught
def bert() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(
        SENTENCES, trainers.WordPieceTrainer(vocab_size=300, show_progress=False, special_tokens=specials)
    )
    tokenizer.post_processor = _template(tokenizer, "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", "[CLS]", "[SEP]")
    return tokenizer


@taught
def roberta() -> Tokenizer:
    """BART has the same."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    _teach_bytes(tokenizer, ["<s>", "<pad>", "</s>", "<unk>", AddedToken("<mask>", lstrip=True, special=True)])
    known = tokenizer.get_vocab()
    sep, start = ("</s>", known["</s>"]), ("<s>", known["<s>"])
    tokenizer.post_processor = processors.RobertaProcessing(sep, start, trim_offsets=True, add_prefix_space=False)
    return tokenizer


@taught
def modernbert() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    mask = AddedToken("[MASK]", lstrip=True, special=True)
    _teach_bytes(tokenizer, ["[UNK]", "[CLS]", "[SEP]", "[PAD]", mask])
    tokenizer.add_tokens([AddedToken(" " * length, normalized=True) for length in range(24, 1, -1)])
    tokenizer.post_processor = _template(tokenizer, "[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]", "[CLS]", "[SEP]")
    return tokenizer


@taught
def llama3() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(CL100K), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip
    tokenizer.decoder = decoders.ByteLevel()
    _teach_bytes(tokenizer, ["<|begin_of_text|>", "<|end_of_text|>"])
    start = _template(
        tokenizer, "<|begin_of_text|> $A", "<|begin_of_text|> $A <|begin_of_text|>:1 $B:1", "<|begin_of_text|>"
    )
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), start])
    return tokenizer


@taught
def gpt2() -> Tokenizer:
    """It adds nothing to a text, and takes the space before a word for a part of it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    _teach_bytes(tokenizer, ["<|endoftext|>"])
    return tokenizer


@taught
def deberta() -> Tokenizer:
    tokenizer = _unigram(["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"], "[UNK]")
    tokenizer.normalizer = normalizers.Sequence([
        normalizers.Replace("\n", " "), normalizers.NFKC(), normalizers.Strip(),
        normalizers.Replace(Regex(" {2,}"), " "),
    ])  # fmt: skip
    tokenizer.post_processor = _template(tokenizer, "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", "[CLS]", "[SEP]")
    return tokenizer


@taught
def t5() -> Tokenizer:
    tokenizer = _unigram(["<pad>", "</s>", "<unk>"], "<unk>")
    tokenizer.add_special_tokens([AddedToken(f"<extra_id_{number}>") for number in range(10)])
    tokenizer.post_processor = _template(tokenizer, "$A </s>", "$A </s> $B </s>", "</s>")
    return tokenizer


@taught
def marian() -> Tokenizer:
    tokenizer = _unigram(["</s>", "<unk>", "<pad>"], "<unk>")
    tokenizer.post_processor = _template(tokenizer, "$A </s>", "$A $B </s>", "</s>")
    return tokenizer


@taught
def words() -> Tokenizer:
    """The plainest kind, which adds nothing to a text."""
    known = {word: number for number, word in enumerate(("<unk>", *sorted({w for s in SENTENCES for w in s.split()})))}
    tokenizer = Tokenizer(models.WordLevel(known, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


FAMILIES: dict[str, Callable[[], Tokenizer]] = {
    made.__name__: made for made in (bert, roberta, modernbert, llama3, gpt2, deberta, t5, marian, words)
}


def json_of(tokenizer: Tokenizer) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(tokenizer.to_str())
    return content


def bytes_of(content: Any) -> bytes:
    return json.dumps(content, ensure_ascii=False).encode()


def _template(tokenizer: Tokenizer, single: str, pair: str, *specials: str) -> processors.TemplateProcessing:
    tokens = [(special, tokenizer.token_to_id(special)) for special in specials]
    return processors.TemplateProcessing(single=single, pair=pair, special_tokens=tokens)


def _teach_bytes(tokenizer: Tokenizer, specials: Sequence[str | AddedToken]) -> None:
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, show_progress=False, special_tokens=list(specials), initial_alphabet=letters
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)


def _unigram(specials: list[str], unknown: str) -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=150, show_progress=False, special_tokens=specials, unk_token=unknown)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    return tokenizer
