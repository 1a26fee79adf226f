"""Query files that are wrong, each in a way of its own: the message says where, what, and what to do."""

from pathlib import Path

import pytest

from latebind.domain.errors import QueryError
from latebind.queries.file.definition import model_names
from tests.queries.file.written import MODELS, TRAFFIC, read

CAR_INPUT = "crop_to(image, gate.box, 16, 16)"
VEHICLE = "argmax(gate.output) in [0, 1, 8, 9] and max(softmax(gate.output)) > 0.5"

# What is put in place of what in the file that is right, the line of the error and a part of its message.
WRONG = [
    # the file
    ("[nodes.gate]", "[nodes.gate", 12, "this is not valid TOML, column 12: Expected ']'"),
    ("deadline_ms = 80", "deadline_ms = ", 1, "this is not valid TOML, column 15: Invalid value"),
    ('"not vehicle"', '"""not vehicle"', 28, "this is not valid TOML, at the end of the file: Unterminated string"),
    ("replan = false", "replan = false\nreplan = true", 4, "Cannot overwrite a value"),
    ("deadline_ms = 80", f"deadline_ms = {'[' * 1900}", 1, "this is not valid TOML"),
    ("deadline_ms = 80", f"# {'a' * 2_000}", 1, "the line has 2002 characters: 2000 at most"),
    ("deadline_ms = 80", "\n" * 1_000, 1_000, "the file has 1028 lines: 1000 at most"),
    ("deadline_ms = 80", f"{'#' * 1_900}\n" * 20, 1, "more than 32768 bytes"),
    # options
    ("deadline_ms = 80", "deadline = 80", 1, "deadline is not known here: take deadline_ms, planner,"),
    ("deadline_ms = 80", "deadline_ms = -80", 1, "deadline_ms: expected `float` > 0.0"),
    ("deadline_ms = 80", "deadline_ms = nan", 1, "deadline_ms: expected `float` > 0.0"),
    ("deadline_ms = 80", 'deadline_ms = "80"', 1, "deadline_ms: expected `float`, got `str`"),
    ("deadline_ms = 80", "deadline_ms = 08:00:00", 1, "deadline_ms: expected `float`, got `time`"),
    ("deadline_ms = 80", "deadline_ms = 1e8", 1, "deadline_ms: expected `float` <= 3600000.0"),
    ('planner = "equal"', 'planner = "fair"', 2, "there is no planner 'fair': take equal, proportional, expected"),
    ("replan = false", "replan = 0", 3, "replan: expected `bool`, got `int`"),
    ("replan = false", 'version = "v2"', 3, "version: expected `str` matching regex"),
    # inputs
    ('dtype = "float32"', 'dtype = "bfloat16"', 6, "inputs.image.dtype is 'bfloat16': take bool, uint8"),
    ("[3, 32, 32]", "[3, 32, -1]", 7, "inputs.image.shape: expected `int` >= 1"),
    ("[3, 32, 32]", "[100000, 100000]", 7, "40000000000 bytes: 268435456 at most"),
    ("[3, 32, 32]", "[3, 64, 64]", 12, "gate.inputs.image: this is float32 3x64x64, and gate takes float32 3x32x32"),
    ('dtype = "float32"', 'type = "float32"', 6, "inputs.image.type is not known here: take dtype, shape"),
    ("[conditions]", "[inputs.depth]\n[conditions]", 9, "inputs.depth.dtype is missing: no model takes depth"),
    ("[conditions]", '[inputs.d]\ndtype = "int8"\nshape = [1]\n[conditions]', 9, "nothing reads the input d"),
    ("[conditions]", "[inputs.gate]\n[conditions]", 9, "gate has two meanings"),
    ("[inputs.image]", "[inputs.images]", 12, "nothing is called image: there are inputs and conditions images"),
    ("[inputs.image]", '[inputs."left image"]', 5, "'left image' is not a valid name: a letter or _"),
    # conditions
    (VEHICLE, "truck", 10, "conditions.vehicle: column 1: nothing is called truck"),
    (VEHICLE, "gate.output", 10, "conditions.vehicle: column 1: float32 10 is not a condition"),
    (VEHICLE, "vehicle or vehicle", 10, "conditions form a cycle, vehicle -> vehicle"),
    ("[conditions]", '[conditions]\na = "b"\nb = "not a"', 10, "conditions form a cycle, a -> b -> a"),
    (VEHICLE, f"{VEHICLE}{' ' * 500}", 10, "characters: 500 at most; name parts of it"),
    (VEHICLE, "argmax(gate.output) = 1", 10, "conditions.vehicle: column 21: this is not an expression"),
    (VEHICLE, "__import__('os').system('true')", 10, "column 1: this is not allowed in an expression"),
    ("[conditions]", "[conditions]\nsure = 0.5", 10, "conditions.sure: expected `str`, got `float`"),
    # nodes
    ('models = ["gate"]', 'models = "gate"', 13, "nodes.gate.models: expected `array`, got `str`"),
    ('models = ["gate"]', "models = []", 13, "nodes.gate.models: expected `array` of length >= 1"),
    ('models = ["gate"]', "", 12, "nodes.gate: object missing required field `models`"),
    ('models = ["gate"]', 'models = ["gate", "gate"]', 13, "nodes.gate.models has 'gate' twice: name each once"),
    ('models = ["gate"]', f"models = [\n{'1,' * 65}\n]", 13, "nodes.gate.models: expected `array` of length <= 64"),
    ('models = ["gate"]', 'models = ["gait"]', 13, "there is no model 'gait': there are gate, cars-small"),
    ('"cars-large"', '"pixels"', 16, "the same inputs: cars-small has input (float32 3x16x16); pixels has"),
    ('models = ["gate"]', 'models = ["translator"]', 13, "translator is a sequence model, which answers step by step"),
    ('models = ["gate"]', 'model = ["gate"]', 13, "nodes.gate.model is not known here: take models, accuracy"),
    ("[nodes.gate]", "[nodes.a-gate]", 12, "'a-gate' is not a valid name"),
    ('[nodes.gate]\nmodels = ["gate"]', "[nodes]\ngate = 1", 13, "nodes.gate: expected `object`, got `int`"),
    ("[nodes.gate]", '[nodes.spare]\nmodels = ["gate"]\n[nodes.gate]', 12, "node spare leads to no output"),
    ("accuracy = [0.8, 0.9]", "accuracy = [0.8]", 17, "accuracy has 1 numbers for 2 models: give one each"),
    ("accuracy = [0.8, 0.9]", "accuracy = [80, 90]", 17, "nodes.cars.accuracy: expected `float` <= 1.0"),
    ("accuracy = [0.8, 0.9]", "", 15, "the accuracy of cars-small, cars-large is unknown: give accuracy"),
    (f'inputs.input = "{CAR_INPUT}"', "", 15, "nodes.cars.inputs.input: column 1: nothing is called input"),
    (CAR_INPUT, "", 18, "nodes.cars.inputs.input: column 1: there is no expression"),
    (CAR_INPUT, "gate", 18, "column 1: gate is a node: take one of its outputs, gate.output, gate.box"),
    (CAR_INPUT, "crop(image, 0, 0, 8, 8)", 18, "this is float32 3x8x8, and cars-small takes float32 3x16x16"),
    (CAR_INPUT, "first(crop_to(image, cars.output, 16, 16), image)", 15, "nodes form a cycle, cars -> cars"),
    ('when = "vehicle"', 'when = "vehicles"', 19, "nodes.cars.when: column 1: nothing is called vehicles"),
    ('when = "vehicle"', 'after = ["trucks"]', 19, "there is no node 'trucks': there are gate, cars, animals"),
    ('models = ["gate"]', 'models = ["gate"]\nwhen = "max(cars.output) > 0"', 12, "cycle, gate -> cars -> gate"),
    # outputs
    ('label = "first(cars.output, animals.output)"', "", 26, "there are no outputs: write one under [outputs]"),
    ('label = "first', '"a label" = "first', 27, "'a label' is not a valid output name"),
    ("first(cars.output, animals.output)", "cars.output", 21, "node animals leads to no output: use it in an output"),
    ("first(cars.output, animals.output)", "first(cars.output, gate.box)", 27, "first chooses between float32 10 and"),
    ("first(cars.output, animals.output)", "0.5", 27, "outputs.label: column 1: 0.5 is not a tensor"),
]  # fmt: skip


