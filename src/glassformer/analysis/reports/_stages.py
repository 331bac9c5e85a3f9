"""The way from text to probabilities in numbers: shapes, and norms at the position that is explained."""

import itertools
from typing import Any

import torch
from torch import Tensor

from glassformer.analysis._run import Run
from glassformer.analysis.components import entry_sites
from glassformer.analysis.reports.explanation import Stage
from glassformer.attention import AttentionLayer
from glassformer.models import ModelLike
from glassformer.models.experts import ExpertsLayer
from glassformer.models.mlp import MlpLayer
from glassformer.numerics.distributions import entropy_bits
from glassformer.words import Sentence, listed, sentence


def stage_sites(model: ModelLike) -> list[str]:
    """Return the sites that `stages` reads: embeddings, what every sub-layer adds, the stream after every block."""
    names = []
    for side, stack in model.stacks.items():
        embed = model.embeddings[side]
        names += _embedding_sites(embed).values()
        for block, layers in itertools.groupby(stack.sub_layers(), lambda layer: layer.block):
            names += [*(layer.at_write for layer in layers), block.at_resid[-1]]
    readout = model.unembed.readout
    return names if readout is None else [*names, readout.norm.at_out]


def stages(run: Run, position: int, log_probs: Tensor) -> tuple[Stage, ...]:
    """Return the stages of a run of one row, from text to probabilities.

    Args:
        run: A forward pass that read `stage_sites(model)`.
        position: Index of the explained position.
        log_probs: Of the next token at that position.
    """
    model, n = run.model, len(run.tokens)
    found: list[Stage] = []
    numbers: dict[str, float]
    if run.text is not None:
        size = len(run.text.encode("utf-8", "replace"))
        numbers = {sentence("characters"): len(run.text), sentence("bytes"): size}
        found.append(Stage("text", sentence("text"), {"character": len(run.text)}, numbers))
    rows = [(sentence("source tokens"), run.source_tokens)] if run.source_ids is not None else []
    for name, tokens in [*rows, (sentence("tokens"), run.tokens)]:
        numbers = {sentence("tokens"): len(tokens), sentence("different"): len(set(tokens))}
        found.append(Stage("tokens", name, {"pos": len(tokens)}, numbers))
    found.append(_read(model, n))
    for side, stack in model.stacks.items():
        embed, encoder = model.embeddings[side], side == model.source
        length, at = (len(run.source_tokens), slice(None)) if encoder else (n, slice(position, position + 1))
        found += _side(run, stack, embed, {"batch": 1, "pos": length, "d_model": model.config.d_model}, at, encoder)
    if (readout := model.unembed.readout) is not None:
        size = float(run[readout.norm.at_out].values[0, position].norm())
        shape = {"batch": 1, "pos": n, "d_model": model.config.d_model}
        activation = readout.config.activation
        note = sentence("One more layer at each position, {activation}, and a norm.", activation=activation)
        found.append(Stage("readout", sentence("readout"), shape, {sentence("norm"): size}, note))
    assert run.logits is not None
    logits = run.logits[0, position]
    numbers = {sentence("largest"): float(logits.max()), sentence("mean"): float(logits.mean())}
    numbers[sentence("smallest")] = float(logits.min())
    outputs = model.config.n_outputs
    found.append(
        Stage("logits", sentence("logits"), {"batch": 1, "pos": n, "vocab": outputs}, numbers, _unembedding(model))
    )
    surprise = float(entropy_bits(log_probs))
    numbers = {sentence("largest"): float(log_probs.max().exp()), sentence("entropy bits"): surprise}
    numbers[sentence("effective choices")] = 2**surprise
    next_tokens = model.logits_of == "next_token" and model.one_vocabulary()
    what = sentence("next-token probabilities") if next_tokens else sentence("probabilities")
    found.append(Stage("probabilities", what, {"vocab": outputs}, numbers, sentence("softmax of the logits.")))
    return tuple(found)


def _read(model: ModelLike, n: int) -> Stage:
    """Return what stands for each token before it has a vector: an id, or the numbers of a patch."""
    if (patches := model.patches) is not None:
        note = sentence("Each token is a square of {size} x {size} pixels.", size=patches.size)
        numbers: dict[str, float] = {sentence("rows"): patches.grid[0], sentence("columns"): patches.grid[1]}
        return Stage("tokens", sentence("patches"), {"batch": 1, "pos": n, "pixel": patches.n_pixels}, numbers, note)
    vocab = model.config.vocab_size
    note = sentence("Each token is a number below {vocabulary}.", vocabulary=vocab)
    return Stage("ids", sentence("ids"), {"batch": 1, "pos": n}, {sentence("vocabulary"): vocab}, note)


