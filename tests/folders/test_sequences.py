"""Networks of transformers as sequence models: answers are token for token those of `generate`, whoever runs beside."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from latebind.domain.errors import ConfigError
from latebind.folders.sequences import SequenceNetwork, sequence_of
from latebind.program.backends import exact_backends
from latebind.sequence.build import build_sequence
from latebind.sequence.greedy import Greedy
from latebind.sequence.program import answer_all
from latebind.sequence.state import SpecialTokens
from latebind.sequence.stored import load_sequence

transformers = pytest.importorskip("transformers")

WORDS, LONGEST, ROWS = 96, 24, 100
Network = Any  # of transformers


def t5(**more: Any) -> Network:
    config = transformers.T5Config(
        vocab_size=WORDS,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=14,
        decoder_start_token_id=0,
        **more,
    )
    return drawn(transformers.T5ForConditionalGeneration(config))


def flan() -> Network:
    return t5(feed_forward_proj="gated-gelu", tie_word_embeddings=False)


def mt5() -> Network:
    config = transformers.MT5Config(
        vocab_size=WORDS, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0
    )
    return drawn(transformers.MT5ForConditionalGeneration(config))


SHAPE: dict[str, Any] = {
    "vocab_size": WORDS,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 40,
    "init_std": 0.3,
}


def bart() -> Network:
    return drawn(transformers.BartForConditionalGeneration(transformers.BartConfig(**SHAPE)))


def mbart() -> Network:
    config = transformers.MBartConfig(**SHAPE, scale_embedding=True)
    network = drawn(transformers.MBartForConditionalGeneration(config))
    network.generation_config.decoder_start_token_id, network.generation_config.forced_bos_token_id = 7, 9
    return network


def marian() -> Network:
    last = WORDS - 1
    config = transformers.MarianConfig(
        **SHAPE,
        scale_embedding=True,
        activation_function="swish",
        pad_token_id=last,
        decoder_start_token_id=last,
        eos_token_id=0,
    )
    network = drawn(transformers.MarianMTModel(config))
    network.generation_config.bad_words_ids, network.generation_config.forced_eos_token_id = [[last], [17]], 0
    return network


FAMILIES = {"t5": t5, "flan": flan, "mt5": mt5, "bart": bart, "mbart": mbart, "marian": marian}


def drawn(network: Network) -> Network:
    """Return the network with weights with which answers differ, and end sooner or later."""
    torch.manual_seed(3)
    network.eval().requires_grad_(False)
    for parameter in network.parameters():
        if parameter.dim() == 1:
            parameter.add_(0.1 * torch.randn(parameter.shape))
    spread = (
        6 / network.config.d_model**0.5
    )  # with the vectors of the words, an answer would be one word again and again
    network.lm_head.weight = torch.nn.Parameter(spread * torch.randn(network.lm_head.weight.shape), requires_grad=False)
    if hasattr(network, "final_logits_bias"):
        network.final_logits_bias.normal_(std=0.3)
    wishes = network.generation_config
    wishes.max_length, wishes.eos_token_id = 19, None
    said = Counter(token for row in generated(network, some_rows()) for token in set(row))
    wishes.eos_token_id = min(said, key=lambda token: abs(said[token] - ROWS // 2))  # in half of the answers
    return network


def some_rows(count: int = ROWS, seed: int = 0, words: int = WORDS) -> list[list[int]]:
    """Return rows of tokens of different lengths."""
    generator = np.random.default_rng(seed)
    return [generator.integers(3, words - 1, generator.integers(1, LONGEST + 1)).tolist() for _ in range(count)]


def filled(rows: Sequence[Sequence[int]], padding: int, width: int = LONGEST) -> Tensor:
    return torch.tensor([[*row, *[padding] * (width - len(row))] for row in rows])


def generated(network: Network, rows: Sequence[Sequence[int]], **more: Any) -> list[list[int]]:
    """Return the tokens that transformers writes for each row, without the one that they begin behind."""
    padding, found = network.generation_config.pad_token_id, list[list[int]]()
    for begin in range(0, len(rows), 25):
        some = rows[begin : begin + 25]
        width = max(map(len, some))
        mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in some])
        answers = network.generate(
            filled(some, padding, width), attention_mask=mask, num_beams=1, do_sample=False, **more
        )
        found += [without_padding(row, padding) for row in answers[:, 1:].tolist()]
    return found


def without_padding(row: Sequence[int], padding: int) -> list[int]:
    count = len(row)
    while count and row[count - 1] == padding:
        count -= 1
    return list(row[:count])


def written(module: SequenceNetwork, rows: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return what the module itself writes for rows that run together, all at one position."""
    state = module.encode(filled(rows, module.padding), torch.tensor([len(row) for row in rows]))
    for name, shape in module.blank.items():
        sizes = [module.longest_output if isinstance(size, str) else size for size in shape]
        state[name] = torch.zeros(len(rows), *sizes)
    greedy = Greedy(module.rules, SpecialTokens(module.start, module.end, module.padding), module.longest_output)
    token, answers = torch.full((len(rows),), module.start), np.full((len(rows), module.longest_output), module.padding)
    ended = np.zeros(len(rows), bool)
    for place in range(module.longest_output):
        position = torch.full((len(rows),), place)
        changed = module.step(token, position, **state)
        taken = greedy.take(changed.pop("logits").numpy(), position.numpy(), answers.__getitem__)
        answers[~ended, place] = taken[~ended]
        ended |= np.isin(taken, list(greedy.ends))
        for name, part in changed.items():
            state[name][:, :, place] = part
        token = torch.from_numpy(taken)
    return [without_padding(row, module.padding) for row in answers.tolist()]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_module_writes_what_transformers_generates(family: str) -> None:
    network, rows = FAMILIES[family](), some_rows()
    expected = generated(network, rows)
    assert len({tuple(row) for row in expected}) > 25, "answers say nothing if they are alike"
    assert len({len(row) for row in expected}) > 3
    assert written(sequence_of(network, "it", longest_input=LONGEST), rows) == expected


