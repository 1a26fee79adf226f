"""The layers around a network for each task, inside the exported graph: pooling, normalization, names.

The modules take the network's own inputs by name and return their outputs in a dictionary.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from latebind.domain.errors import ConfigError
from latebind.domain.model import Activation, Media, Task
from latebind.folders.files import SAVE, Taken
from latebind.folders.networks import POOLER, Network

EMBEDDING, LOGITS, BOXES = "embedding", "logits", "boxes"  # the outputs
MASK = "attention_mask"
NO_OBJECT = "no object"  # the class after those of the configuration, in detectors that have one

POOLINGS = {  # of sentence-transformers: current and earlier names in its configuration
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
ACTIVATIONS: dict[str, type[nn.Module]] = {
    each.__name__: each for each in (nn.Identity, nn.Tanh, nn.ReLU, nn.GELU, nn.SiLU, nn.Sigmoid)
}


class Pooled(nn.Module):
    """An encoder of texts whose hidden states are pooled to one vector, and the layers after that."""

    def __init__(self, network: nn.Module, poolings: Sequence[str], after: Sequence[nn.Module]) -> None:
        super().__init__()
        self.network, self.after = network, nn.Sequential(*after)
        self._poolings = tuple(poolings)

    def forward(self, **rows: Tensor) -> dict[str, Tensor]:
        """Map tokens, `(B, L) int64` each, to an embedding `(B, D) float32`."""
        hidden = self.network(**rows).last_hidden_state
        counts = rows[MASK] != 0  # a mask may be any whole number: as a factor it would amplify rounding
        found = [pooled(hidden, counts, pooling) for pooling in self._poolings]
        return {EMBEDDING: self.after(found[0] if len(found) == 1 else torch.cat(found, -1))}


def pooled(hidden: Tensor, counts: Tensor, pooling: str) -> Tensor:
    """Map hidden states `(B, L, D)` and which tokens count, `(B, L) bool`, to `(B, D)`."""
    mask = counts[..., None].to(hidden.dtype)
    if pooling == "cls":
        return hidden[:, 0]
    if pooling == "max":
        return hidden.masked_fill(~counts[..., None], -torch.inf).amax(1)
    if pooling == "lasttoken":
        places = torch.arange(hidden.shape[1], device=hidden.device)
        last = torch.where(counts, places, 0).amax(1)
        return (hidden * (places == last[:, None])[..., None].to(hidden.dtype)).sum(1)
    if pooling == "weightedmean":
        mask = mask * torch.arange(1, hidden.shape[1] + 1, device=hidden.device)[:, None].to(hidden.dtype)
    count = mask.sum(1).clamp(min=1e-9)
    return (hidden * mask).sum(1) / (count.sqrt() if pooling == "mean_sqrt_len_tokens" else count)


class Normalized(nn.Module):
    """Vectors of length 1."""

    def forward(self, vectors: Tensor) -> Tensor:
        """Map `(B, D)` to `(B, D)`."""
        return functional.normalize(vectors, dim=-1)


class Seen(nn.Module):
    """A network for pictures whose pooled output is an embedding, or its first token, or the mean over all places."""

    def __init__(self, network: nn.Module, *, has_pooler: bool) -> None:
        super().__init__()
        self.network = network
        self._has_pooler = has_pooler

    def forward(self, **rows: Tensor) -> dict[str, Tensor]:
        """Map pictures `(B, 3, H, W) float32` to an embedding `(B, D) float32`."""
        found = self.network(**rows)
        vector = getattr(found, "pooler_output", None) if self._has_pooler else None
        if vector is None:
            hidden = found.last_hidden_state
            vector = hidden[:, 0] if hidden.dim() == 3 else hidden.mean((2, 3))
        return {EMBEDDING: vector.flatten(1)}


class Scored(nn.Module):
    """A network with a head: its logits, and boxes if it detects objects."""

    def __init__(self, network: nn.Module, *, boxes: bool = False) -> None:
        super().__init__()
        self.network = network
        self._boxes = boxes

    def forward(self, **rows: Tensor) -> dict[str, Tensor]:
        """Map the inputs to logits `(B, ...) float32`, and boxes `(B, Q, 4) float32`: centers and sizes, 0 to 1."""
        found = self.network(**rows)
        return {LOGITS: found.logits, BOXES: found.pred_boxes} if self._boxes else {LOGITS: found.logits}


def around(network: Network, taken: Taken) -> tuple[nn.Module, list[str]]:
    """Return the module for a network's task, and notes for the report. Raises `ConfigError`."""
    if network.task is not Task.EMBED:
        return Scored(network.module, boxes=network.task is Task.DETECT), []
    if network.kind.media is Media.PICTURE:
        has_pooler = not any(POOLER in name for name in network.missing)
        return Seen(network.module, has_pooler=has_pooler), []
    if len(taken.modules) < 2:
        note = "the folder does not define pooling: an embedding is the mean over its text's tokens, not normalized"
        return Pooled(network.module, ("mean",), ()), [note]
    poolings: tuple[str, ...] = ()
    after = list[nn.Module]()
    for part in taken.modules[1:]:
        settings = taken.json(f"{part.path}/config.json")
        if part.kind == "Pooling" and not poolings:
            poolings = _poolings(settings, taken)
        elif part.kind == "Dense" and poolings:
            after.append(_dense(settings, part.path, taken))
        elif part.kind == "Normalize" and poolings:
            after.append(Normalized())
        elif part.kind != "Dropout":
            raise ConfigError(
                f"{taken.shown} has a module {part.kind:.60}: served are Transformer, Pooling, Dense and Normalize"
            )
        if settings.get("module_input_name", "sentence_embedding") != "sentence_embedding":
            raise ConfigError(f"{taken.shown} has a module on vectors of tokens ({part.kind}), which is not served")
    return Pooled(network.module, poolings, after), []


