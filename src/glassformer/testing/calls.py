"""A right call of every analysis, for any tiny model: whether an analysis applies to it shows when it is made.

    right_call(logit_lens, subject("llama"))()        the analysis, asked as it should be
    right_call(logit_lens, subject("llama"))(row=7)   the same with one argument changed

Arguments go by the names of parameters: `_USUAL` has them for all analyses, `_OWN` where one takes something else.
"""

import copy
import dataclasses
import fnmatch
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from glassformer import weights
from glassformer.analysis.cards import card_of
from glassformer.analysis.dictionaries import Relu, SparseAutoencoder
from glassformer.analysis.frozen import with_gates, with_scales
from glassformer.analysis.heads.roles import patterned
from glassformer.analysis.learning import History, trajectory
from glassformer.analysis.lens import TunedLens
from glassformer.analysis.sweep import logit_difference
from glassformer.analysis.vocabulary import crossed_trigrams
from glassformer.data import Batch, Contrast, Pair, Pairs, PlantedRows, Tokenizer, word_tokenizer
from glassformer.data.labels import LabelledDocument, LabelledText, Node, Tree
from glassformer.errors import RunFolderError
from glassformer.models import Model
from glassformer.testing.layers import randomise
from glassformer.testing.models import Subject
from glassformer.trace import Add, Scale
from glassformer.trace.heads import head_labels


class Call(NamedTuple):
    """A function, and arguments by name with which it works; of those that are taken in a row, a tuple."""

    name: str
    function: Callable[..., Any]
    arguments: Mapping[str, Any]

    @property
    def parameters(self) -> list[str]:
        """What it takes, in order."""
        named = inspect.signature(self.function).parameters.values()
        return [one.name for one in named if one.kind != one.VAR_KEYWORD]

    def __call__(self, **changed: Any) -> Any:
        asked = inspect.signature(self.function)
        row = {name for name, one in asked.parameters.items() if one.kind == one.VAR_POSITIONAL}
        assert set(self.arguments) <= set(asked.parameters), "arguments that the function does not take"
        given = dict(self.arguments) | {name: (value,) if name in row else value for name, value in changed.items()}
        bound = inspect.BoundArguments(asked, {name: given[name] for name in asked.parameters if name in given})  # type: ignore[arg-type]
        return self.function(*bound.args, **bound.kwargs)


def right_call(analysis: Callable[..., Any], subject: Subject) -> Call:
    """Return a call of an analysis with arguments that fit a model, if the analysis applies to it at all.

    Raises:
        GlassformerError: What it takes is made by another analysis, which does not apply to the model.
    """
    card, fits = card_of(analysis), _Fits(subject)
    asked = inspect.signature(card.function).parameters
    own = _OWN[card.name](fits) if card.name in _OWN else {}
    needed = [name for name, one in asked.items() if one.default is one.empty]
    needed += ["text"] if "run" in needed else []
    given = {name: _USUAL[name](fits) for name in needed if name not in own} | own
    # what the decoder of an encoder-decoder reads goes by another name, unless a batch holds both
    if fits.target is not None and "target" in asked:
        given["target"] = fits.target[
            : next(_rows(given[name]) for name in ("text", "inputs", "base") if name in given)
        ]
    return Call(card.name, card.function, given)


def _rows(given: Any) -> int:
    return len(given[0]) if isinstance(given, tuple) else len(given)


@dataclass(frozen=True)
class _InMemory(History):
    """A training run whose models are in memory, and whose rows any may be."""

    by_step: Mapping[int, Any]

    def model(self, step: int) -> Any:
        if step not in self.by_step:
            raise RunFolderError(
                f"no model of step {step} is in memory; there are {', '.join(map(str, self.by_step))}."
            )
        return self.by_step[step]

    def tokens(self, step: int) -> int:
        return step

    @property
    def tokenizer(self) -> Tokenizer:
        return _WORDS


# six words, in the vocabulary of any model
_WORDS = word_tokenizer(["a b c d e f"])


