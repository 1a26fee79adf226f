"""A query file that is right: what is read from it. For those that are wrong: `test_malformed`."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from latebind.domain.errors import QueryError
from latebind.domain.model import ModelSpec, TensorSpec
from latebind.domain.query import PlannerConfig
from latebind.queries.file.definition import model_names, read_query
from latebind.queries.file.wiring import INPUT, Apply, DefinedQuery, Kind, Literal, Ref, Tensor
from tests.queries.file.written import IMAGE, TRAFFIC, WORDS, read

SCORES = Kind("float32", (10,))

SHORT = """\
[nodes.gate]
models = ["gate"]
[outputs]
label = "gate.output"
"""


def names(defined: DefinedQuery) -> list[str]:
    return [node.name for node in defined.query.nodes]


def test_a_query_looks_like_a_model(tmp_path: Path) -> None:
    spec = read(tmp_path, TRAFFIC).query.spec
    assert (spec.name, spec.version, spec.stages, spec.max_batch, spec.lookups) == ("traffic", "1", 3, 4, ())
    assert spec.inputs == (IMAGE,)
    assert spec.outputs == (TensorSpec("label", "float32", (10,)),)
    assert [(step.name, step.models) for step in spec.steps] == [
        ("gate", ("gate",)),
        ("cars", ("cars-small", "cars-large")),
        ("animals", ("animals",)),
    ]
    assert [step.after for step in spec.steps] == [(), (0,), (0,)]
    assert [[takes.sources for takes in step.inputs] for step in spec.steps] == [
        [("image",)],
        [("cars.inputs.input",)] * 2,
        [("animals.inputs.input",)],
    ]


def test_options_are_read_and_may_be_left_out(tmp_path: Path) -> None:
    query = read(tmp_path, f'version = "12"\n{TRAFFIC}').query
    assert query.deadline == pytest.approx(0.08)
    assert query.planner == PlannerConfig("equal", replan=False)
    assert query.spec.version == "12"
    query = read(tmp_path, SHORT).query
    assert (query.deadline, query.planner, query.spec.version) == (0.0, PlannerConfig(), "1")
    assert query.spec.inputs == (IMAGE,)  # what its models take


def test_nodes_wait_for_what_they_refer_to(tmp_path: Path) -> None:
    gate, cars, animals = read(tmp_path, TRAFFIC).query.nodes
    assert (gate.after, gate.needs, gate.guarded) == ((), (), False)
    assert (cars.after, cars.needs, cars.guarded) == ((0,), ((0,),), True)
    assert (animals.after, animals.needs, animals.guarded) == ((0,), ((0,),), True)


JOIN = """\
[nodes.last]
models = ["odd"]
inputs."x.1" = "reshape(resize(reshape(first(right.output, left.output), 1, 2, 5), 16, 48), 3, 16, 16)"
[nodes.right]
models = ["animals"]
inputs.input = "scale(image, 2)"
when = "argmax(gate.output) == 0"
[nodes.left]
models = ["animals"]
inputs.input = "image"
when = "argmax(gate.output) == 1"
[nodes.gate]
models = ["animals"]
inputs.input = "image"
[outputs]
best = "argmax(last['y.1'])"
"""


def test_nodes_stand_behind_what_they_wait_for_and_else_as_they_are_written(tmp_path: Path) -> None:
    defined = read(tmp_path, JOIN)
    assert names(defined) == ["gate", "right", "left", "last"]
    assert [node.after for node in defined.query.nodes] == [(), (0,), (0,), (1, 2)]
    assert defined.query.nodes[3].needs == ((1, 2),)


def test_an_edge_without_data_is_waited_for_and_not_needed(tmp_path: Path) -> None:
    text = TRAFFIC.replace('when = "not vehicle"', 'after = ["cars"]')
    animals = read(tmp_path, text).query.nodes[2]
    assert (animals.name, animals.after, animals.needs, animals.guarded) == ("animals", (1,), (), False)


def test_expressions_have_the_numbers_of_nodes_as_they_run(tmp_path: Path) -> None:
    gate, rest = (
        TRAFFIC.split("[nodes.gate]")[1].split("[nodes.cars]")[0],
        TRAFFIC.replace('[nodes.gate]\nmodels = ["gate"]\n', ""),
    )
    wiring = read(tmp_path, f"{rest}\n[nodes.gate]{gate}").wiring
    image = Ref(INPUT, 0, Kind("float32", (3, 32, 32)))
    small = Kind("float32", (3, 16, 16))
    cut: Tensor = Apply("crop_to", (image, Ref(0, 1, Kind("float32", (4,))), Literal(16), Literal(16)), small)
    resized = Apply("resize", (image, Literal(16), Literal(16)), small)
    assert wiring.inputs == (((image,),), ((cut,), (cut,)), ((resized,),))
    assert wiring.outputs == (Apply("first", (Ref(1, 0, SCORES), Ref(2, 0, SCORES)), SCORES),)


def test_conditions_may_name_others_in_any_order(tmp_path: Path) -> None:
    text = TRAFFIC.replace(
        "[conditions]", '[conditions]\nanimal = "not (vehicle or ship)"\nship = "argmax(gate.output) == 8"'
    )
    conditions = read(tmp_path, text.replace('"not vehicle"', '"animal"')).wiring.conditions
    assert conditions[0] is None
    assert isinstance(conditions[2], Apply)
    assert conditions[2].operation == "not"


def test_an_input_is_what_its_models_take(tmp_path: Path) -> None:
    text = '[nodes.one]\nmodels = ["reader"]\n[outputs]\nx = "one.output"'
    assert read(tmp_path, text).query.spec.inputs == (WORDS,)
    named = text.replace("[outputs]", 'inputs.words = "sentence"\n[outputs]')
    assert read(tmp_path, named).query.spec.inputs == (TensorSpec("sentence", "int64", (12,), 0, 500),)


def test_values_stay_below_what_every_model_knows(tmp_path: Path) -> None:
    text = """\