def refusal(folder: Path, text: str | bytes, *, name: str = "traffic") -> str:
    with pytest.raises(QueryError) as raised:
        read(folder, text, name=name)
    return str(raised.value)


@pytest.mark.parametrize(("old", "new", "line", "message"), WRONG)
def test_a_wrong_file_is_refused_with_its_line_and_what_to_do(
    tmp_path: Path, old: str, new: str, line: int, message: str
) -> None:
    assert old in TRAFFIC
    told = refusal(tmp_path, TRAFFIC.replace(old, new, 1))
    assert told.startswith(f"{tmp_path}/traffic.query.toml:{line}: ")
    assert message in told


def test_lines_behind_values_of_several_lines_are_counted(tmp_path: Path) -> None:
    text = TRAFFIC.replace('"vehicle"', "'''\nnot\n[vehicles]\n'''")
    assert refusal(tmp_path, text.replace("first(cars", "first(car")).split(":")[1] == "19"
    text = TRAFFIC.replace('when = "vehicle"', "when = '''\nvehicle\n'''")
    assert refusal(tmp_path, text.replace("first(cars", "first(car")).split(":")[1] == "29"


def test_the_line_of_its_table_is_told_for_what_stands_behind_a_very_long_value(tmp_path: Path) -> None:
    text = TRAFFIC.replace('models = ["gate"]', f'models = [{60 * chr(10)}"gate"]\nafter = 3')
    assert ":12: nodes.gate.after: expected `array`" in refusal(tmp_path, text)


