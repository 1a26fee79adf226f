"""Query files whose inputs are texts and pictures that models read: what is read once, and what is refused."""

import re
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from latebind.domain.errors import QueryError
from latebind.domain.model import NOTHING_KNOWN, About, Activation, Media, ModelSpec, RawInput, Read, Task, TensorSpec
from latebind.domain.sizes import Dim
from latebind.queries.file.definition import read_query
from latebind.queries.file.wiring import DefinedQuery

LABELS = ("car", "bird", "cat")
TEXT, PAIR = RawInput("text", Media.TEXT), RawInput("text_pair", Media.TEXT, optional=True)
IDS = TensorSpec("ids", "int64", (512,), padding=0, limit=300, sizes=("L",))
LOGITS = TensorSpec("logits", "float32", (3,))
TAGS = TensorSpec("logits", "float32", (512, 3), sizes=("L", 3))
VECTOR = TensorSpec("embedding", "float32", (4,))
PIXELS = TensorSpec("pixels", "float32", (3, 32, 32))
CLASSES = About(Task.CLASSIFY, (TEXT, PAIR), LABELS, Activation.SOFTMAX)


def reader(name: str, about: About, *gives: TensorSpec, longest: int = 512) -> ModelSpec:
    ids = replace(IDS, shape=(longest,))
    return ModelSpec(name, "1", (ids,), gives, 2, 8, dims=(Dim("L", 1, longest),), about=about)


MODELS = {
    spec.name: spec
    for spec in (
        reader("small", CLASSES, LOGITS),
        reader("large", CLASSES, LOGITS, longest=256),
        reader("twin", CLASSES, LOGITS),
        reader("other", CLASSES, LOGITS),
        reader("renamed", replace(CLASSES, labels=("a", "b", "b")), LOGITS),
        reader("embeds", About(Task.EMBED, (TEXT,)), VECTOR),
        reader("ranks", About(Task.RERANK, (TEXT, PAIR)), replace(LOGITS, shape=(1,))),
        reader("tags", About(Task.TAG, (TEXT,), LABELS), TAGS),
        reader("tags-too", About(Task.TAG, (TEXT,), LABELS), TAGS),
        ModelSpec("judges", "1", (replace(TAGS, name="tags"),), (LOGITS,), 2, 8, dims=(Dim("L", 1, 512),)),
        ModelSpec(
            "sees",
            "1",
            (PIXELS,),
            (LOGITS,),
            2,
            8,
            about=About(Task.CLASSIFY, (RawInput("image", Media.PICTURE),), LABELS),
        ),
        ModelSpec("plain", "1", (PIXELS,), (LOGITS,), 2, 8),
    )
}
READERS = {
    "small": "alike",
    "twin": "alike",
    "large": "alike",
    "renamed": "alike",
    "embeds": "alike",
    "ranks": "alike",
    "other": "else",
}


def read(folder: Path, text: str) -> DefinedQuery:
    file = folder / "asks.query.toml"
    file.write_text(text)
    return read_query(file, MODELS, {"small": 0.8, "large": 0.9}, READERS)


def spec_of(folder: Path, text: str) -> ModelSpec:
    return read(folder, text).query.spec


def node(name: str, *models: str, **more: str) -> str:
    lines = "".join(f"{key.replace('__', '.')} = '{value}'\n" for key, value in more.items())
    return f"[nodes.{name}]\nmodels = {list(models)}\naccuracy = {[0.5] * len(models)}\n{lines}"


def gives(**outputs: str) -> str:
    return "[outputs]\n" + "".join(f"{name} = '{text}'\n" for name, text in outputs.items())


def test_models_that_read_alike_share_what_is_made_and_others_have_their_own(tmp_path: Path) -> None:
    spec = spec_of(
        tmp_path,
        node("gate", "small", inputs__text="sentence")
        + node("sure", "large", inputs__text="sentence", when="max(gate.logits) < 1")
        + node("pair", "ranks", inputs__text="sentence", inputs__text_pair="second")
        + node("other", "other", inputs__text="sentence")
        + gives(a="first(sure.logits, gate.logits)", b="pair.logits", c="other.logits"),
    )
    assert spec.about.raw == (RawInput("sentence", Media.TEXT), RawInput("second", Media.TEXT))
    assert spec.reads == (
        Read("small", (("text", "sentence"),), (("ids", "gate.ids"),)),
        Read("ranks", (("text", "sentence"), ("text_pair", "second")), (("ids", "pair.ids"),)),
        Read("other", (("text", "sentence"),), (("ids", "other.ids"),)),
    )
    assert [(one.name, one.sizes, one.shape, one.limit) for one in spec.inputs] == [
        ("gate.ids", ("L_gate",), (256,), 300),
        ("pair.ids", ("L_pair",), (512,), 300),
        ("other.ids", ("L_other",), (512,), 300),
    ]
    assert spec.dims == (Dim("L_gate", 1, 256), Dim("L_pair", 1, 512), Dim("L_other", 1, 512))
    assert [(takes.sources, takes.dims) for step in spec.steps for takes in step.inputs] == [
        (("gate.ids",), (("L", "L_gate"),)),
        (("gate.ids",), (("L", "L_gate"),)),
        (("pair.ids",), (("L", "L_pair"),)),
        (("other.ids",), (("L", "L_other"),)),
    ]


