"""What is not built from a folder, each with one sentence; and that nothing of a folder is ever run or unpickled."""

import json
import os
import pickle
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from latebind.domain.errors import ConfigError, LatebindError
from latebind.domain.model import Task
from latebind.domain.sizes import Dim
from latebind.folders.build import read_folder
from latebind.folders.files import taken
from latebind.folders.reading import tokenizer_of
from tests.folders.making import NARROW, make_folder, save

RAN = "ran"


class Runs:
    """What a pickle may do to whoever reads it."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (self.place, RAN)


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each of some cases."""
    place = tmp_path_factory.mktemp("folders")
    for name in ("bert", "bert_mean", "xlm_roberta_cls", "cross_encoder", "vit", "wav2vec2"):
        make_folder(name, place / name)
    return place


@pytest.fixture
def copy(once: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that copies a folder, for a test to change."""
    return lambda name: Path(shutil.copytree(once / name, tmp_path / name))


def change(file: Path, **fields: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


def refusal(folder: Path, **how: Any) -> str:
    """Return why a folder is refused: one line, without a traceback or a path of ours."""
    with pytest.raises(LatebindError) as raised:
        read_folder(str(folder), **how)
    said = str(raised.value)
    assert "\n" not in said
    assert "/latebind-" not in said
    return said


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_code_of_a_folder_is_refused_and_never_run(file: str, copy: Callable[[str], Path], tmp_path: Path) -> None:
    folder, ran = copy("bert"), tmp_path / RAN
    (folder / "modeling_mine.py").write_text(f"open({str(ran)!r}, 'w').write('{RAN}')\nclass Mine: pass\n")
    change(folder / file, auto_map={"AutoConfig": "modeling_mine.Mine", "AutoTokenizer": ["modeling_mine.Mine", None]})
    assert f"needs code of its own (auto_map in {file})" in refusal(folder)
    assert not ran.exists()


@pytest.mark.slow
def test_code_that_nothing_names_is_not_looked_at(copy: Callable[[str], Path], tmp_path: Path) -> None:
    folder, ran = copy("bert"), tmp_path / RAN
    for name in ("modeling_bert", "tokenization_bert", "configuration_bert", "__init__", "sitecustomize"):
        (folder / f"{name}.py").write_text(f"open({str(ran)!r}, 'w').write('{RAN}')\n")
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Runs(ran)))
    (folder / "training_args.bin").write_bytes(pickle.dumps(Runs(ran)))
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "somebody/else"}))
    assert read_folder(str(folder)).about.task is Task.CLASSIFY
    assert not ran.exists()


def test_pickled_weights_are_refused_and_never_read(copy: Callable[[str], Path], tmp_path: Path) -> None:
    folder, ran = copy("bert"), tmp_path / RAN
    (folder / "model.safetensors").unlink()
    assert "has no model.safetensors" in refusal(folder)
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Runs(ran)))
    assert "its weights in pytorch_model.bin only, a pickle, which may contain code" in refusal(folder)
    (folder / "model.safetensors").write_bytes(pickle.dumps(Runs(ran)))
    assert "model.safetensors is not a safetensors file" in refusal(folder)
    assert not ran.exists()


def test_quantized_weights_are_refused(copy: Callable[[str], Path]) -> None:
    folder = copy("bert")
    change(folder / "config.json", quantization_config={"quant_method": "gptq", "bits": 4})
    assert "is quantized (gptq), and only plain numbers are read" in refusal(folder)


def test_language_models_are_refused_with_what_serves_them(tmp_path: Path) -> None:
    settings = {"vocab_size": 64, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32}
    save("GPT2LMHeadModel", "GPT2Config", settings, tmp_path)
    assert "is a language model (GPT2LMHeadModel), which is not served: vLLM" in refusal(tmp_path)


def test_an_unknown_architecture_is_refused_with_what_is_known(copy: Callable[[str], Path]) -> None:
    folder = copy("bert")
    change(folder / "config.json", architectures=["MineForEverything"])
    assert "MineForEverything. Served are classify (sound): " in (said := refusal(folder))
    assert "rerank" not in said
    change(folder / "config.json", architectures=["MineForEverything"], model_type="mine")
    assert "Served are" in refusal(folder)
    change(folder / "config.json", architectures=["BertForQuestionAnswering"], model_type="bert")
    assert "BertForQuestionAnswering. Served are" in refusal(folder)
    change(folder / "config.json", architectures=None)
    assert "names no architecture" in refusal(folder)
    change(folder / "config.json", model_type=None)
    assert "no model_type" in refusal(folder)


def test_a_task_that_the_architecture_does_not_leave_open_is_refused(once: Path) -> None:
    assert "--task tag:" in (said := refusal(once / "bert", task="tag"))
    assert said.endswith("is built for classify or rerank or embed")
    assert "has 3 classes, and a reranker must have one" in refusal(once / "bert", task="rerank")
    assert "did you mean 'classify'?" in refusal(once / "bert", task="clasify")
    assert "is built for embed" in refusal(once / "bert_mean", task="classify")


@pytest.mark.slow
def test_a_task_may_be_chosen_where_the_architecture_leaves_it_open(once: Path) -> None:
    folder = read_folder(str(once / "bert"), task="embed")
    assert folder.about.task is Task.EMBED
    assert folder.notes == (
        "the folder does not define pooling: an embedding is the mean over its text's tokens, not normalized",
    )
    assert read_folder(str(once / "cross_encoder"), task="classify").about.labels == ("LABEL_0",)


def test_a_head_without_weights_is_refused(copy: Callable[[str], Path]) -> None:
    folder = copy("bert_mean")
    for name in ("modules.json", "sentence_bert_config.json"):
        (folder / name).unlink()
    change(folder / "config.json", architectures=["BertForSequenceClassification"])
    assert "has no weights that fit classifier.bias, classifier.weight" in refusal(folder)


def test_weights_that_are_not_those_of_the_configuration_are_refused(copy: Callable[[str], Path]) -> None:
    folder = copy("bert")
    change(folder / "config.json", hidden_size=64)
    assert refusal(folder)
    change(folder / "config.json", hidden_size=1 << 22, intermediate_size=1 << 22)
    assert "copy the whole folder" in refusal(folder)


@pytest.mark.parametrize(
    ("key", "value"),
    [("num_hidden_layers", 10**9), ("vocab_size", 10**12), ("num_labels", 10**9), ("max_position_embeddings", 10**30)],
)
def test_sizes_that_nobody_can_wait_for_are_refused_at_once(key: str, value: int, copy: Callable[[str], Path]) -> None:
    folder = copy("bert")
    change(folder / "config.json", **{key: value})
    assert f"config.json has {key} {value}" in refusal(folder)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b"3"])
@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "modules.json", "1_Pooling/config.json"])
def test_broken_files_are_refused(data: bytes, file: str, copy: Callable[[str], Path]) -> None:
    folder = copy("bert_mean")
    (folder / file).write_bytes(data)
    assert refusal(folder)


def test_a_configuration_of_more_than_its_bound_is_not_read(copy: Callable[[str], Path]) -> None:
    folder = copy("bert")
    change(folder / "config.json", more="x" * (17 << 20))
    assert "config.json has 17" in refusal(folder)


@pytest.mark.slow
def test_weights_in_several_files_are_read(once: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(once / "bert", tmp_path / "shards"))
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    halves = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, some in halves.items():
        save_file({name: weights[name] for name in some}, folder / file, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": {name: file for file, some in halves.items() for name in some}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    found, whole = read_folder(str(folder)), read_folder(str(once / "bert"))
    rows = whole.reading.inputs
    assert torch.equal(found.answers(rows)[0], whole.answers(rows)[0])
    index["weight_map"] = dict.fromkeys(names, "../bert/model.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "names missing files" in refusal(folder)


def test_modules_that_are_not_served_are_refused(copy: Callable[[str], Path]) -> None:
    folder = copy("xlm_roberta_cls")
    listed = json.loads((folder / "modules.json").read_text())
    for kind, said in (
        ("mine.Pooling", "a module of its own code, mine.Pooling"),
        ("sentence_transformers.models.CNN", "has a module CNN"),
    ):
        changed = [*listed[:2], {**listed[2], "type": kind}]
        (folder / "modules.json").write_text(json.dumps(changed))
        assert said in refusal(folder)
    (folder / "modules.json").write_text(json.dumps([{**listed[0], "path": "../bert"}]))
    assert "modules.json does not begin with a Transformer" in refusal(folder)


def test_poolings_and_layers_that_are_not_served_are_refused(copy: Callable[[str], Path]) -> None:
    folder = copy("xlm_roberta_cls")
    dense = folder / "2_Dense" / "config.json"
    change(dense, activation_function="mine.Snake")
    assert "a Dense module with mine.Snake" in refusal(folder)
    change(dense, activation_function="torch.nn.modules.activation.Tanh")
    (folder / "2_Dense" / "model.safetensors").rename(folder / "2_Dense" / "pytorch_model.bin")
    assert "has no safetensors file with the weights of 2_Dense" in refusal(folder)
    change(folder / "1_Pooling" / "config.json", pooling_mode="attention")
    assert "pools by ['attention']: served are cls, max, mean" in refusal(folder)


@pytest.mark.slow
def test_scores_by_what_is_no_activation_are_refused(copy: Callable[[str], Path]) -> None:
    folder = copy("cross_encoder")
    change(folder / "config.json", sentence_transformers={"activation_fn": "torch.nn.modules.activation.Tanh"})
    assert "makes scores with torch.nn.modules.activation.Tanh" in refusal(folder)
    change(folder / "config.json", sentence_transformers={"activation_fn": "torch.nn.modules.linear.Identity"})
    assert read_folder(str(folder)).about.activation is None


def test_a_tokenizer_that_is_missing_or_hostile_is_refused(copy: Callable[[str], Path]) -> None:
    folder = copy("bert")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    splits = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    tokenizer["pre_tokenizer"] = splits
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert refusal(folder)
    (folder / "tokenizer.json").unlink()
    assert refusal(folder)


def test_pictures_and_sounds_that_are_read_in_other_ways_are_refused(copy: Callable[[str], Path]) -> None:
    folder = copy("vit")
    processor = folder / "preprocessor_config.json"
    change(processor, image_processor_type="MineImageProcessor")
    assert refusal(folder)
    processor.unlink()
    assert refusal(folder)
    folder = copy("wav2vec2")
    change(folder / "preprocessor_config.json", feature_extractor_type="ASTFeatureExtractor")
    assert refusal(folder)


@pytest.mark.slow
def test_a_dimension_that_does_not_vary_is_refused(once: Path) -> None:
    assert "--dim L: what varies in the inputs of" in refusal(once / "vit", dims=[Dim("L", 1, 8)])
    folder = read_folder(str(once / "bert"), dims=[Dim("L", 3, 12)])
    assert folder.reading.dims == (Dim("L", 3, 12),)
    assert "does not take a text of 96 tokens" in refusal(once / "bert", dims=[Dim("L", 1, 96)])


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    assert "has no config.json" in refusal(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}")
    assert "merge it into its model first" in refusal(tmp_path)


def test_labels_that_are_not_those_of_the_network_are_refused(tmp_path: Path) -> None:
    labels = {"id2label": {0: "no", 1: "yes"}, "label2id": {"no": 0, "yes": 1}}
    make = {**NARROW, **labels, "vocab_size": 64}
    save("BertForSequenceClassification", "BertConfig", make, tmp_path)
    change(tmp_path / "config.json", id2label={"0": "no", "1": "yes", "2": "no"}, label2id={"no": 2, "yes": 1})
    with pytest.raises(ConfigError):
        read_folder(str(tmp_path))


def test_what_reads_pictures_beside_texts_or_has_a_decoder_is_refused(tmp_path: Path) -> None:
    tower = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    text = {"vocab_size": 64, "max_position_embeddings": 16, **tower}
    settings = {"text_config": text, "vision_config": {"image_size": 16, "patch_size": 8, **tower}}
    save("CLIPModel", "CLIPConfig", settings, tmp_path / "clip")
    assert "reads pixel_values beside input_ids" in refusal(tmp_path / "clip")
    small = {"vocab_size": 64, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    save("T5Model", "T5Config", small, tmp_path / "t5")
    assert "reads decoder_input_ids beside input_ids" in refusal(tmp_path / "t5")


ALTERED = 20 if os.environ.get("HYPOTHESIS_PROFILE") == "thorough" else 5  # configurations of each folder
WILD: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    3.5,
    1 << 40,
    "",
    "mine",
    "../../etc/passwd",
    [],
    [1],
    {},
    {"a": 1},
    "x" * 10_000,
)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_configurations_that_were_altered_anyhow_are_refused_or_read_and_nothing_else(
    seed: int, copy: Callable[[str], Path], tmp_path: Path
) -> None:
    random, ran = Random(seed), tmp_path / RAN
    folder = copy(("bert", "xlm_roberta_cls", "vit", "wav2vec2", "cross_encoder", "bert_mean")[seed])
    (folder / "mine.py").write_text(f"open({str(ran)!r}, 'w').write('{RAN}')\n")
    files = [file for file in folder.rglob("*.json") if file.name != "tokenizer.json"]
    before = {file: file.read_text() for file in files}
    for _ in range(ALTERED):
        file = random.choice(files)
        said = json.loads(before[file])
        for _ in range(random.randint(1, 3)):
            place = random.choice(said) if isinstance(said, list) else said
            place[random.choice([*place, "auto_map", "custom", "attn_implementation"])] = random.choice(WILD)
        file.write_text(json.dumps(said))
        with suppress(LatebindError):
            read_folder(str(folder))
        file.write_text(before[file])
    assert not ran.exists()


def test_the_tokenizer_json_is_taken_where_transformers_has_code_in_its_place(copy: Callable[[str], Path]) -> None:
    folder = copy("bert")
    with taken(folder, "usual") as found:
        usual, data = tokenizer_of(found)
    change(folder / "config.json", model_type="marian")
    change(folder / "tokenizer_config.json", tokenizer_class="MarianTokenizer")
    with taken(folder, "coded") as found:
        coded, other = tokenizer_of(found)
    assert (coded("how are you?").input_ids, other) == (usual("how are you?").input_ids, data)


def test_sentencepiece_models_alone_are_refused_with_how_to_make_a_tokenizer_json(copy: Callable[[str], Path]) -> None:
    folder = copy("bert")
    change(folder / "config.json", model_type="marian")
    (folder / "tokenizer.json").rename(folder / "source.spm")
    said = r"SentencePiece models and no tokenizer\.json.* put a tokenizer\.json beside them, such as scripts"
    with taken(folder, "coded") as found, pytest.raises(ConfigError, match=said):
        tokenizer_of(found)
