"""A right call of every public analysis, and of what stands around them, on tiny models: what misuse starts from."""

import inspect
import itertools
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

import glassformer as gf
from explanations import gpt
from glassformer import checkpoints, data, handmade, models, training, weights
from glassformer.analysis import behaviour, causal, learning, lens, losses, subspaces, vocabulary
from glassformer.analysis.question import cards
from glassformer.analysis.sweep import kl_divergence, logit_difference, next_token_loss, one_by_one
from glassformer.data import Contrast, Pair, Pairs, PlantedRows
from glassformer.data.batch import next_token_batch
from glassformer.testing.models import subject
from tiny_runs import recipe

IDS = torch.tensor([[5, 9, 3, 7, 2]])
OTHERS = torch.cat((IDS, (IDS + 1) % 11))
ROWS = next_token_batch(OTHERS)
# of folders, none of which is written twice
_NUMBERS = itertools.count()
VECTOR = torch.ones(16)


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


@cache
def model() -> Any:
    return subject("gpt2", dtype=torch.float32).model


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="glassformer-misuse-")


def folder() -> Path:
    """Return a folder that goes when the process ends, with a model in it."""
    path = Path(_folder().name)
    if not (path / "model").exists():
        gf.save(model(), path / "model")
    return path


@cache
def _history() -> Any:
    config: Any = recipe(keep=(2, 4, 6), data=recipe().data.replace(length=24), optim=training.OptimConfig(warmup=1))
    training.train(config, folder() / "run")
    return learning.read_history(folder() / "run")


@cache
def _history_rows() -> Any:
    return next_token_batch(torch.randint(1, 20, (6, 25), generator=torch.Generator().manual_seed(0)))


@cache
def _trigrams() -> tuple[Any, Any]:
    found = handmade.skip_trigram_model()
    cells = (["keep"], ["in", "at"], ["mind", "bay"])
    return found, vocabulary.crossed_trigrams(found, _RULES, *cells, context=[0])


_RULES = [[0, 1, 2, 3], [0, 1, 4, 5]]

# by parameter, for what has no default and no entry of its own below
_USUAL: Mapping[str, Callable[[], Any]] = {
    "run": model, "model": model, "text": lambda: IDS, "inputs": lambda: OTHERS, "ids": lambda: OTHERS,
    "base": lambda: IDS, "batches": lambda: ROWS, "metric": lambda: logit_difference(1, 2),
    "heads": lambda: ["L1H0"], "head": lambda: "L1H0", "layer": lambda: 0, "label": lambda: "L0H0",
    "writer": lambda: "L0H0", "reader": lambda: "L1H0 V", "token": lambda: 5, "threshold": lambda: 0.01,
    "thresholds": lambda: [0.001, 0.1], "circuit": lambda: ["L0H0", "L1H0"], "subject": lambda: [1],
    "chosen": lambda: ["L0H0"], "mask": lambda: torch.eye(5, dtype=torch.bool),
    "directions": lambda: VECTOR, "pairs": lambda: Contrast(OTHERS, (OTHERS + 3) % 11, [1, 1], [2, 2]),
    "plan": lambda: [[gf.Scale("L0H0.z", 0.0)]], "first": lambda: "L0H0", "second": lambda: "L1H0",
}  # fmt: skip

