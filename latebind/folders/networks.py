"""The network of a folder: its kind, from what transformers knows about its architecture, and its weights.

Only classes of transformers are made, and only from the folder's own files: nothing is fetched, no code of the folder
is imported, weights come from safetensors alone.
"""

import inspect
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from typing import Any

import torch
from torch import nn

from latebind.domain.errors import ConfigError, LatebindError
from latebind.domain.model import Media, Task
from latebind.domain.wording import instead
from latebind.folders.files import SAVE, Taken, count_numbers

Foreign = Any  # an object of transformers, which has no types here
SPARE_NUMBERS = 1 << 26  # that a network may have beyond those of its files: tables of sines, a pooler
POOLER = "pooler."  # weights without which an embedding can do


@dataclass(frozen=True, slots=True)
class Kind:
    """Networks of one kind: the transformers list that names them, the class that makes one, and what it is for.

    `others` are further tasks that users may choose; `seen` names some architectures, for messages.
    """

    names: str
    auto: str
    task: Task
    media: Media
    seen: str
    others: tuple[Task, ...] = ()


TEXTS = Kind(
    "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    "AutoModelForSequenceClassification",
    Task.CLASSIFY,
    Media.TEXT,
    "ForSequenceClassification",
    (Task.RERANK, Task.EMBED),
)
TOKENS = Kind(
    "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",
    "AutoModelForTokenClassification",
    Task.TAG,
    Media.TEXT,
    "ForTokenClassification",
    (Task.EMBED,),
)
SOUNDS = Kind(
    "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES",
    "AutoModelForAudioClassification",
    Task.CLASSIFY,
    Media.SOUND,
    "Wav2Vec2ForSequenceClassification, HubertForSequenceClassification",
)
PICTURES = Kind(
    "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    "AutoModelForImageClassification",
    Task.CLASSIFY,
    Media.PICTURE,
    "ForImageClassification",
    (Task.EMBED,),
)
BOXES = Kind(
    "MODEL_FOR_OBJECT_DETECTION_MAPPING_NAMES",
    "AutoModelForObjectDetection",
    Task.DETECT,
    Media.PICTURE,
    "ForObjectDetection",
)
PLACES = Kind(
    "MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING_NAMES",
    "AutoModelForSemanticSegmentation",
    Task.SEGMENT,
    Media.PICTURE,
    "ForSemanticSegmentation",
)
SEEN = Kind("MODEL_FOR_IMAGE_MAPPING_NAMES", "AutoModel", Task.EMBED, Media.PICTURE, "ViTModel, Dinov2Model")
READ = Kind("MODEL_MAPPING_NAMES", "AutoModel", Task.EMBED, Media.TEXT, "BertModel, XLMRobertaModel, MPNetModel")
FILLED = Kind("MODEL_FOR_MASKED_LM_MAPPING_NAMES", "AutoModel", Task.EMBED, Media.TEXT, "ForMaskedLM")
ENCODERS = Kind(
    "MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES", "AutoModelForTextEncoding", Task.EMBED, Media.TEXT, "T5EncoderModel"
)
SEQUENCES = Kind(
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "AutoModelForSeq2SeqLM",
    Task.GENERATE,
    Media.TEXT,
    "T5ForConditionalGeneration, BartForConditionalGeneration, MarianMTModel",
)
KINDS = (SOUNDS, TEXTS, TOKENS, PICTURES, BOXES, PLACES, SEQUENCES, FILLED, SEEN, READ, ENCODERS)
"""In the order of search: a name in two lists is of the first kind."""

LANGUAGE_MODELS = "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"
BETTER = "vLLM, SGLang, llama.cpp and TGI serve language models far better"


@dataclass(frozen=True, slots=True)
class Network:
    """A network with its weights, its kind, the task that it is built for, and its configuration."""

    module: nn.Module
    kind: Kind
    task: Task
    config: Foreign
    missing: tuple[str, ...] = ()  # weights that the folder lacks, of a pooler only

    @property
    def takes(self) -> tuple[str, ...]:
        """The names of the inputs that its `forward` takes."""
        return tuple(inspect.signature(self.module.forward).parameters)


def kind_of(config: Mapping[str, Any], shown: str, *, embeds: bool = False) -> Kind:
    """Return the kind of network that a configuration describes. `embeds`: it is part of an embedding model.

    Raises `ConfigError` for language models, and, listing the known kinds, for others.
    """
    from transformers.models.auto import modeling_auto  # noqa: PLC0415  (an extra, and slow to import)

    named = config.get("architectures")
    architecture = named[0] if isinstance(named, list) and named and isinstance(named[0], str) else ""
    model = config.get("model_type")
    if not isinstance(model, str):
        raise ConfigError(f"{shown}: its configuration has no model_type: {SAVE}")

    def has(names: str) -> bool:
        listed = getattr(modeling_auto, names)
        found = listed.get(model)
        return bool(architecture) and architecture in (found if isinstance(found, tuple) else (found,))

    if embeds and model in modeling_auto.MODEL_MAPPING_NAMES:
        return ENCODERS if has(ENCODERS.names) and not has(READ.names) else READ
    if has(LANGUAGE_MODELS) and not any(has(kind.names) for kind in KINDS if kind not in {READ, ENCODERS}):
        raise ConfigError(f"{shown} is a language model ({architecture}), which is not served: {BETTER}")
    for kind in KINDS:
        if has(kind.names):
            return kind
    if not architecture and model in modeling_auto.MODEL_MAPPING_NAMES:
        raise ConfigError(f"{shown}: its configuration names no architecture, so its task is unknown: {SAVE}")
    known = "; ".join(f"{kind.task} ({kind.media}): {kind.seen}" for kind in KINDS)
    what = architecture or model
    raise ConfigError(f"{shown} is of an architecture that is not served, {what:.80}. Served are {known}")


