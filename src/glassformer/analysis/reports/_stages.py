"""The way from text to probabilities in numbers: shapes, and norms at the position that is explained."""

import itertools
import math
from typing import Any

import torch
from torch import Tensor

from glassformer.analysis._run import Run
from glassformer.analysis.components import entry_sites
from glassformer.analysis.reports._explanation import Stage
from glassformer.attention import AttentionLayer
from glassformer.models import ModelLike
from glassformer.models.experts import ExpertsLayer
from glassformer.models.mlp import MlpLayer


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
    if run.text is not None:
        size = len(run.text.encode("utf-8", "replace"))
        found.append(Stage("text", "text", {"character": len(run.text)}, {"characters": len(run.text), "bytes": size}))
    rows = [("source tokens", run.source_tokens)] if run.source_ids is not None else []
    for name, tokens in [*rows, ("tokens", run.tokens)]:
        found.append(
            Stage("tokens", name, {"pos": len(tokens)}, {"tokens": len(tokens), "different": len(set(tokens))})
        )
    vocab = model.config.vocab_size
    found.append(
        Stage("ids", "ids", {"batch": 1, "pos": n}, {"vocabulary": vocab}, f"Each token is a number below {vocab}.")
    )
    for side, stack in model.stacks.items():
        embed, encoder = model.embeddings[side], side == model.source
        length, at = (len(run.source_tokens), slice(None)) if encoder else (n, slice(position, position + 1))
        found += _side(run, stack, embed, {"batch": 1, "pos": length, "d_model": model.config.d_model}, at, encoder)
    if (readout := model.unembed.readout) is not None:
        size = float(run[readout.norm.at_out].values[0, position].norm())
        shape = {"batch": 1, "pos": n, "d_model": model.config.d_model}
        note = f"One more layer at each position, {readout.config.activation}, and a norm."
        found.append(Stage("readout", "readout", shape, {"norm": size}, note))
    assert run.logits is not None
    logits = run.logits[0, position]
    numbers = {"largest": float(logits.max()), "mean": float(logits.mean()), "smallest": float(logits.min())}
    outputs = model.config.n_outputs
    found.append(Stage("logits", "logits", {"batch": 1, "pos": n, "vocab": outputs}, numbers, _unembedding(model)))
    surprise = -float((log_probs.exp() * log_probs).nan_to_num(0.0).sum()) / math.log(2)
    numbers = {"largest": float(log_probs.max().exp()), "entropy bits": surprise, "effective choices": 2**surprise}
    next_tokens = model.predicts_next and model.one_vocabulary()
    what = "next-token probabilities" if next_tokens else "probabilities"
    found.append(Stage("probabilities", what, {"vocab": outputs}, numbers, "softmax of the logits."))
    return tuple(found)


def _embedding_sites(embed: Any) -> dict[str, str]:
    """Return the stages of the embedding with the site of each."""
    found = {"token embedding": embed.at_token}
    found |= {} if embed.positions is None else {"position embedding": embed.at_position}
    return found | ({} if embed.norm is None else {"embedding norm": embed.norm.at_out})


def _side(run: Run, stack: Any, embed: Any, shape: dict[str, int], at: slice, encoder: bool) -> list[Stage]:
    """Return the stages of one stack; an encoder has no explained position, so its norms are means over tokens."""
    prefix, mean = ("encoder ", "Mean over tokens. ") if encoder else ("", "")

    def norm(site: str) -> float:
        return float(run[site].values[0, at].norm(dim=-1).mean())

    found = [
        Stage("embed", prefix + name, shape, {"norm": norm(site)}, mean.strip())
        for name, site in _embedding_sites(embed).items()
    ]
    for block, layers in itertools.groupby(stack.sub_layers(), lambda layer: layer.block):
        numbers = {f"{layer.name} write": norm(layer.at_write) for layer in layers}
        numbers["stream"] = norm(block.at_resid[-1])
        note = mean + "; ".join(_described(block.part(name)) for name in block.names) + f"; {block.config.described}."
        found.append(Stage("encoder" if encoder else "block", f"{prefix}block {block.layer}", shape, numbers, note))
    if not stack.final.identity:
        last = run[stack.blocks[-1].at_resid[-1]].values[0, at] if len(stack.blocks) else _entry(run, embed, at)
        scale = float(stack.final.scale(last).mean())
        found.append(
            Stage("final", f"{prefix}final norm", shape, {"scale": scale}, mean + (stack.final.config.kind or ""))
        )
    return found


def _entry(run: Run, embed: Any, at: slice) -> Tensor:
    return torch.stack([run[site].values[0, at] for site in entry_sites(embed)]).sum(0)


def _described(part: Any) -> str:
    if isinstance(part, AttentionLayer):
        dims, config = part.dims, part.config
        shared = f" on {dims.n_kv_heads} key/value heads" if dims.n_kv_heads != dims.n_heads else ""
        placed = "" if config.positions.kind == "none" else f", {config.positions.kind} positions"
        kind = f"cross-attention ({config.mixer.kind})" if config.cross else f"{config.mixer.kind} attention"
        return f"{kind}, {dims.n_heads} heads of {dims.d_head}{shared}{placed}"
    if isinstance(part, ExpertsLayer):
        experts = f"{part.config.n_experts} experts, {part.config.n_chosen} at each position"
        return f"{experts}, of {part.d_mlp} neurons, {'gated ' if part.config.gated else ''}{part.config.activation}"
    if isinstance(part, MlpLayer):
        return f"mlp of {part.d_mlp} neurons, {'gated ' if part.config.gated else ''}{part.config.activation}"
    return type(part).__name__


def _unembedding(model: ModelLike) -> str:
    matrix = "The unembedding is the embedding matrix." if model.config.tied else "The unembedding has its own matrix."
    cap = model.unembed.cap
    return matrix if cap is None else f"{matrix} Capped: {cap:g} * tanh(raw / {cap:g})."