_OWN: Mapping[str, Callable[[], dict[str, Any]]] = {
    "input_gradients": lambda: {"text": IDS, "steps": 2},
    "meaning_shift": lambda: {"first": next_token_batch(IDS), "second": next_token_batch(IDS[:, :4]), "word": (3, 1)},
    "fit_tuned_lens": lambda: {"batches": [ROWS], "steps": 1},
    "lens_divergence": lambda: {"lens": lens.fit_tuned_lens(model(), [ROWS], steps=1), "batches": [ROWS]},
    "evaluate_heads": lambda: {"model": _induction(), "n_sequences": 2, "unit": 4, "repeats": 3},
    "head_scores": lambda: {"n_sequences": 2, "unit": 3, "repeats": 2},
    "crossed_cost": lambda: {
        "model": _trigrams()[0], "crossed": _trigrams()[1], "ids": torch.tensor(_RULES)
    },
    "crossed_trigrams": lambda: {
        "model": _trigrams()[0], "documents": _RULES, "sources": ["keep"], "destinations": ["in", "at"],
        "outputs": ["mind", "bay"], "context": [0],
    },
    "virtual_copying": lambda: {"first": 0, "second": 1},
    "answered": lambda: {"model": gpt(), "pairs": Pairs((Pair("a b", "a c", "d", "e"), Pair("f (", "f )", "g", "h")))},
    "before_after": lambda: {"before": model(), "after": subject("gpt2", dtype=torch.float32, seed=3).model},
    "causal_trace": lambda: {"inputs": IDS, "samples": 2},
    "faithfulness": lambda: {"metric": logit_difference(1, 2)},
    "long_context": lambda: {"text": IDS, "sink": 1, "recent": 2},
    "short_circuit": lambda: {"planted": PlantedRows(OTHERS, torch.tensor([1, 4]), 3), "novel": (ROWS,)},
    "attention_sinks": lambda: {"text": OTHERS, "window": 2, "first": 1},
    "suppression": lambda: {"inputs": (ROWS,)},
    "in_context_learning": lambda: {"batches": (ROWS,), "early": 1, "late": 3},
    "loss_trajectories": lambda: {"folders": [_history()], "batches": (_history_rows(),), "draws": 5},
    "phase_change": lambda: {"found": learning.trajectory(_history(), _history_rows())},
    "trajectory": lambda: {"folder": _history(), "batches": (_history_rows(),)},
    "importance": lambda: {"batches": (ROWS,), "others": "recorded"},
    "offset_profile": lambda: {"model": subject("llama", dtype=torch.float32).model},
    "effective_memory": lambda: {"model": subject("linear").model},
    "average_routes": lambda: {"text": OTHERS},
    "rank_of_stream": lambda: {"inputs": (OTHERS,)},
    "circuits": lambda: {"model": handmade.induction_model(), "rows": (next_token_batch(handmade.repeated(batch=2)),)},
}  # fmt: skip


@cache
def _induction() -> Any:
    return handmade.induction_model(vocab=60, max_len=101)


def _by_card() -> dict[str, Callable[[], Call]]:
    def made(name: str, function: Callable[..., Any]) -> Call:
        asked = inspect.signature(function).parameters
        own = _OWN.get(name, dict[str, Any])()
        needed = [name for name, one in asked.items() if one.default is one.empty]
        needed += ["text"] if "run" in needed else []
        return Call(name, function, own | {name: _USUAL[name]() for name in needed if name not in own})

    return {card.name: lambda card=card: made(card.name, card.function) for card in cards()}