@pytest.mark.parametrize(
    "wishes",
    [
        {"no_repeat_ngram_size": 2, "min_length": 9},
        {"no_repeat_ngram_size": 1, "forced_eos_token_id": 2},
        {"min_new_tokens": 6, "forced_bos_token_id": 11, "suppress_tokens": [4, 5, 6]},
        {"eos_token_id": [*range(20, 50)]},
        {"max_new_tokens": 7, "bad_words_ids": [[8], [2], [9]]},
    ],
    ids=str,
)
def test_what_a_folder_wants_to_be_written_is_followed(wishes: dict[str, Any]) -> None:
    network, rows = bart(), some_rows()
    usual = generated(network, rows)
    for name, wish in wishes.items():
        setattr(network.generation_config, name, wish)
    expected = generated(network, rows)
    assert expected != usual
    module = sequence_of(network, "it", longest_input=LONGEST)
    assert not module.notes
    assert written(module, rows) == expected


def test_what_is_not_greedy_is_told() -> None:
    network = bart()
    network.generation_config.num_beams, network.generation_config.bad_words_ids = 4, [[5, 6]]
    network.generation_config.max_length = None
    notes = sequence_of(network, "it").notes
    assert notes == (
        "num_beams=4 is not followed: answers are greedy",
        "answers have at most 20 tokens, for generation_config.json has no max_length",
        "bad_words_ids of several tokens are not followed",
    )


def no_end(network: Network) -> None:
    network.generation_config.eos_token_id = None


def another(network: Network) -> None:
    network.config.model_type = "pegasus"


def one_token(network: Network) -> None:
    network.generation_config.max_new_tokens = 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (no_end, "my/folder: its generation_config.json has no eos_token_id"),
        (another, "my/folder is a pegasus network, and text is written by those of T5"),
        (one_token, "my/folder reads 40 tokens and writes 1: give 2 or more"),
    ],
)
def test_what_cannot_be_served_is_refused_in_a_sentence(change: Callable[[Network], None], says: str) -> None:
    network = bart()
    change(network)
    with pytest.raises(ConfigError, match=says):
        sequence_of(network, "my/folder")


def test_no_more_is_read_or_written_than_there_are_positions() -> None:
    network = bart()
    network.generation_config.max_length = 1_000
    module = sequence_of(network, "it", longest_input=512)
    assert (module.longest_input, module.longest_output) == (40, 40)


@pytest.mark.slow
@pytest.mark.parametrize("backend", [name for name in exact_backends() if name != "compile"])
@pytest.mark.parametrize("family", ["t5", "flan", "bart", "marian"])
def test_a_built_model_writes_what_transformers_generates_alone_and_beside_others(
    family: str, backend: str, tmp_path: Path
) -> None:
    network, rows = FAMILIES[family](), some_rows()
    expected = generated(network, rows)
    module = sequence_of(network, "it", longest_input=LONGEST)
    tokens = filled(rows, module.padding)
    report = build_sequence(module, tokens[:40], directory=tmp_path / "m", name="m", backends=[backend], max_batch=8)
    program = load_sequence(report.directory)
    assert program.backend == backend
    assert {part.sizes[1] for part in program.parts if part.sizes} == {"length", "written"}

    def answers(given: Tensor) -> list[list[int]]:
        return [without_padding(row, module.padding) for row in answer_all(program, given.numpy()).tolist()]

    assert answers(tokens) == expected
    assert [answers(tokens[place : place + 1, : len(rows[place])])[0] for place in range(20)] == expected[:20]
