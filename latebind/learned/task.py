"""What a model's output means. Learned caches answer for classifiers, and are compared by the class of largest value.

A regressor and an embedding may end in a linear layer of many columns too, so that shows nothing.
"""

from collections.abc import Sequence
from enum import StrEnum

from latebind.domain.errors import ConfigError
from latebind.learned.samples import Samples
from latebind.program.graph import Graph
from latebind.program.stored import read_graph, read_model
from latebind.repository.directory import ModelDirectory

SOFTMAX = ("aten._softmax.default", "aten._log_softmax.default")


class Task(StrEnum):
    """What an output may be declared to mean. CLASSIFY: scores of classes, of which the largest is the answer."""

    CLASSIFY = "classify"


def task_of(name: str) -> Task | None:
    """Return the task of this name, None for no name; raises `ConfigError` for an unknown one."""
    if name and name not in list(Task):
        raise ConfigError(f"task is {name!r}: give {' or '.join(map(repr, map(str, Task)))}, or leave it out")
    return Task(name) if name else None


def doubt(directory: ModelDirectory, samples: Sequence[Samples], task: Task | None) -> str:
    """Return why nobody knows that the model is a classifier, and what to do; "" where that is certain.

    It is certain if the user declares it, gives the classes of rows, or the network ends in a softmax.
    """
    if task is Task.CLASSIFY or any(part.labels is not None for part in samples):
        return ""
    model = read_model(directory)
    if _ends_in_softmax(read_graph(directory, model)):
        return ""
    return (
        f"learned caches answer for classifiers, and nothing says that the output of {model.name} is scores of "
        "classes, of which the largest is the answer. If it is, declare it (--task classify, or task='classify' in "
        "Python) or give labels with the rows; any other model is served whole"
    )


def _ends_in_softmax(graph: Graph) -> bool:
    """Return whether the only output is a softmax over the one dimension of a row."""
    if len(graph.outputs) != 1 or len(graph.output_specs()[0].shape) != 1:
        return False
    (_, last), nodes = graph.outputs[0], {node.name: node for node in graph.nodes}
    return last in nodes and nodes[last].op in SOFTMAX