def _around() -> dict[str, Callable[[], Call]]:
    """Return calls of what is no analysis: passes, edits, checkpoints, weights, generation, tokenizers."""
    scale = {"at": gf.At(head=0)}
    return {
        name: lambda name=name, function=function, arguments=arguments: Call(name, function, arguments())
        for name, function, arguments in (
            ("run", gf.run, lambda: {"model": model(), "inputs": IDS, "read": ["*.z"]}),
            ("edited run", _edited, lambda: {"site": "blocks.0.attn.z", "value": 0.0} | scale),
            ("read run", _read, lambda: {"site": "blocks.0.attn.z"} | scale),
            ("Set", gf.Set, lambda: {"site": "blocks.0.attn.z", "value": 0.0} | scale),
            ("Scale", gf.Scale, lambda: {"site": "blocks.0.attn.z", "factor": 0.0} | scale),
            ("Project", gf.Project, lambda: {"site": "blocks.0.resid_pre", "directions": VECTOR}),
            ("Take", gf.Take, lambda: {"site": "blocks.0.attn.z", "row": 0}),
            ("Apply", gf.Apply, lambda: {"site": "blocks.0.attn.z", "function": torch.relu}),
            ("Read", gf.Read, lambda: {"site": "blocks.0.attn.z"} | scale),
            ("Place", gf.Place, lambda: {"boundary": "encoder.layer.0.out"}),
            ("At", _at, lambda: {"head": 0}),
            ("Labelled", gf.Labelled, lambda: {"values": VECTOR, "axes": ("d_model",)}),
            ("Tape", gf.Tape, lambda: {"model": model(), "read": ["*.z"]}),
            ("generate", models.generate, lambda: {"model": model(), "prompts": IDS, "max_new_tokens": 2}),
            ("edited generate", models.generate, lambda: {
                "model": model(), "prompts": [[1, 2, 3, 4], [5]], "max_new_tokens": 3, "sampling": models.GREEDY,
                "edit": [gf.Add("blocks.0.resid_post", VECTOR, at=gf.At(pos=slice(2, None)))], "read": "*.pattern"}),
            ("function generate", models.generate, lambda: {
                "model": model(), "prompts": [[1, 2, 3, 4], [5]], "max_new_tokens": 3, "sampling": models.GREEDY,
                "edit": {"blocks.0.resid_post": torch.neg}, "read": ["*.pattern"]}),
            ("beam_search", models.beam_search, lambda: {
                "model": model(), "prompts": IDS, "max_new_tokens": 2, "n_beams": 2}),
            ("Sampling", models.Sampling, dict),
            ("load", gf.load, lambda: {"name": folder() / "model"}),
            ("save", gf.save, lambda: {"model": model(), "folder": folder() / "saved"}),
            ("convert", checkpoints.convert, lambda: {
                "source": folder() / "model", "folder": folder() / f"converted-{next(_NUMBERS)}",
                "to": "transformer-lens"}),
            ("config_of", checkpoints.config_of, lambda: {"name": folder() / "model"}),
            ("open_folder", checkpoints.open_folder, lambda: {"folder": folder() / "model"}),
            ("weights.of", weights.of, lambda: {"model": model()}),
            ("weights.folded", weights.folded, lambda: {"model": model()}),
            ("weights.matrices", weights.matrices, lambda: {"model": model()}),
            ("weights.logits", weights.logits, lambda: {"w": weights.of(model()), "tokens": IDS}),
            ("train_bpe", data.train_bpe, lambda: {"texts": ["a b a b"], "vocab_size": 260}),
            ("word_tokenizer", data.word_tokenizer, lambda: {"texts": ["a", "b"]}),
            ("encode", _tokenizer().encode, lambda: {"text": "a"}),
            ("decode", _tokenizer().decode, lambda: {"ids": [3, 4]}),
            ("one_by_one", one_by_one, lambda: {
                "model": model(), "base": IDS, "plan": [[gf.Scale("L0H0.z", 0.0)]], "metric": logit_difference(1, 2)}),
            ("logit_difference", logit_difference, lambda: {"answer": 1, "wrong": 2}),
            ("next_token_loss", next_token_loss, lambda: {"targets": IDS}),
            ("kl_divergence", kl_divergence, lambda: {"reference": gf.run(model(), IDS)}),
            ("loss_by_position", losses.loss_by_position, lambda: {"model": model(), "batches": (ROWS,)}),
            ("document_losses", losses.document_losses, lambda: {
                "model": model(), "documents": [[5, 9, 3]], "length": 4}),
            ("bits_per_byte", losses.bits_per_byte, lambda: {"losses": VECTOR, "n_bytes": 3}),
            ("icl_score", losses.icl_score, lambda: {
                "losses": losses.loss_by_position(model(), ROWS), "early": 1, "late": 3}),
            ("rotation", subspaces.rotation, lambda: {"d_model": 4}),
            ("rotate", subspaces.rotate, lambda: {"w": weights.of(model())}),
            ("frequent_tokens", vocabulary.frequent_tokens, lambda: {"documents": [[1, 2, 2]], "least": 1}),
            ("subject_deviation", causal.subject_deviation, lambda: {"model": model(), "subjects": [[1, 2]]}),
            ("average_traces", causal.average_traces, lambda: {"traces": [_trace()]}),
            ("regenerate", behaviour.regenerate, lambda: {"model": model(), "prefixes": IDS, "new": 2}),
            ("read_history", learning.read_history, lambda: {"folder": _history().folder}),
            ("read_metrics", training.read_metrics, lambda: {"folder": _history().folder}),
            ("read_pairs", data.read_pairs, lambda: {"path": _pairs()}),
            ("train", training.train, lambda: {
                "config": recipe(steps=1), "folder": folder() / f"run-{next(_NUMBERS)}"}),
        )
    }  # fmt: skip


@cache
def _trace() -> Any:
    return causal.causal_trace(model(), IDS, subject=[1], samples=2)


@cache
def _pairs() -> Path:
    return data.write_pairs(folder() / "pairs.csv", [Pair("a b", "a c", "d", "e")])


def _at(head: Any) -> Any:
    return gf.At(head=head)


def _edited(site: Any, value: Any, at: Any) -> Any:
    return gf.run(model(), IDS, edit=gf.Add(site, value, at=at))


def _read(site: Any, at: Any, reduce: Callable[..., Any] | None = None) -> Any:
    return gf.run(model(), IDS, read=gf.Read(site, at, reduce))


@cache
def _tokenizer() -> Any:
    return data.word_tokenizer(["a", "b"])


@cache
def calls() -> dict[str, Callable[[], Call]]:
    """Return what makes each call, by name; analyses by the names of their cards."""
    return _by_card() | _around()
