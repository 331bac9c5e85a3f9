"""A model made of folded weights: what `fold` absorbs into matrices, as a model that runs, is edited and is saved.

    model = weights.folded(gf.load("gpt-4l"))
    gf.run(model, text, edit=[gf.Set("L1H6.z", 0.0)])          an ablation in the convention of folded weights

Norms go on dividing by their scale and do nothing else, what writes to the stream writes no mean, and value biases are
part of what heads write: so a head at zero is a head that adds nothing, and what is left of the stream means the same.
"""
# torch does not type the parts of a module
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnnecessaryComparison=false

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from glassformer.arguments import checked
from glassformer.attention import Attention
from glassformer.attention.positions import QueryKeyOnlyPositions
from glassformer.errors import AnalysisUnavailable
from glassformer.models import BlockConfig, Mlp, Model, ModelLike, require_model
from glassformer.models.embedding import Learned
from glassformer.models.evaluation import evaluating
from glassformer.models.norms import Norm
from glassformer.numerics.parametrized import seen_state
from glassformer.trace import Tape, splits_of, with_splits
from glassformer.weights.fold import fold
from glassformer.weights.heads import AttentionWeights, MlpWeights
from glassformer.weights.stream import HeadWeights, views


@checked
def folded(model: ModelLike) -> Any:
    """A model of a model's folded weights, in evaluation mode; the model itself stays as it is.

    Log-probabilities are the same. Logits are shifted by a constant per position, since the unembedding is centred over
    the vocabulary, unless they are soft-capped or a readout stands before it. `weights.fold` lists what stays in place.

    Args:
        model: One of ours.

    Raises:
        AnalysisUnavailable: The model reads images. Or, folded, a part would be none that a config describes: biases of
            a gate, matrices that are stored as a product, position vectors that enter behind a norm with gains, token
            types behind a norm. Or there is no unembedding that could be centred: logits are those of a factored output
            layer. Or a site that a dictionary splits (`with_splits`) would hold other values.
    """
    model = require_model(model, "weights.folded")
    if not model.predicts:
        raise _unavailable("the model has no unembedding, so nothing is said that could stay the same")
    model.unembed.require_matrix("weights.folded")
    w = fold(views(model))
    w.require_vocabulary("weights.folded")
    made: Any = _config(model, w).build().to(model.unembed.stored.device, model.unembed.stored.dtype).eval()
    known = made.state_dict()
    kept = {name: value for name, value in seen_state(model).items() if _fits(known.get(name), value)}
    made.load_state_dict(kept, strict=False)
    with torch.no_grad():
        _fill(made, model, w)
    made.tokenizer, made.no_tokenizer = model.tokenizer, model.no_tokenizer
    made.generation, made.checkpoint_notes = model.generation, model.checkpoint_notes
    made.own_tokenizers = dict(model.own_tokenizers)
    made.coordinate_names = model.coordinate_names
    made.name = f"{model.name} folded"
    _check(model, made)
    return with_splits(made, _splits(model, made))


def _fits(known: Tensor | None, value: Tensor) -> bool:
    return known is not None and known.shape == value.shape


def _config(model: Model, w: HeadWeights) -> Any:
    """Return the config of the folded model: with biases everywhere, matrices of its own, and nothing scaled."""
    config, changes = model.config, dict[str, Any]()
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if isinstance(value, tuple) and value and isinstance(value[0], BlockConfig):
            changes[field.name] = tuple(_block(block) for block in value)
    plain: dict[str, Any] = {"tied": False, "unembed_bias": w.bU is not None, "shared": False, "d_embed": None}
    plain |= {"embed_scale": False, "unembed_scale": 1.0, "token_scale": None}
    changes |= {name: value for name, value in plain.items() if hasattr(config, name)}
    if any(table is not None for table in w.tables.values()):
        changes["positions"] = Learned()
    elif hasattr(config, "embed_norm"):
        # the token vectors are behind it
        changes["embed_norm"] = None
    return config.replace(**changes)


def _block(block: BlockConfig) -> BlockConfig:
    return block.replace(parts=tuple(_part(part) for part in block.parts))


def _part(part: Any) -> Any:
    if isinstance(part, Attention):
        return part.replace(projection=part.projection.free(), merge=part.merge.free())
    return part.replace(bias=True, scale=None) if isinstance(part, Mlp) else part


def _fill(made: Model, model: Model, w: HeadWeights) -> None:
    own = views(made)
    for name, norm in _norms(made).items():
        if name in w.norms and w.norms[name] == (None, None) and norm.tied is None:
            for parameter, value in ((norm.weight, 1.0 / norm.enlarged - norm.offset), (norm.bias, 0.0)):
                if parameter is not None:
                    parameter.fill_(value)
    for ours, theirs in zip(own.attention, w.attention, strict=True):
        _fill_attention(ours, theirs)
    for ours, theirs in zip(own.mlps, w.mlps, strict=True):
        _fill_mlp(ours, theirs)
    for name, embed in made.embeddings.items():
        embed.stored.copy_(w.embeddings[name])
        if (table := w.tables[name]) is not None:
            assert embed.positions is not None, "there is a table"
            _set(embed.positions.weight, table, name)
        if embed.types is not None:
            _fill_types(embed, model.embeddings[name], name)
    made.unembed.stored.copy_(w.U.mT)
    _set(made.unembed.bias, w.bU, "unembed")


