"""A network of half of the blocks: which are left, and that it learns the answers of the whole one."""

from pathlib import Path

import pytest
import torch
import transformers
from torch import Tensor

from latebind.folders.build import read_folder
from latebind.learned.activations import batches
from latebind.learned.samples import Samples, checked
from latebind.program.backends import compile_graph
from latebind.program.cut import find_carries, with_carries
from latebind.program.export import Exported, export_any_size
from latebind.program.padding import turned
from latebind.program.verify import relative_error
from research.gati.distilled import distil, fewer_blocks, learn
from research.gati.models import CachedModel
from tests.folders.making import NARROW, save, word_piece
from tests.research.conftest import quiet
from tests.texts import FIT, samples, unseen


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier of texts with six blocks, as Hugging Face saves it."""
    place, reader = tmp_path_factory.mktemp("six"), word_piece()
    settings = {**NARROW, "num_hidden_layers": 6, "vocab_size": len(reader), "num_labels": 3}
    save("BertForSequenceClassification", "BertConfig", settings, place)
    reader.save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def six(folder: Path) -> Exported:
    read = read_folder(str(folder))
    reading = read.reading
    return export_any_size(read.module, reading.inputs, dims=reading.dims, sizes=reading.sizes)[0]


def rows(length: int) -> tuple[Tensor, ...]:
    """Two texts, the second shorter than the first."""
    generator = torch.Generator().manual_seed(length)
    mask = torch.ones(2, length, dtype=torch.int64)
    mask[1, length // 2 + 1 :] = 0
    return torch.randint(5, 40, (2, length), generator=generator), mask


def test_the_first_the_last_and_one_between_are_left_of_six_blocks(folder: Path, six: Exported) -> None:
    graph, weights = six
    found, name = fewer_blocks(graph, weights) or pytest.fail("no blocks were found")
    assert name == "3 of 6 blocks"
    network = transformers.BertForSequenceClassification.from_pretrained(folder).eval()
    layers = network.bert.encoder.layer
    network.bert.encoder.layer = torch.nn.ModuleList([layers[0], layers[2], layers[5]])
    run = compile_graph(found, weights, backend="eager", threads=1)
    for length in (1, 2, 7, 20):
        ids, mask = rows(length)
        with torch.inference_mode():
            wanted = network(input_ids=ids, attention_mask=mask).logits
        assert relative_error(run(ids, mask), (wanted,)) <= 1e-5


def test_a_graph_that_is_cut_already_gives_the_same(six: Exported) -> None:
    graph, weights = six
    carries = turned(graph, weights, find_carries(graph))
    cut = with_carries(graph, carries[:1] + carries[4:5])
    found, other = (fewer_blocks(one, weights) or pytest.fail("no blocks were found") for one in (graph, cut))
    runs = [compile_graph(one[0], weights, backend="eager", threads=1) for one in (found, other)]
    assert relative_error(*(run(*rows(9)) for run in runs)) <= 1e-5


def test_a_network_without_blocks_is_let_alone() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3)).eval()
    exported, _ = export_any_size(module, (torch.randn(4, 6),))
    assert fewer_blocks(*exported) is None


@pytest.mark.slow
def test_what_is_left_learns_the_answers_of_the_whole_network(six: Exported) -> None:
    graph, weights = six
    found, _ = fewer_blocks(graph, weights) or pytest.fail("no blocks were found")
    teacher = compile_graph(graph, weights, backend="eager", threads=1)
    texts = [rows(length) for length in range(3, 13) for _ in range(2)]
    inputs = {spec.name: [row for text in texts for row in text[place]] for place, spec in enumerate(graph.inputs)}
    fit = Samples(inputs, None).ordered(graph.inputs, graph.dims)
    before = {name: weights[name].clone() for name in found.weights()}
    taught = {name: tensor.clone() for name, tensor in before.items()}
    learn(found, taught, teacher, fit, seed=0, on_progress=quiet)

    def apart(some: dict[str, Tensor]) -> float:
        run = compile_graph(found, some, backend="eager", threads=1)
        return sum(relative_error(run(*text), teacher(*text)) for text in texts) / len(texts)

    assert apart(taught) < 0.5 * apart(before)
    assert all(torch.equal(before[name], weights[name]) for name in before)  # the whole network keeps its own


@pytest.mark.slow
def test_a_model_directory_of_texts_is_distilled(texts_model: CachedModel) -> None:
    fit, asked = (checked(some, texts_model.program.spec) for some in (samples(0, FIT), unseen()))
    found = distil(texts_model, fit, seed=0, on_progress=quiet)
    assert found is not None
    name, run, size = found
    assert name == "2 of 3 blocks, distilled"
    assert 0 < size < texts_model.bytes
    same = [(run(*batch)[0].argmax(1) == texts_model.uncut(*batch)[0].argmax(1)).float() for _, batch in batches(asked)]
    assert float(torch.cat(same).mean()) > 0.9