def test_the_keys_of_a_very_deep_table_are_refused(tmp_path: Path) -> None:
    deep = ".".join("a" * 900)
    assert ":4: nodes.gate.a is not known here" in refusal(tmp_path, f"\n\n[nodes.gate]\n{deep} = 1\n")


def test_bytes_that_are_no_utf8_are_told_with_their_line(tmp_path: Path) -> None:
    assert ":5: this is not UTF-8" in refusal(tmp_path, TRAFFIC.encode().replace(b"[inputs", b"\xff[inputs"))


def test_a_file_without_nodes_is_refused(tmp_path: Path) -> None:
    assert ":1: there are no nodes: write one as [nodes.NAME]" in refusal(tmp_path, "")


def test_a_file_that_is_not_there_is_told() -> None:
    with pytest.raises(QueryError, match=r"nowhere/x\.query\.toml cannot be read: No such file"):
        model_names(Path("nowhere/x.query.toml"))


def test_a_query_may_not_be_called_as_a_model(tmp_path: Path) -> None:
    assert "there is a model gate as well" in refusal(tmp_path, TRAFFIC, name="gate")
    assert "gate" in MODELS


@pytest.mark.parametrize("name", ["a b", "-a", "a" * 129, ""])
def test_a_query_is_called_as_models_may_be(tmp_path: Path, name: str) -> None:
    assert "is not a valid name for a query: call it NAME.query.toml" in refusal(tmp_path, TRAFFIC, name=name)


def test_rows_that_are_padded_in_two_ways_cannot_be_one_input(tmp_path: Path) -> None:
    nodes = '[nodes.a]\nmodels = ["reader"]\n[nodes.b]\nmodels = ["other-reader"]\n'
    text = f'{nodes}[outputs]\nx = "a.output"\ny = "b.output"\n'
    assert ":3: nodes.b.inputs.words: words: rows are padded with 0 for one model and 1" in refusal(tmp_path, text)


def test_an_input_of_an_odd_name_must_be_said(tmp_path: Path) -> None:
    text = '[nodes.a]\nmodels = ["odd"]\n[outputs]\nx = "a[\'y.1\']"'
    assert ":1: nodes.a.inputs has nothing for 'x.1'" in refusal(tmp_path, text)


def test_conditions_that_name_each_other_over_and_over_are_refused(tmp_path: Path) -> None:
    chain = "\n".join(f'c{n} = "c{n - 1} or c{n - 1}"' for n in range(1, 60))
    text = TRAFFIC.replace("[nodes.gate]", f'c0 = "vehicle"\n{chain}\n[nodes.gate]')
    assert "over 1000 parts" in refusal(tmp_path, text)


def test_a_long_chain_that_is_written_backwards_is_refused_with_what_to_do(tmp_path: Path) -> None:
    def step(number: int) -> str:
        before = f"{'scale(' * 14}n{number - 1}.output{', 1)' * 14}" if number else "x"
        row = f"reshape(resize(reshape({before}, 1, 2, 5), 16, 48), 3, 16, 16)"
        return f'[nodes.n{number}]\nmodels = ["animals"]\ninputs.input = "{row}"\n'

    begin, end = '[inputs.x]\ndtype = "float32"\nshape = [10]\n', '[outputs]\ny = "n63.output"\n'
    steps = [step(number) for number in range(64)]
    assert len(read(tmp_path, begin + "".join(steps) + end).query.nodes) == 64
    told = refusal(tmp_path, begin + "".join(reversed(steps)) + end)
    assert "write each after those that it names" in told
