"""Small real models that read texts, one for each task, as model directories with a tokenizer trained on the spot."""

from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor, nn

from latebind.domain.model import About, Activation, Media, RawInput, Task
from latebind.domain.sizes import Dim
from latebind.preprocessing.settings import FORMAT, PREPROCESSING, TOKENIZER, Role, Stored, TextSettings
from latebind.program.build import build_program
from latebind.repository.directory import json_bytes

LONGEST, WIDTH, CLASSES = 24, 16, 3
SENTENCES = [
    "Wake me at seven in the morning, please.",
    "How warm will it be in Lisbon tomorrow?",
    "Play something slow by an old jazz band.",
    "Move two hundred euros to my savings account!",
    "Straße, naïve café and 東京 are words as well.",
    "What does the word obstreperous mean?",
]
LABELS = ("alarm", "weather", "music")
TAGS = ("O", "B-PER", "I-PER", "B-LOC")
TEXT, PAIR = RawInput("text", Media.TEXT), RawInput("text_pair", Media.TEXT, optional=True)
INPUTS = {Role.IDS: "ids", Role.MASK: "mask", Role.TYPES: "types"}
NAMES = tuple(INPUTS.values())


def trained_tokenizer() -> Tokenizer:
    """A tokenizer of word pieces as BERT has it."""
    found = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    found.normalizer = normalizers.BertNormalizer()
    found.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    found.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=160, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    found.train_from_iterator(SENTENCES, trainer)
    found.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return found


class Reader(nn.Module):
    """Words in their places, mixed by attention under a mask."""

    def __init__(self, words: int, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.words, self.kinds = nn.Embedding(words, WIDTH), nn.Embedding(2, WIDTH)
        self.places = nn.Parameter(torch.randn(LONGEST, WIDTH))
        self.mixing = nn.Linear(WIDTH, 3 * WIDTH)

    def read(self, ids: Tensor, mask: Tensor, types: Tensor) -> Tensor:
        read = self.words(ids) + self.kinds(types) + self.places[: ids.shape[1]]
        query, key, value = self.mixing(read).chunk(3, dim=-1)
        seen: Tensor = read + nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=(mask != 0)[:, None, :]
        )
        return seen

    def mean(self, ids: Tensor, mask: Tensor, types: Tensor) -> Tensor:
        weights = mask[:, :, None].float()
        found: Tensor = (self.read(ids, mask, types) * weights).sum(1) / weights.sum(1).clamp(min=1.0)
        return found


class Embeds(Reader):
    def __init__(self, words: int, *, normalizes: bool = True) -> None:
        super().__init__(words, 1)
        self.normalizes = normalizes

    def forward(self, ids: Tensor, mask: Tensor, types: Tensor) -> dict[str, Tensor]:
        found = self.mean(ids, mask, types)
        return {"embedding": nn.functional.normalize(found, dim=-1) if self.normalizes else found}


class Classifies(Reader):
    def __init__(self, words: int, classes: int = CLASSES) -> None:
        super().__init__(words, 2)
        self.topic = nn.Linear(WIDTH, classes)
        some = torch.randint(4, words, (64, LONGEST // 2))
        with torch.no_grad():  # else one class is the best of all texts
            found: Tensor = self.topic(self.mean(some, torch.ones_like(some), torch.zeros_like(some)))
            self.topic.bias.sub_(found.mean(0))

    def forward(self, ids: Tensor, mask: Tensor, types: Tensor) -> dict[str, Tensor]:
        return {"logits": self.topic(self.mean(ids, mask, types))}


class Tags(Reader):
    def __init__(self, words: int) -> None:
        super().__init__(words, 3)
        self.tag = nn.Linear(WIDTH, len(TAGS))

    def forward(self, ids: Tensor, mask: Tensor, types: Tensor) -> dict[str, Tensor]:
        return {"logits": self.tag(self.read(ids, mask, types))}


def networks(words: int) -> dict[str, tuple[nn.Module, About]]:
    """Each model by its name."""
    softmax, sigmoid = Activation.SOFTMAX, Activation.SIGMOID
    return {
        "embedder": (Embeds(words), About(Task.EMBED, (TEXT,))),
        "plain": (Embeds(words, normalizes=False), About(Task.EMBED, (TEXT,))),
        "intents": (Classifies(words), About(Task.CLASSIFY, (TEXT, PAIR), LABELS, softmax)),
        "reranker": (Classifies(words, 1), About(Task.RERANK, (TEXT, PAIR), (), sigmoid)),
        "tagger": (Tags(words), About(Task.TAG, (TEXT,), TAGS, softmax)),
    }


def build_readers(folder: Path, names: Sequence[str]) -> None:
    """Build these models in `folder`, each in a second or two."""
    tokenizer = trained_tokenizer()
    for name, (module, about) in networks(tokenizer.get_vocab_size()).items():
        if name not in names:
            continue
        prompts = {"query": "play "} if name == "embedder" else {}
        settings = TextSettings(INPUTS, LONGEST, pair=PAIR in about.raw, prompts=prompts)
        some = torch.randint(4, tokenizer.get_vocab_size(), (4, LONGEST))
        build_program(
            module.eval(),
            {"ids": some, "mask": torch.ones_like(some), "types": torch.randint(2, some.shape)},
            directory=folder / name / "1",
            name=name,
            backends=["eager"],
            min_stage_seconds=0.0,
            max_overhead=None,
            max_batch=8,
            dims=(Dim("L", 1, LONGEST),),
            sizes={each: ["L"] for each in NAMES},
            about=about,
            files={PREPROCESSING: json_bytes(Stored(FORMAT, settings)), TOKENIZER: tokenizer.to_str().encode()},
        )


def tokenizer_of(folder: Path) -> Tokenizer:
    """Return the tokenizer of models that were built: trained once more, it would be another."""
    found: Tokenizer = Tokenizer.from_file(str(folder / "embedder" / "1" / TOKENIZER))
    return found


def answered(tokenizer: Tokenizer, name: str, text: str, second: str | None = None) -> Tensor:
    """What the network itself says of a text, or of two: its output without the batch."""
    module, _ = networks(tokenizer.get_vocab_size())[name]
    read = tokenizer.encode(text, second)
    rows = (torch.tensor([values]) for values in (read.ids, read.attention_mask, read.type_ids))
    with torch.inference_mode():
        (output,) = module.eval()(*rows).values()
    found: Tensor = output[0]
    return found