def _norms(model: Model) -> dict[str, Norm]:
    return {module.at_out: module for module in model.modules() if isinstance(module, Norm)}


def _fill_types(embed: Any, before: Any, name: str) -> None:
    if before.norm is not None and before.positions is None and len(before.types) > 1:
        raise _unavailable(f"{name or 'tokens'}: a norm on token and type vectors has a scale of both")
    # vectors of tokens hold the first type's already
    embed.types.copy_(before.types - before.types[0])


def _fill_attention(ours: AttentionWeights, theirs: AttentionWeights) -> None:
    stored = _memory(ours.module)
    if isinstance(ours.module.positions, QueryKeyOnlyPositions) and not torch.equal(theirs.Q, theirs.Q_position):
        raise _unavailable(f'"{ours.path}" adds positions behind a norm whose gain would be in its matrices')
    for name in ("Q", "K", "V", "O"):
        view = getattr(ours, name)
        if view.untyped_storage().data_ptr() not in stored:
            raise _unavailable(f'"{ours.path}" stores its matrices as products ({ours.module.config.projection.kind})')
        view.copy_(getattr(theirs, name))
    for name in ("bQ", "bK", "bV", "bO"):
        _set(getattr(ours, name), getattr(theirs, name), ours.path)
    if theirs.gate is not None:
        assert ours.gate is not None, "the configs agree"
        if ours.gate[0].untyped_storage().data_ptr() not in stored:
            raise _unavailable(f'"{ours.path}" stores its gate as a product of two matrices (gate_rank)')
        ours.gate[0].copy_(theirs.gate[0])
        _set(ours.gate[1], theirs.gate[1], f"{ours.path}: its gate")


def _memory(module: torch.nn.Module) -> set[int]:
    return {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}


def _fill_mlp(ours: MlpWeights, theirs: MlpWeights) -> None:
    for name in ("W_in", "W_out", "W_gate"):
        if (view := getattr(ours, name)) is not None:
            view.copy_(getattr(theirs, name))
    for name in ("b_in", "b_out", "b_gate"):
        _set(getattr(ours, name), getattr(theirs, name), ours.path)


def _set(place: Tensor | None, value: Tensor | None, what: str) -> None:
    """Put a value, zeros for None, where there is a place; without one, it has to be zero."""
    if place is not None:
        place.copy_(torch.zeros_like(place) if value is None else value)
    elif value is not None and bool(value.any()):
        raise _unavailable(f"{what} would have a bias, and has no place for one")


def _check(model: Model, made: Model) -> None:
    """Raise `AnalysisUnavailable` unless both say the same of a few tokens, up to rounding."""
    ours, theirs = (_said(one, *_tokens(model)) for one in (model, made))
    error = (ours - theirs).abs().max() / ours.abs().max().clamp_min(1e-30)
    if not error <= torch.finfo(model.unembed.stored.dtype).eps ** 0.5:
        raise _unavailable(f"the folded model says something else (by {float(error):.1e} of the largest value)")


def _splits(model: Model, made: Model) -> dict[str, Any]:
    """Return the splits of a model; raises `AnalysisUnavailable` unless what they split is the same, up to rounding."""
    found = splits_of(model)
    for name in found:
        tapes = [Tape(one, [name]) for one in (model, made)]
        for one, tape in zip((model, made), tapes):
            _said(one, *_tokens(model), tape=tape)
        ours, theirs = (tape.values[name] for tape in tapes)
        if not (ours - theirs).abs().max() <= torch.finfo(ours.dtype).eps ** 0.5 * ours.abs().max():
            raise _unavailable(
                f'"{name}" holds other values once weights are folded, and its dictionary is of what it held before'
            )
    return found


def _tokens(model: Model) -> Iterator[Tensor]:
    n = min(model.config.max_len, 12)
    for seed, embed in enumerate(model.embeddings.values()):
        drawn = torch.randint(embed.vocab_size, (2, n), generator=torch.Generator().manual_seed(seed))
        yield drawn.to(model.unembed.stored.device)


def _said(model: Model, *ids: Tensor, tape: Tape | None = None) -> Tensor:
    with evaluating(model), torch.no_grad():
        return model(*ids, tape=tape).double().log_softmax(-1)


def _unavailable(why: str) -> AnalysisUnavailable:
    return AnalysisUnavailable(
        f"weights.folded: {why}.\n    The matrices by themselves: weights.of(model, fold=True), and weights.logits of "
        "these."
    )