def task_of(kind: Kind, config: Foreign, wanted: str, shown: str) -> Task:
    """Return the task to build for: the `wanted` one, or that of the architecture. Raises `ConfigError`."""
    one_label = kind is TEXTS and config.num_labels == 1 and getattr(config, "problem_type", None) != "regression"
    usual = Task.RERANK if one_label else kind.task
    if not wanted:
        return usual
    could = [usual, *(task for task in (kind.task, *kind.others) if task is not usual)]
    if wanted not in could:
        known = [str(each) for each in Task]
        near = "" if wanted in known else instead(wanted, known)
        raise ConfigError(f"--task {wanted}: {shown} is built for {' or '.join(could)}{near}")
    if wanted == Task.RERANK and config.num_labels != 1:
        raise ConfigError(f"--task rerank: {shown} has {config.num_labels} classes, and a reranker must have one")
    return Task(wanted)


def configuration(taken: Taken) -> Foreign:
    """Return the configuration as a transformers object. Raises `ConfigError`."""
    from transformers import AutoConfig  # noqa: PLC0415

    with quietly(taken, "its configuration cannot be read"):
        config = AutoConfig.from_pretrained(taken.network, trust_remote_code=False, local_files_only=True)
        config.return_dict, config.output_hidden_states, config.output_attentions = True, False, False
        if hasattr(config, "use_cache"):
            config.use_cache = False
        return config


def load_network(taken: Taken, kind: Kind, task: Task, config: Foreign) -> Network:
    """Return the network with its weights in 32 bits. Raises `ConfigError` for a folder that does not have them all."""
    import transformers  # noqa: PLC0415

    shown, files = taken.shown, taken.weights()
    auto = getattr(transformers, kind.auto if task is kind.task or task is Task.RERANK else "AutoModel")
    with quietly(taken, "its network cannot be made"):
        with torch.device("meta"):
            empty = auto.from_config(config, trust_remote_code=False, attn_implementation="eager")
        wanted = sum(tensor.numel() for tensor in (*empty.parameters(), *empty.buffers()))
    there = count_numbers(files, shown)
    if wanted > there + SPARE_NUMBERS:
        sizes = f"its weights have {there} numbers, its configuration {wanted}"
        raise ConfigError(f"{shown}: {sizes}: copy the whole folder")
    made: Foreign = None
    report: dict[str, Any] = {}
    for attention in ("sdpa", "eager"):  # some support only the second
        try:
            with quietly(taken, "its weights do not fit"):
                made, report = auto.from_pretrained(
                    taken.network,
                    config=config,
                    dtype=torch.float32,
                    attn_implementation=attention,
                    use_safetensors=True,
                    trust_remote_code=False,
                    local_files_only=True,
                    output_loading_info=True,
                )
            break
        except ConfigError as error:
            if attention == "eager" or "scaled_dot_product" not in str(error):
                raise
    assert made is not None
    missing = sorted(report["missing_keys"])
    lacking = [name for name in missing if not (task is Task.EMBED and POOLER in name)]
    if wrong := [*lacking, *map(str, report["mismatched_keys"])]:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise ConfigError(
            f"{shown} has no weights that fit {', '.join(wrong[:3])}{more}, which {type(made).__name__} needs: "
            f"is it built for another --task?"
        )
    return Network(made.eval().requires_grad_(False), kind, task, config, tuple(missing))


@contextmanager
def quietly(taken: Taken, failed: str) -> Iterator[None]:
    """Keep transformers from printing and from fetching anything; whatever it raises becomes one line."""
    from huggingface_hub import constants  # noqa: PLC0415

    logger = logging.getLogger("transformers")
    level, online = logger.level, constants.HF_HUB_OFFLINE
    logger.setLevel(logging.CRITICAL)
    constants.HF_HUB_OFFLINE = True
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            yield
    except (LatebindError, MemoryError):
        raise
    except Exception as error:  # from a library that reads files from anyone
        if isinstance(error, ModuleNotFoundError) and error.name == "transformers":  # the caller says how to install it
            raise
        reason = " ".join(str(error).replace(str(taken.path), taken.shown).split())[:300]
        raise ConfigError(f"{taken.shown}: {failed} ({type(error).__name__}: {reason})") from error
    finally:
        logger.setLevel(level)
        constants.HF_HUB_OFFLINE = online