def _embedding_sites(embed: Any) -> dict[Sentence, str]:
    """Return the stages of the embedding with the site of each."""
    found = {sentence("token embedding"): embed.at_token}
    found |= {} if embed.positions is None else {sentence("position embedding"): embed.at_position}
    return found | ({} if embed.norm is None else {sentence("embedding norm"): embed.norm.at_out})


def _side(run: Run, stack: Any, embed: Any, shape: dict[str, int], at: slice, encoder: bool) -> list[Stage]:
    """Return the stages of one stack; an encoder has no explained position, so its norms are means over tokens."""

    def named(stage: Sentence) -> Sentence:
        return sentence("encoder {stage}", stage=stage) if encoder else stage

    def averaged(note: Sentence) -> Sentence:
        return sentence("Mean over tokens. {note}", note=note) if encoder else note

    def norm(site: str) -> float:
        return float(run[site].values[0, at].norm(dim=-1).mean())

    mean = sentence("Mean over tokens." if encoder else "")
    found = [
        Stage("embed", named(name), shape, {sentence("norm"): norm(site)}, mean)
        for name, site in _embedding_sites(embed).items()
    ]
    numbers: dict[str, float]
    for block, layers in itertools.groupby(stack.sub_layers(), lambda layer: layer.block):
        numbers = {sentence("{part} write", part=sentence(layer.name)): norm(layer.at_write) for layer in layers}
        numbers[sentence("stream")] = norm(block.at_resid[-1])
        parts = [*(_described(block.part(name)) for name in block.names), block.config.described]
        note = averaged(sentence("{parts}.", parts=listed(parts)))
        stage = named(sentence("block {layer}", layer=block.layer))
        found.append(Stage("encoder" if encoder else "block", stage, shape, numbers, note))
    if not stack.final.identity:
        last = run[stack.blocks[-1].at_resid[-1]].values[0, at] if len(stack.blocks) else _entry(run, embed, at)
        scale = float(stack.final.scale(last).mean())
        note = averaged(sentence(stack.final.config.kind or ""))
        found.append(Stage("final", named(sentence("final norm")), shape, {sentence("scale"): scale}, note))
    return found


def _entry(run: Run, embed: Any, at: slice) -> Tensor:
    return torch.stack([run[site].values[0, at] for site in entry_sites(embed)]).sum(0)


def _described(part: Any) -> Sentence:
    if isinstance(part, AttentionLayer):
        return _attention(part)
    if isinstance(part, ExpertsLayer):
        return sentence(
            "{n} experts, {chosen} at each position, of {neurons} neurons, {activation}", n=part.config.n_experts,
            chosen=part.config.n_chosen, neurons=part.d_mlp, activation=_activation(part),
        )  # fmt: skip
    if isinstance(part, MlpLayer):
        return sentence("mlp of {neurons} neurons, {activation}", neurons=part.d_mlp, activation=_activation(part))
    return sentence(type(part).__name__)


def _attention(part: AttentionLayer) -> Sentence:
    dims, config, kind = part.dims, part.config, part.config.mixer.kind
    crosses, own = sentence("cross-attention ({kind})", kind=kind), sentence("{kind} attention", kind=kind)
    attention = crosses if config.cross else own
    found = sentence("{attention}, {n} heads of {size}", attention=attention, n=dims.n_heads, size=dims.d_head)
    if dims.n_kv_heads != dims.n_heads:
        found = sentence("{attention} on {n} key/value heads", attention=found, n=dims.n_kv_heads)
    if config.positions.kind != "none":
        found = sentence("{attention}, {kind} positions", attention=found, kind=config.positions.kind)
    return found


def _activation(part: Any) -> Sentence:
    activation = sentence(part.config.activation)
    return sentence("gated {activation}", activation=activation) if part.config.gated else activation


def _unembedding(model: ModelLike) -> Sentence:
    tied, own = sentence("The unembedding is the embedding matrix."), sentence("The unembedding has its own matrix.")
    matrix, cap = tied if model.config.tied else own, model.unembed.cap
    return (
        matrix if cap is None else sentence("{matrix} Capped: {cap:g} * tanh(raw / {cap:g}).", matrix=matrix, cap=cap)
    )