def test_a_node_without_lines_reads_inputs_that_are_called_as_the_models(tmp_path: Path) -> None:
    spec = spec_of(
        tmp_path, node("gate", "small", "twin") + node("see", "sees") + gives(a="gate.logits", b="see.logits")
    )
    assert spec.about.raw == (TEXT, RawInput("image", Media.PICTURE))
    assert [one.name for one in spec.inputs] == ["gate.ids", "see.pixels"]


def test_tensors_may_still_be_named(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, node("gate", "small", inputs__ids="ids") + gives(a="gate.logits"))
    assert (spec.inputs, spec.about, spec.reads) == ((IDS,), NOTHING_KNOWN, ())


def test_labels_are_texts_with_one_for_a_step_that_has_not_run(tmp_path: Path) -> None:
    gate = node("gate", "small") + node("again", "renamed", when='label(gate.logits) in ["bird", "cat"]')
    (one, both, scores) = spec_of(
        tmp_path,
        gate + gives(one="label(gate.logits)", both="first(label(again.logits), label(gate.logits))", x="gate.logits"),
    ).outputs
    assert (one.dtype, one.shape, one.labels) == ("int64", (), ("", *LABELS))
    assert both.labels == ("", "a", "b", "b", *LABELS)
    assert scores.labels == ()


CASCADE = node("gate", "small") + node("sure", "large", when="max(gate.logits) < 1")
CHOICE = (
    node("gate", "small")
    + node("one", "embeds", when='label(gate.logits) == "car"')
    + node("more", "embeds", when='label(gate.logits) != "car"')
)


@pytest.mark.parametrize(
    ("text", "task"),
    [
        (CASCADE + gives(a="first(sure.logits, gate.logits)"), Task.CLASSIFY),
        (CHOICE + gives(a="first(one.embedding, more.embedding)"), Task.EMBED),
        (node("fit", "ranks", inputs__text_pair="document") + gives(a="fit.logits"), Task.RERANK),
        (CHOICE + gives(a="one.embedding", b="more.embedding"), None),  # it may not have run
        (CASCADE + gives(a="softmax(gate.logits)", b="sure.logits"), None),  # no model's own answer
        (node("gate", "small") + node("b", "renamed") + gives(a="first(gate.logits, b.logits)"), None),
        (node("gate", "tags") + gives(a="gate.logits"), None),
    ],
)
def test_a_query_is_for_what_the_model_is_whose_answer_it_surely_gives(
    tmp_path: Path, text: str, task: Task | None
) -> None:
    assert spec_of(tmp_path, text).about.task is task