def _poolings(settings: Mapping[str, Any], taken: Taken) -> tuple[str, ...]:
    """Return the poolings whose vectors are concatenated, as sentence-transformers reads its settings."""
    named = settings.get("pooling_mode")
    found = [named] if isinstance(named, str) else named
    if found is None:
        found = [each for each, key in POOLINGS.items() if settings.get(key)] or ["mean"]
    if not isinstance(found, list) or any(each not in POOLINGS for each in found):
        raise ConfigError(f"{taken.shown} pools by {found!s:.80}: served are {', '.join(POOLINGS)}")
    prompts = taken.json("config_sentence_transformers.json").get("prompts") or {}
    if settings.get("include_prompt") is False and any(prompts.values()):
        raise ConfigError(f"{taken.shown} leaves its prompts out of the pooling (include_prompt), which is not served")
    return tuple(found)


def _dense(settings: Mapping[str, Any], place: str, taken: Taken) -> nn.Module:
    """Return a linear layer and its activation."""
    activation = ACTIVATIONS.get(str(settings.get("activation_function", "torch.nn.Tanh")).rpartition(".")[2])
    if activation is None or settings.get("use_residual"):
        found = "a residual" if activation else f"{settings.get('activation_function')!s:.80}"
        raise ConfigError(f"{taken.shown} has a Dense module with {found}: served are {', '.join(ACTIVATIONS)}")
    file = taken.path / place / "model.safetensors"
    if not file.is_file():
        raise ConfigError(f"{taken.shown} has no safetensors file with the weights of {place}: {SAVE}")
    try:
        weights = load_file(file)
    except SafetensorError as error:
        raise ConfigError(f"{taken.shown}: {place}/{file.name} is not a safetensors file ({error}): {SAVE}") from None
    weight, bias = weights.get("linear.weight"), weights.get("linear.bias")
    if weight is None or weight.dim() != 2 or (bias is not None and bias.shape != weight.shape[:1]):
        raise ConfigError(f"{taken.shown}: {place}/{file.name} has no linear layer: {SAVE}")
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    parts = {"weight": weight, "bias": bias}
    layer.load_state_dict({name: part.float() for name, part in parts.items() if part is not None})
    return nn.Sequential(layer.requires_grad_(False), activation())


def labels_of(network: Network, classes: int) -> tuple[str, ...]:
    """Return the names of a network's classes in the order of its logits, none for an embedding."""
    if network.task in {Task.EMBED, Task.RERANK}:
        return ()
    named = network.config.id2label
    labels = tuple(str(named.get(place, f"LABEL_{place}")) for place in range(len(named)))
    return (*labels, NO_OBJECT) if network.task is Task.DETECT and classes == len(labels) + 1 else labels


def activation_of(network: Network, taken: Taken, classes: int) -> Activation | None:
    """Return what turns a network's logits into scores, as in transformers and sentence-transformers."""
    config = network.config
    problem = getattr(config, "problem_type", None)
    if network.task is Task.EMBED or (network.task is Task.CLASSIFY and problem == "regression"):
        return None
    if network.task is Task.RERANK:
        name = (getattr(config, "sentence_transformers", None) or {}).get("activation_fn")
        name = name or getattr(config, "sbert_ce_default_activation_function", None)
        name = name or taken.json("config_sentence_transformers.json").get("activation_fn") or "torch.nn.Sigmoid"
        found = {"Sigmoid": Activation.SIGMOID, "Identity": None}
        if (kind := str(name).rpartition(".")[2]) not in found:
            raise ConfigError(f"{taken.shown} makes scores with {name!s:.80}: served are Sigmoid and Identity")
        return found[kind]
    if network.task is Task.DETECT:  # without a class for no object, each class has an independent score
        return Activation.SOFTMAX if classes == len(config.id2label) + 1 else Activation.SIGMOID
    multi = network.task is Task.CLASSIFY and (problem == "multi_label_classification" or classes == 1)
    return Activation.SIGMOID if multi else Activation.SOFTMAX