@dataclass(frozen=True)
class _Fits:
    """What fits a model: tokens, labels of its heads, directions of its stream."""

    subject: Subject

    @property
    def model(self) -> Any:
        return self.subject.model

    @property
    def ids(self) -> Tensor:
        return self.subject.inputs[0]

    @property
    def text(self) -> Tensor:
        """The first row, cut to what the stack that ends in the logits reads; an image whole."""
        return self.ids[:1] if self.subject.patches is not None else self.ids[:1, : self.subject.length]

    @property
    def target(self) -> Tensor | None:
        return self.subject.inputs[1] if len(self.subject.inputs) > 1 else None

    @property
    def batch(self) -> Batch:
        return self.subject.batch()

    @property
    def longer(self) -> Batch:
        """A batch of rows as long as early and late losses take to differ."""
        shapes = [(2, 20)] * len(self.subject.inputs)
        drawn = self.subject.others(torch.Generator().manual_seed(5), shapes)
        return dataclasses.replace(self.subject, inputs=drawn).batch()

    def prefix(self, length: int) -> Tensor | Batch:
        """The first row cut short; with its source, if there is one."""
        if self.subject.patches is not None:
            return self.ids[:1]
        ids = self.subject.inputs[-1][:1, :length]
        return ids if self.target is None else Batch(ids, ids, ids > -1, source=self.ids[:1])

    @property
    def heads(self) -> list[str]:
        """Labels of self-attention of the stack that predicts; two that no model has, if it has none."""
        found = head_labels(self.model.sites("*"))
        return [label for label in found if label.startswith("L") and "X" not in label] or ["L0H0", "L1H0"]

    @property
    def written(self) -> str:
        """Sites of what self-attention writes; of what sub-layers write, in a model that has none."""
        written = "*.attn.out"
        return written if fnmatch.filter(self.model.sites("*"), written) else "*.out"

    @property
    def pairs(self) -> Contrast:
        others = self.subject.others(torch.Generator().manual_seed(9))
        sides: dict[str, Any] = {} if self.target is None else {"target": self.target, "corrupt_target": others[1]}
        n = len(self.ids)
        return Contrast(self.ids, others[0], [1] * n, [2] * n, **sides)

    @property
    def direction(self) -> Tensor:
        sites = self.model.sites("*").values()
        width = next(site.sizes["d_model"] for site in sites if "d_model" in site.sizes)
        return torch.ones(width, dtype=next(self.model.parameters()).dtype)

    @property
    def stream(self) -> str:
        """The first place of the stream behind a block of the stack that predicts, or of what is written to it."""
        places = [site for site in self.model.sites("*").values() if site.axes == ("batch", "pos", "d_model")]
        own = [site for site in places if site.stack != "encoder"] or places
        return next((site for site in own if site.quantity == "resid_post"), own[0]).name

    @property
    def dictionary(self) -> SparseAutoencoder:
        return Relu(len(self.direction), 12).build().to(self.direction.dtype)

    @property
    def another(self) -> Any:
        """The model with other weights."""
        return randomise(copy.deepcopy(self.model), seed=3, std=0.2)

    @property
    def reading_words(self) -> Any:
        model = copy.copy(self.model)
        model.tokenizer = _WORDS
        return model

    @property
    def weights(self) -> Any:
        """What analyses of what heads do take: the model, or its weights with gates and scales of latents of a text."""
        gated = any(site.quantity == "gate_in" for site in self.model.sites("*").values())
        stacks = getattr(self.model, "stacks", ())
        parts = [layer.attention for stack in stacks for layer in self.model.sub_layers(stack)]
        if not gated and not any(part is not None and part.projection.norms_within for part in parts):
            return self.model
        inputs = self.subject.inputs
        return with_scales(with_gates(weights.of(self.model, fold=True), *inputs), *inputs)

    def patterned(self, place: int) -> str:
        """The label of a head, with the first of its values where it has several."""
        label, rows = self.heads[place], patterned(self.model) if isinstance(self.model, Model) else []
        own = [row.label for row in rows if row.label.partition("/")[0] == label]
        return own[0] if own else label

    @property
    def run(self) -> History:
        return _InMemory(Path("in memory"), {}, [], (1, 2, 4), {1: self.another, 2: self.another, 4: self.model})


# by parameter, for what has no default
_USUAL: Mapping[str, Callable[[_Fits], Any]] = {
    "run": lambda fits: fits.model, "model": lambda fits: fits.model, "text": lambda fits: fits.ids[:1],
    "inputs": lambda fits: fits.ids, "ids": lambda fits: fits.subject.inputs[-1], "base": lambda fits: fits.ids[:1],
    "batches": lambda fits: fits.batch, "metric": lambda fits: logit_difference(1, 2),
    "heads": lambda fits: fits.heads[-1:], "head": lambda fits: fits.heads[-1], "layer": lambda fits: 0,
    "label": lambda fits: fits.heads[0], "writer": lambda fits: fits.heads[0],
    "reader": lambda fits: f"{fits.heads[-1]} Q", "token": lambda fits: 5, "threshold": lambda fits: 0.01,
    "thresholds": lambda fits: [0.001, 0.1], "circuit": lambda fits: [fits.heads[0], fits.heads[-1]],
    "subject": lambda fits: [1], "chosen": lambda fits: fits.heads[:1],
    "mask": lambda fits: torch.eye(fits.subject.length, dtype=torch.bool),
    "directions": lambda fits: fits.direction,
    "pairs": lambda fits: fits.pairs, "plan": lambda fits: [[Scale(fits.written, 0.0)]],
    "first": lambda fits: fits.heads[0], "second": lambda fits: fits.heads[-1],
}  # fmt: skip

# of weights that may be held as they were on a text
_OF_WEIGHTS = (
    "composition", "copying", "copying_rates", "induction_circuits", "offset_profile", "positional_heads",
    "skip_trigrams", "token_circuits", "token_pairs", "erasers", "singular_tokens",
)  # fmt: skip

