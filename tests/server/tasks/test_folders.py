"""From folders as Hugging Face saves them to what its own client gets: the same as from transformers' pipelines."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree
from typing import Any
from urllib.request import urlopen

import pytest
import torch
from huggingface_hub import InferenceClient

from latebind.bench.server import serving
from latebind.folders.build import build_folder, read_folder
from tests.folders.making import LONGEST, NARROW, byte_pairs, made_case, save, texts, transformers, word_piece
from tests.server.conftest import PATIENCE

TAGS = dict(enumerate(("O", "B-PER", "I-PER", "B-LOC", "I-LOC", "MISC")))
ROBERTA = {"type_vocab_size": 1, "max_position_embeddings": LONGEST + 2, "pad_token_id": 1}
CASES: dict[str, tuple[str, Any, dict[int, str], dict[str, Any]]] = {
    "bert-tags": ("BertForTokenClassification", word_piece, TAGS, {}),
    "roberta-tags": ("RobertaForTokenClassification", byte_pairs, TAGS, ROBERTA),
}
SHARED = ("bert", "roberta_many", "cross_encoder")  # built for other tests too


def short_texts() -> list[str]:
    """Texts of up to eight words: a pipeline cuts longer ones in silence, or fails."""
    return [" ".join(text.split()[:8]) for text in texts(50)]


@dataclass(frozen=True)
class Site:
    url: str
    folders: Path

    def client(self, name: str) -> InferenceClient:
        return InferenceClient(f"{self.url}/models/{name}")

    def pipeline(self, task: str, name: str, **options: Any) -> Any:
        return transformers.pipeline(task, model=str(self.folders / name), device="cpu", **options)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    place = tmp_path_factory.mktemp("folders")
    for name, (model, reader, labels, more) in CASES.items():
        made = reader()
        named = {"id2label": labels, "label2id": {label: number for number, label in labels.items()}}
        settings = {**NARROW, **named, **more, "vocab_size": len(made)}
        save(model, model.partition("For")[0] + "Config", settings, place / "folders" / name)
        made.save_pretrained(place / "folders" / name)
        folder = read_folder(str(place / "folders" / name))
        build_folder(
            folder,
            directory=place / "models" / name / "1",
            name=name,
            backends=["eager"],
            max_batch=2,
            max_overhead=None,
        )
    for name in SHARED:
        made = made_case(tmp_path_factory, name)
        copytree(made / "models" / name, place / "models" / name)
        copytree(made / "folder", place / "folders" / name)
    with serving(place / "models", "--deadline-ms", str(int(PATIENCE * 1e3))) as url:
        yield Site(url, place / "folders")


@pytest.mark.parametrize("strategy", ["none", "simple"])
@pytest.mark.parametrize("name", ["bert-tags", "roberta-tags"])
def test_tags_are_those_of_transformers_pipeline(site: Site, name: str, strategy: str) -> None:
    client = site.client(name)
    pipeline = site.pipeline("token-classification", name, aggregation_strategy=strategy)
    key = "entity" if strategy == "none" else "entity_group"
    count = 0
    for text in short_texts():
        found = client.token_classification(text, aggregation_strategy=strategy)
        wanted = pipeline(text)
        told = [(getattr(one, key), one.start, one.end) for one in found]
        assert told == [(one[key], one["start"], one["end"]) for one in wanted], text
        for one, right in zip(found, wanted, strict=True):
            assert abs(one.score - right["score"]) < 1e-4
        count += len(wanted)
    assert count > 100


@pytest.mark.parametrize("name", ["bert", "roberta_many"])
def test_classes_are_those_of_transformers_pipeline(site: Site, name: str) -> None:
    client, pipeline = site.client(name), site.pipeline("text-classification", name, top_k=None)
    for text in short_texts():
        found = {one.label: one.score for one in client.text_classification(text)}
        wanted = {one["label"]: one["score"] for one in pipeline([text])[0]}
        assert found.keys() == wanted.keys()
        assert max(abs(found[label] - wanted[label]) for label in wanted) < 1e-4


def test_a_cross_encoder_ranks_by_the_networks_own_logits(site: Site) -> None:
    query, *documents = short_texts()[:12]
    folder = str(site.folders / "cross_encoder")
    reader, network = (
        getattr(transformers, kind).from_pretrained(folder)
        for kind in ("AutoTokenizer", "AutoModelForSequenceClassification")
    )
    with torch.inference_mode():
        logits = [network(**reader(query, text, return_tensors="pt")).logits.item() for text in documents]
    body = json.dumps({"model": "cross_encoder", "query": query, "documents": documents}).encode()
    with urlopen(f"{site.url}/v1/rerank", body, timeout=PATIENCE) as reply:
        results = json.load(reply)["results"]
    assert [one["index"] for one in results] == sorted(range(len(documents)), key=lambda place: -logits[place])
    for one in results:
        assert abs(one["relevance_score"] - torch.sigmoid(torch.tensor(logits[one["index"]])).item()) < 1e-4
