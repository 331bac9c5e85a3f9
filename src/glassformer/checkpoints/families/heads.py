"""What stands on the body of a published model in place of a language model's head: nothing, or classes.

`architectures` names it, in the words of transformers: `LlamaModel`, `BertForSequenceClassification`,
`MistralForTokenClassification`. Classes are told apart by one matrix, at the position that stands for a text (the first
of an encoder, the last of a decoder) or at each; encoders put a layer in front of it for texts.
"""

from collections.abc import Collection, Mapping
from typing import Any, Literal, NamedTuple

from glassformer.checkpoints.families.fields import Fields
from glassformer.errors import CheckpointError
from glassformer.models import DecoderConfig, EncoderConfig, EncoderDecoderConfig, ModelConfig, NoNorm, Readout
from glassformer.provenance import ModelNote
from glassformer.words import sentence

Head = Literal["language", "none", "text", "tokens"]
_ENDS: Mapping[str, Head] = {"ForSequenceClassification": "text", "ForTokenClassification": "tokens"}
# language models that are called models too
_HEADED = ("LMHeadModel", "DoubleHeadsModel", "MTModel")
# what a language model's matrix is called in files of bodies that have one all the same
_LANGUAGE = ("lm_head.weight", "embed_out.weight")


class TextHead(NamedTuple):
    """How an encoder's files call what tells classes of a text.

    Args:
        dense: The layer in front.
        output: The matrix.
        activation: Behind the layer in front; by default the one that `hidden_act` says.
    """

    dense: str
    output: str
    activation: Any = "tanh"


def head_of(config: Mapping[str, Any]) -> Head:
    """What stands on a body, as its config says."""
    named = config.get("architectures")
    name = str(named[0]) if isinstance(named, list) and named else ""
    if name.endswith("Model") and not name.endswith(_HEADED):
        return "none"
    for end, head in _ENDS.items():
        if name.endswith(end):
            return head
    return "language"


def as_filed(config: Mapping[str, Any], names: Collection[str]) -> Mapping[str, Any]:
    """Return a config that says of a head what its files hold: a body's may have that of a language model."""
    if head_of(config) != "none" or not any(name.endswith(_LANGUAGE) for name in names):
        return config
    return {name: value for name, value in config.items() if name != "architectures"}


def labels_of(fields: Fields) -> tuple[str, ...]:
    """The names of classes, two without names where nothing is said.

    Raises:
        CheckpointError: They are not numbered from 0 on, or not as many as is said.
    """
    named = fields.get("id2label", {})
    n = fields.whole("num_labels", len(named) or 2)
    named = named or {str(i): f"LABEL_{i}" for i in range(n)}
    found = {str(id): str(label) for id, label in named.items()} if isinstance(named, dict) else {}
    if found.keys() != {str(i) for i in range(n)}:
        raise fields.wrong("id2label", named, f"names of the classes 0 to {n - 1}")
    return tuple(found[str(i)] for i in range(n))


def with_head(config: ModelConfig, fields: Fields, text: TextHead | None) -> ModelConfig:
    """Return the config of a body with the head that is said.

    Args:
        config: Of a language model.
        fields: Theirs.
        text: Of encoders: how they tell classes of a text, if that is known.

    Raises:
        CheckpointError: It is a head that the family's models are not read with.
    """
    head, changed = head_of(fields.data), config
    if head == "none" and isinstance(config, DecoderConfig | EncoderDecoderConfig) and not config.tied:
        return config.replace(predicts=False, unembed_bias=False, logit_cap=None, unembed_scale=1.0)
    if head not in ("text", "tokens"):
        return config
    plain: dict[str, Any] = {"tied": False, "classifies": head, "output_vocab_size": len(labels_of(fields))}
    if isinstance(config, DecoderConfig):
        changed = config.replace(unembed_bias=head == "tokens", logit_cap=None, unembed_scale=1.0, **plain)
    elif isinstance(config, EncoderConfig) and (head == "tokens" or text is not None):
        readout = None
        if head == "text" and text is not None:
            readout = Readout(text.activation or fields.activation("hidden_act", "gelu_new"), NoNorm())
        changed = config.replace(predicts=True, readout=readout, unembed_bias=True, **plain)
    else:
        raise CheckpointError(
            f'"{fields.where}": architectures={fields.data["architectures"]!r} names a head that is not read here. Its '
            "body opens: take the name out of the config, and the head's tensors out of the files."
        )
    return changed


def rows_of_head(config: Any, text: TextHead | None, tokens: str) -> dict[str, str]:
    """Return how files call the head of classes, by our names; nothing for other heads.

    Args:
        config: Ours.
        text: Of encoders, as for `with_head`.
        tokens: The matrix that tells classes of tokens.
    """
    if config.classifies is None:
        return {}
    if config.classifies == "tokens" or text is None:
        name = tokens if config.classifies == "tokens" else "score"
        return {"unembed.matrix": f"{name}.weight", "unembed.bias": f"{name}.bias"}
    return {
        "unembed.readout.input": text.dense,
        "unembed.matrix": f"{text.output}.weight",
        "unembed.bias": f"{text.output}.bias",
    }


def notes_of_head(config: ModelConfig, said: Mapping[str, Any]) -> tuple[ModelNote, ...]:
    """Return a note where outputs are no logits of one class among several, which is what they are shown as."""
    if config.classifies is None:
        return ()
    kind = "regression" if config.n_outputs == 1 else said.get("problem_type")
    told = {
        "regression": sentence("The outputs are numbers that were fitted, not logits of classes."),
        "multi_label_classification": sentence("The outputs are labels that exclude none of the others."),
    }
    meaning = {
        "regression": sentence("Probabilities over them mean nothing; read the logits, which are the numbers."),
        "multi_label_classification": sentence(
            "The chance of each is the sigmoid of its logit, not a softmax over all."
        ),
    }
    return (ModelNote(told[kind], meaning[kind]),) if kind in told else ()
