"""Folders whose networks generate text (T5, BART, Marian) as sequence models with texts as inputs and outputs."""

from collections.abc import Mapping, Sequence

import torch

from latebind.domain.errors import ConfigError
from latebind.domain.model import LENGTH, Media, RawInput
from latebind.domain.sizes import Dim
from latebind.folders.files import TEXT, Taken
from latebind.folders.networks import Network
from latebind.folders.reading import LENGTH as READ
from latebind.folders.reading import LONGEST_TEXT, TEXTS, Reading, Rows, tokenizer_of
from latebind.folders.sequences import SequenceNetwork, example_tokens, sequence_of
from latebind.preprocessing.preprocessor import CUT, Given, Preprocessor
from latebind.preprocessing.settings import TOKENIZER, Role, TextSettings
from latebind.program.verify import relative_error
from latebind.sequence.export import TOKENS

WRITTEN = "M"  # tokens of an answer: the dimension of what clients get
COMPARED = 4  # texts, and tokens of each answer, on which the network itself is run
SAME = 1e-3  # by which a number may differ there, relative to the largest
MEASURED = 256  # rows of data whose answers' lengths are measured


def writing_of(network: Network, taken: Taken, wanted: Mapping[str, Dim]) -> tuple[SequenceNetwork, Reading]:
    """Return a network as a sequence model, and how its texts are read; `wanted` limits the lengths of both texts.

    Raises `ConfigError` for what is not served, and if the model would not answer as the network does.
    """
    for name, dim in wanted.items():
        if name not in {READ, WRITTEN}:
            raise ConfigError(f"--dim {name}: {taken.shown} reads {READ} tokens and writes {WRITTEN}")
        if (dim.least, dim.step) != (1, 1):
            raise ConfigError(f"--dim {name}={dim.written()}: texts may have any length: give 1..{dim.most}")
    tokenizer, data = tokenizer_of(taken)
    limit = tokenizer.model_max_length
    most = min(limit, LONGEST_TEXT) if isinstance(limit, int) and limit < 1 << 30 else None
    module = sequence_of(
        network.module,
        taken.shown,
        longest_input=wanted[READ].most if READ in wanted else most,
        longest_output=wanted[WRITTEN].most if WRITTEN in wanted else None,
    )
    longest = module.longest_input

    def reference(given: Given) -> Rows:
        made = [tokenizer(text, truncation=True, max_length=longest, return_tensors="pt") for text in given[TEXT]]
        return [{TOKENS: row["input_ids"]} for row in made]

    settings = TextSettings(
        inputs={Role.IDS: TOKENS},
        longest=longest,
        kept="end" if tokenizer.truncation_side == "left" else "start",
    )
    reading = Reading(
        settings,
        (RawInput(TEXT, Media.TEXT),),
        {TOKENS: example_tokens(module)[:2]},
        (Dim(LENGTH, 1, longest),),
        {TOKENS: (LENGTH,)},
        reference,
        {TEXT: TEXTS},
        {TOKENIZER: data},
    )
    _compare(module, network, reference({TEXT: TEXTS[-COMPARED:]}), taken.shown)
    return module, reading


@torch.inference_mode()
def _compare(module: SequenceNetwork, network: Network, texts: Rows, shown: str) -> None:
    """Raise `ConfigError` if a sequence model finds other words likely than its network does."""
    for row in texts:
        tokens = row[TOKENS]
        words = tokens[:, torch.arange(COMPARED) % tokens.shape[1]] % module.answer.out_features
        words[:, 0] = module.start
        asked = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "decoder_input_ids": words}
        expected = network.module(**asked).logits
        state = module.encode(tokens, torch.tensor([tokens.shape[1]]))
        for name, (heads, _, size) in module.blank.items():
            state[name] = torch.zeros(1, heads, COMPARED, size)
        for place in range(COMPARED):
            changed = module.step(words[:, place], torch.tensor([place]), **state)
            if not relative_error([changed.pop("logits")], [expected[:, place]]) <= SAME:
                raise ConfigError(f"{shown} differs from other networks of its kind: this folder is not served")
            for name, part in changed.items():
                state[name][:, :, place] = part


def tokens_of(preprocessor: Preprocessor, texts: Sequence[str]) -> tuple[list[list[int]], str]:
    """Return the tokens of a few hundred texts at most, like those to be served, for the lengths of their answers.

    And a note about texts that were cut to fit, "" if none were. Raises `LatebindError` for what cannot be read.
    """
    some = texts[:: max(1, -(-len(texts) // MEASURED))]
    rows = preprocessor.prepare({TEXT: some}, CUT)
    cut = sum(row.cut > 0 for row in rows)
    note = f"{cut} of {len(rows)} texts are cut to the longest text that the model reads" if cut else ""
    return [row.tensors[TOKENS].tolist() for row in rows], note