_OWN: Mapping[str, Callable[[_Fits], dict[str, Any]]] = {
    **dict.fromkeys(_OF_WEIGHTS, lambda fits: {"model": fits.weights}),
    "input_gradients": lambda fits: {"steps": 2},
    "edit_fact": lambda fits: {"answer": 3, "size": 0.5},
    "meaning_shift": lambda fits: {"first": fits.prefix(5), "second": fits.prefix(4), "word": (3, 1)},
    "find_pattern": lambda fits: {"text": fits.text},
    "fit_tuned_lens": lambda fits: {"batches": [fits.batch], "steps": 1},
    **dict.fromkeys(
        ("feature_effects", "feature_examples", "splice_loss"),
        lambda fits: {"dictionary": fits.dictionary, "batches": [fits.batch], "site": fits.stream},
    ),
    "feature_tokens": lambda fits: {"dictionary": fits.dictionary, "site": fits.stream},
    "lens_divergence": lambda fits: {"lens": TunedLens.identity(fits.model), "batches": [fits.batch]},
    "probe": lambda fits: {"texts": [fits.batch], **_labelled(fits)},
    "sparse_probe": lambda fits: {"texts": [fits.batch], "site": fits.stream, **_labelled(fits)},
    "erasure_effects": lambda fits: {"texts": list(fits.ids), **_labelled(fits)},
    "interchange": lambda fits: {"site": fits.stream},
    "alignment_search": lambda fits: {"site": fits.stream, "steps": 2, "draws": 2},
    "dose_curve": lambda fits: {
        "steering": Add(fits.stream, fits.direction.cumsum(0) / 10),
        "doses": [0.5, 1.0],
        "texts": fits.batch,
        "draws": 2,
    },
    "structural_probe": lambda fits: {"texts": _with_trees(), "folds": 2, "steps": 2},
    "phrase_clusters": lambda fits: {"texts": _with_trees(), "restarts": 2},
    "evaluate_heads": lambda fits: {"n_sequences": 2, "unit": 4, "repeats": 3},
    "heads_over_corpus": lambda fits: {"texts": fits.ids},
    "head_scores": lambda fits: {"n_sequences": 2, "unit": 3, "repeats": 2},
    "crossed_trigrams": lambda fits: _crossed(fits),
    "crossed_cost": lambda fits: {"crossed": crossed_trigrams(**_crossed(fits)), "ids": fits.ids},
    "virtual_copying": lambda fits: {"model": fits.weights, "first": 0, "second": 1},
    "composed_pattern": lambda fits: {"first": fits.patterned(0), "second": fits.patterned(-1)},
    "answered": lambda fits: {
        "model": fits.reading_words, "pairs": Pairs((Pair("a b", "a c", 1, 2), Pair("f b", "f c", 3, 2)))
    },
    "ablate": lambda fits: {"inputs": (fits.longer,)},
    "ablate_each": lambda fits: {"inputs": (fits.longer,)},
    "before_after": lambda fits: {"before": fits.another, "after": fits.model, "inputs": (fits.batch,)},
    "causal_trace": lambda fits: {"inputs": fits.ids[:1], "samples": 2},
    "long_context": lambda fits: {"sink": 1, "recent": 2},
    "short_circuit": lambda fits: {
        "planted": PlantedRows(fits.ids, torch.tensor([1, 4]), 3), "novel": (fits.batch,)
    },
    "attention_sinks": lambda fits: {"text": fits.ids, "window": 2, "first": 1},
    "suppression": lambda fits: {"inputs": (fits.batch,)},
    "rank_of_stream": lambda fits: {"inputs": (fits.ids[:1],)},
    "in_context_learning": lambda fits: {"batches": (fits.batch,), "early": 1, "late": 3},
    "loss_trajectories": lambda fits: {"folders": [fits.run], "batches": (fits.batch,), "draws": 2},
    "phase_change": lambda fits: {"found": trajectory(fits.run, fits.longer)},
    "trajectory": lambda fits: {"folder": fits.run, "batches": (fits.longer,)},
    "importance": lambda fits: {"batches": (fits.batch,), "others": "recorded"},
    "average_routes": lambda fits: {"text": fits.ids},
    "rotation_test": lambda fits: {} if fits.target is None else {"source": fits.ids},
    "circuits": lambda fits: {"rows": (fits.batch,)},
}  # fmt: skip


def _labelled(fits: _Fits) -> dict[str, Any]:
    """Return two classes of positions, of as many documents as there are rows."""
    return {"labels": [torch.arange(64) // 2 % 2] * len(fits.ids), "folds": 2}


def _with_trees() -> LabelledText:
    """Return four documents of five tokens that any model has, each standing within the one before, of two kinds."""
    nodes = tuple(Node(("node", "part")[i % 2], i, 5, i - 1) for i in range(5))
    spans = tuple((i, i + 1) for i in range(5))
    one = LabelledDocument("abcde", (1, 2, 3, 4, 5), spans, {}, {}, Tree(nodes))
    return LabelledText([one] * 4)


def _crossed(fits: _Fits) -> dict[str, Any]:
    rules = [[0, 1, 2, 3], [0, 1, 4, 5]]
    tokens = {"sources": [1], "destinations": [2, 4], "outputs": [3, 5], "context": [0]}
    return {"model": fits.weights, "documents": rules, **tokens}