GATE = node("gate", "small", inputs__text="sentence")
A, B, E = gives(a="gate.logits"), gives(a="b.logits"), gives(a="b.embedding")
NINE = "".join([node(f"n{place}", "small", inputs__text=f"t{place}") for place in range(9)])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (node("gate", "small", "plain") + gives(a="gate.logits"), "2: plain takes tensors, which the models beside it"),
        (GATE + node("b", "plain") + gives(a="b.logits", c="gate.logits"), "5: pixels is a tensor, and sentence"),
        (GATE + node("b", "sees", inputs__image="sentence") + B, "8: sentence is a text for gate and"),
        (GATE + node("b", "small", inputs__text="gate") + B, "8: nodes.b.inputs.text: gate is a node"),
        (GATE + node("b", "small", inputs__text="label(gate.logits)") + B, "8: nodes.b.inputs.text: "),
        (GATE + node("b", "small", inputs__text="a", inputs__ids="ids") + B, "8: text takes the place"),
        (GATE + node("b", "small", inputs__image="a") + B, "not known here: take text, text_pair, ids"),
        (GATE + gives(a="max(sentence)"), "6: outputs.a: column 5: sentence is a text, not a tensor"),
        (GATE + gives(a="max(gates)"), "there are inputs and conditions sentence"),
        ("[inputs.x]\n" + GATE + A, "sentence, a text, is not under [inputs]"),
        ('[inputs.sentence]\nkind = "picture"\n' + GATE + A, "2: inputs.sentence.kind is 'picture'"),
        ('[inputs.sentence]\ndtype = "int64"\n' + GATE + A, 'write kind = "text", and no dtype'),
        ('[inputs.x]\nkind = "text"\n' + node("b", "plain", inputs__pixels="x") + B, "no model reads x"),
        ('[inputs.x]\nkind = "image"\n' + node("b", "plain") + B, "take text, picture, sound"),
        (NINE + gives(a="n1.logits"), "more than 8 ways"),
        ("[dims]\nL_gate = '1..3'\n" + GATE + A, "2: the lengths of what gate reads are called L_gate"),
        (GATE + gives(a="label(softmax(gate.logits))"), "whose labels are not known"),
        (GATE + gives(a="max(label(gate.logits))"), "max has a label where numbers are needed"),
        (GATE + node("b", "embeds", when='label(gate.logits) == "bierd"') + E, "did you mean 'bird'?"),
        (GATE + node("b", "embeds", when='label(gate.logits) < "car"') + E, "are not ordered"),
        (GATE + node("b", "embeds", when="label(gate.logits) == 1") + E, "compared with a text"),
        (GATE + node("b", "embeds", when="label(gate.logits)") + E, "a label is not a condition"),
        (GATE + gives(a='first(label(gate.logits), argmax(gate.logits))'), "chooses between a label and int64 scalar"),
        (GATE + node("b", "tags") + gives(a="label(b.logits)", c="gate.logits"), "label works on a row of numbers"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_where_it_stands(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(QueryError) as raised:
        spec_of(tmp_path, text)
    assert said in str(raised.value)
    assert str(raised.value).startswith(f"{tmp_path}/asks.query.toml:")


WHOLE = (
    '[inputs.sentence]\nkind = "text"\n[inputs.second]\nkind = "text"\n[conditions]\n'
    'car = \'label(gate.logits) in ["car", "cat"]\'\n'
    + node("gate", "small", inputs__text="sentence")
    + node("sure", "large", inputs__text="second", when="car")
    + node("pair", "ranks", inputs__text="sentence", inputs__text_pair="second", when="not car")
    + gives(a="pair.logits", b="first(label(sure.logits), label(gate.logits))")
)


def test_altered_files_are_read_or_refused_with_their_place(tmp_path: Path) -> None:
    random, taken, refused = Random(0), 0, list[str]()
    words = re.findall(r"\w+|\W", WHOLE)
    for _ in range(700):
        altered = list(words)
        for _ in range(random.randint(1, 3)):
            altered[random.randrange(len(altered))] = random.choice(words)
        try:
            read(tmp_path, "".join(altered))
            taken += 1
        except QueryError as error:
            refused.append(str(error))
    assert min(taken, len(refused)) > 20
    assert [told for told in refused if not told.startswith(f"{tmp_path}/asks.query.toml:")] == []


def test_models_of_one_node_may_read_in_ways_of_their_own(tmp_path: Path) -> None:
    spec = spec_of(
        tmp_path,
        node("gate", "small", "twin", "large", "other", inputs__text="sentence")
        + node("gate_1", "ranks", inputs__text="sentence")
        + gives(a="gate.logits", b="gate_1.logits"),
    )
    assert [(read.model, read.makes) for read in spec.reads] == [
        ("small", (("ids", "gate.ids"),)),
        ("other", (("ids", "gate_2.ids"),)),
    ]
    assert spec.dims == (Dim("L_gate", 1, 256), Dim("L_gate_2", 1, 512))
    assert [takes.sources for takes in spec.steps[0].inputs] == [("gate.ids",)] * 3 + [("gate_2.ids",)]
    assert spec.steps[1].inputs[0].sources == ("gate.ids",)


def test_what_is_as_long_as_its_row_has_one_length_for_each_way_to_read(tmp_path: Path) -> None:
    judge = '[nodes.b]\nmodels = ["judges"]\ninputs.tags = "tag.logits"\n[outputs]\na = "b.logits"\n'
    with pytest.raises(QueryError, match="they read in different ways: give each a node of its own"):
        read(tmp_path, node("tag", "tags", "tags-too") + judge)
    assert len(read(tmp_path, node("tag", "tags") + judge).query.nodes) == 2
