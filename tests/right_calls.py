"""A right call of every public analysis, and of what stands around them, on tiny models: what misuse starts from."""

import itertools
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch

import glassformer as gf
from glassformer import checkpoints, data, models, training, weights
from glassformer.analysis import behaviour, causal, learning, losses, subspaces, vocabulary
from glassformer.analysis.activations import ActivationStore, activation_size, record_activations
from glassformer.analysis.cards import cards
from glassformer.analysis.sweep import kl_divergence, logit_difference, next_token_loss, one_by_one
from glassformer.data import Pair
from glassformer.data.batch import next_token_batch
from glassformer.testing.calls import Call, right_call
from glassformer.testing.models import Subject, subject
from tiny_runs import recipe

IDS = torch.tensor([[5, 9, 3, 7, 2]])
OTHERS = torch.cat((IDS, (IDS + 1) % 11))
ROWS = next_token_batch(OTHERS)
# of folders, none of which is written twice
_NUMBERS = itertools.count()
VECTOR = torch.ones(16)


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
def _store() -> ActivationStore:
    return record_activations(model(), [[5, 9, 3], [2]], "resid_post", folder() / "activations")


def _shuffled(batch_size: Any, seed: Any = 0, buffer: Any = 64) -> Any:
    return _store().site("blocks.0.resid_post").shuffled(batch_size, seed=seed, buffer=buffer).batch(0)


# what does not apply to GPT-2
_OTHERS = {
    "offset_profile": "llama",
    "effective_memory": "linear",
    "expert_load": "experts",
    "memory_influence": "memory",
}


@cache
def _subject(name: str) -> Subject:
    return Subject(name, model(), (OTHERS,)) if name == "gpt2" else subject(name, length=5, dtype=torch.float32)


def _by_card() -> dict[str, Callable[[], Call]]:
    return {
        card.name: lambda card=card: right_call(card.function, _subject(_OTHERS.get(card.name, "gpt2")))
        for card in cards()
    }


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
            ("Interchange", gf.Interchange, lambda: {
                "site": "blocks.0.resid_pre", "value": 0.0, "directions": VECTOR}),
            ("AddWhere", gf.AddWhere, lambda: {
                "site": "blocks.0.resid_pre", "value": 0.0, "along": VECTOR, "above": 0.5}),
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
            ("record_activations", record_activations, lambda: {
                "model": model(), "texts": [[5, 9, 3], [2]], "sites": "resid_post",
                "folder": folder() / f"activations-{next(_NUMBERS)}"}),
            ("activation_size", activation_size, lambda: {
                "model": model(), "texts": [[5, 9, 3], [2]], "sites": "resid_post"}),
            ("ActivationStore.open", ActivationStore.open, lambda: {"folder": _store().folder, "model": model()}),
            ("StoredSite.shuffled", _shuffled, lambda: {"batch_size": 2}),
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