[nodes.one]
models = ["reader"]
[nodes.two]
models = ["small-reader", "reader"]
accuracy = [0.5, 0.6]
[outputs]
x = "one.output"
y = "two.output"
"""
    assert read(tmp_path, text).query.spec.inputs[0].limit == 100


def test_outputs_may_be_any_tensor(tmp_path: Path) -> None:
    text = f'{SHORT}sure.1 = "max(softmax(gate.output)) > 0.5"\n'.replace("sure.1", '"sure.1"') + 'same = "image"\n'
    outputs = read(tmp_path, text).query.spec.outputs
    assert outputs[1:] == (TensorSpec("sure.1", "bool", ()), TensorSpec("same", "float32", (3, 32, 32)))


def test_accuracies_that_were_measured_count_where_none_are_written(tmp_path: Path) -> None:
    measured = {"cars-small": 0.1, "cars-large": 0.2, "gate": 0.3}
    assert [node.accuracies for node in read(tmp_path, TRAFFIC, measured=measured).query.nodes] == [
        (0.3,),
        (0.8, 0.9),
        (1.0,),
    ]
    unsaid = TRAFFIC.replace("accuracy = [0.8, 0.9]\n", "")
    assert read(tmp_path, unsaid, measured=measured).query.nodes[1].accuracies == (0.1, 0.2)


def test_the_file_in_the_documentation_is_right(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "docs" / "query-files.md").read_text()
    assert names(read(tmp_path, text.split("```toml\n")[1].split("```")[0])) == ["gate", "cars", "animals"]


def test_the_ensemble_of_the_documentation_is_a_query_of_the_inputs_and_outputs_that_it_names(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "docs" / "migrating.md").read_text()
    (tmp_path / "classify.query.toml").write_text(text.split("```toml\n")[1].split("```")[0])
    features = TensorSpec("FEATURES", "float32", (128,))
    models = {
        "backbone": ModelSpec("backbone", "1", (replace(IMAGE, name="INPUT__0"),), (features,), 1, 16),
        "head": ModelSpec(
            "head", "1", (replace(features, name="INPUT__0"),), (TensorSpec("OUTPUT__0", "float32", (10,)),), 1, 16
        ),
    }
    spec = read_query(tmp_path / "classify.query.toml", models, {}).query.spec
    assert spec.inputs == (replace(IMAGE, name="IMAGE"),)
    assert spec.outputs == (TensorSpec("SCORES", "float32", (10,)),)


def test_the_models_of_a_file_are_told_without_checking_it(tmp_path: Path) -> None:
    file = tmp_path / "any.query.toml"
    file.write_text(TRAFFIC.replace("gate.output", "nobody").replace('["animals"]', '["gate", "unknown"]'))
    assert model_names(file) == ("gate", "cars-small", "cars-large", "unknown")


def altered(text: str, place: int, length: int, put: str) -> str:
    place %= len(text)
    return text[:place] + put + text[place + length :]


EDITS = st.lists(
    st.tuples(
        st.integers(0, 10_000),
        st.integers(0, 12),
        st.sampled_from(
            ["", "[", "]", '"', "'", ".", "=", "\n", "gate", "image", "nan", "-1", "0", "true", "(", ")", "é", "\0"]
        )
        | st.text(max_size=4),
    ),
    min_size=1,
    max_size=4,
)


def refusal(folder: Path, text: str) -> str:
    """Why a file is refused, empty where it is read."""
    try:
        read(folder, text.encode("utf-8", "surrogatepass"))
    except QueryError as error:
        return str(error)
    return ""


def check_refusal(folder: Path, text: str) -> None:
    file, _, rest = refusal(folder, text).partition(":")
    assert file in {"", str(folder / "traffic.query.toml")}
    assert not file or 1 <= int(rest.split(":")[0]) <= text.count("\n") + 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(EDITS)
def test_a_file_that_somebody_altered_is_read_or_refused_with_a_line(
    tmp_path: Path, edits: list[tuple[int, int, str]]
) -> None:
    text = TRAFFIC
    for place, length, put in edits:
        text = altered(text, place, length, put)
    check_refusal(tmp_path, text)


def test_a_node_may_be_called_as_an_operation(tmp_path: Path) -> None:
    text = f"""{SHORT}[nodes.softmax]
models = ["gate"]
when = "max(softmax(gate.output)) > 0.5"
""".replace('[outputs]\nlabel = "gate.output"\n', "")
    query = read(tmp_path, f'{text}[outputs]\nlabel = "softmax.output"\n').query
    assert [node.after for node in query.nodes] == [(), (0,)]
