"""Networks of transformers as sequence models: answers are token for token those of `generate`, whoever runs beside."""

import os
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
from tests.folders.writers import FAMILIES, LONGEST, Network, bart, filled, generated, some_rows, without_padding


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
    assert len({len(row) for row in expected}) > 1
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
        "answers have at most 20 tokens, because generation_config.json has no max_length",
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
        (another, "my/folder is a pegasus network, and text is generated only by those of T5"),
        (one_token, "my/folder reads 40 tokens and writes 1: both must be 2 or more"),
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


# Each takes eight seconds: thoroughly all of them are built for each backend, else in turn.
BACKENDS = [name for name in exact_backends() if name != "compile"]
BUILT = ["t5", "flan", "bart", "marian"]
PAIRS = [(family, backend) for family in BUILT for backend in BACKENDS]
if os.environ.get("HYPOTHESIS_PROFILE") != "thorough":
    PAIRS = [(family, BACKENDS[place % len(BACKENDS)]) for place, family in enumerate(BUILT)]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "backend"), PAIRS)
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
