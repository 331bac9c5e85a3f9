"""Direct logit attribution: one logit as the sum of what every component wrote to the stream.

The direction of a token is pulled back from the unembedding through each norm with its scale frozen; what a component
adds is the dot product of its write with the direction as it stands where it writes. With scales frozen all of this is
linear, so the parts sum to the logit. In post-norm stacks the direction passes every later norm, and each of those
norms contributes its bias.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.analysis.inputs import token_id
from glassformer.analysis.run import Run
from glassformer.attention import AttentionLayer, per_query_head
from glassformer.errors import AnalysisUnavailable
from glassformer.labelled import Coordinate, Labelled, Result
from glassformer.models import Block, Decoder, EncoderDecoder, Stack
from glassformer.models.parts import Embedding, Norm
from glassformer.weights import head_label

Kind = Literal[
    "token", "position", "head", "cross_head", "attn_bias", "mlp", "part", "norm_bias", "final_bias", "unembed_bias"
]


@dataclasses.dataclass(frozen=True)
class Component:
    """One thing that writes to the stream, or one constant.

    Args:
        label: Its name in results, `L3H5`, `L3 mlp`, ….
        kind: What it is; `part` is a sub-layer that is neither attention nor an MLP.
        layer: Block it lies in; None outside the blocks.
        part: Sub-layer it belongs to (`attn`, `cross`, `mlp`); empty outside the blocks.
        head: Index of the head; None unless it is one.
    """

    label: str
    kind: Kind
    layer: int | None = None
    part: str = ""
    head: int | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Attribution(Result):
    """Contributions to a logit, or to the difference of two.

    Args:
        contributions: In logits, over `component`.
        components: What each of them is, in the order of the forward pass.
        answer: Token id.
        against: Token id subtracted, or None.
        position: Index of the position whose next token is in question.
        total: The logit, or the difference, as the model computed it.
        sum: Of the contributions; equal to `total` up to rounding unless the stream itself was edited.
        cap: The model's soft cap on logits, or None. With a cap, `total` and the contributions are of the raw logit,
            before the cap: what comes after it is no sum.
    """

    contributions: Labelled
    components: tuple[Component, ...]
    answer: int
    against: int | None
    position: int
    total: float
    sum: float
    cap: float | None = None

    def __getitem__(self, label: str) -> float:
        """Return one contribution by its label."""
        return float(self.contributions.select(component=label).values)


@dataclasses.dataclass(frozen=True, eq=False)
class Sources(Result):
    """What one head takes from each token.

    Args:
        contributions: In logits, over `key`; they sum to the head's contribution.
        label: The head.
    """

    contributions: Labelled
    label: str


def needs(model: Any) -> list[str]:
    """Return the sites that `attribution` reads, to be passed as `read=`."""
    stack, embed = decoder_side(model)
    names = [embed.at_token] + ([embed.at_position] if embed.positions is not None else [])
    for block, name in _sub_layers(stack):
        names.append(f"{block.path}.{name}.{'head_out' if _attention(block, name) else 'out'}")
        after = block.norm_after(name)
        names += [after.at_scale] if after is not None and after.weight is not None else []
    names += [stack.final.at_scale] if stack.final.weight is not None else []
    return names if model.unembed.cap is None else [*names, model.unembed.at_raw]


def attribution(
    run: Run, answer: str | int | None = None, against: str | int | None = None, *, position: int = -1, row: int = 0
) -> Attribution:
    """Split one logit into the contributions of everything that wrote to the stream.

    Norm scales are frozen at the values they took in this pass; then the parts sum to the logit exactly (tested to
    1e-9 in float64). What is measured is the direct effect: what later components made of a write is credited to them.
    Of a model that caps its logits, the raw logit is split.

    Args:
        run: A forward pass that read `needs(model)`.
        answer: Token (text or id) whose logit is split; the likeliest next token by default.
        against: Token whose logit is subtracted. Differences are free of the constant that logits are arbitrary up to.
        position: Position whose next token is in question; negative ones count from the end of the text.
        row: Row of the batch.

    Returns:
        Contributions in logits: `token`, `position`, `L0H0` …, `L0 attn bias`, `L0 mlp`, …, `final norm bias`,
        `unembed bias`. Heads of cross-attention are `L0X0`.

    Raises:
        SiteNotRead: The run lacks a site; the message lists what to add to `read=`.
        AnalysisUnavailable: The model is not one of ours, or its weights are not at hand (a loaded run).

    Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits" (expansion into direct paths).
    """
    model = run.model
    stack, embed = decoder_side(model)
    run.require(needs(model), "attribution")
    assert run.logits is not None, "a run of one of our models has logits"
    at, cap = run.place(position, row), model.unembed.cap
    logits = (run.logits if cap is None else run[model.unembed.at_raw].values)[row, at].detach()
    chosen = int(logits.argmax()) if answer is None else token_id(model, answer)
    other = None if against is None else token_id(model, against)
    total = logits[chosen] if other is None else logits[chosen] - logits[other]

    path = _pull_back(run, model, _direction(model, chosen, other), row, at)
    parts = [(Component("token", "token"), run[embed.at_token].values[row, at] @ path.entry)]
    if embed.positions is not None:
        parts.append((Component("position", "position"), run[embed.at_position].values[row, at] @ path.entry))
    for write in reversed(path.writes):
        parts += _contributions(run, write, row, at)
    if stack.final.bias is not None:
        parts.append((Component("final norm bias", "final_bias"), path.final_bias))
    if (bias := model.unembed.bias) is not None:
        constant = bias[chosen] if other is None else bias[chosen] - bias[other]
        parts.append((Component("unembed bias", "unembed_bias"), constant))

    components = tuple(component for component, _ in parts)
    values = torch.stack([value.detach().double() for _, value in parts])
    labelled = Labelled(values, ("component",), {"component": [c.label for c in components]})
    return Attribution(labelled, components, chosen, other, at, float(total), float(values.sum()), cap)


def source_needs(model: Any) -> list[str]:
    """Return the sites that `sources` reads, as far as the model's mechanisms have patterns."""
    names: list[str] = []
    for block, name in _sub_layers(decoder_side(model)[0]):
        part = _attention(block, name)
        if part is not None and part.traits.linear_in_value != "no":
            names += [part.at.pattern, part.at.value]
            names += [] if part.merge.linear else [part.at.z_scale]
            names += [] if part.merge.gate is None else [_read_through(block, name)]
    return names


def sources(run: Run, split: Attribution, label: str, *, row: int = 0) -> Sources:
    """Split a head's contribution by the token whose value it moved: pattern times value, through the output matrix.

    Args:
        run: The pass that `split` was made from; it also read `source_needs(model)`.
        split: Direction and position.
        label: A head, as `attribution` names it.
        row: Row of the batch.

    Raises:
        SiteNotRead: The run lacks a site.
        AnalysisUnavailable: There is no such head, or its mechanism has no pattern.
    """
    model = run.model
    heads = {c.label: c for c in split.components if c.head is not None}
    if label not in heads:
        raise AnalysisUnavailable(f'sources: "{label}" is no head of this attribution. Heads: {", ".join(heads)}.')
    head, at = heads[label], split.position
    path = _pull_back(run, model, _direction(model, split.answer, split.against), row, at)
    write = next(w for w in path.writes if (w.block.layer, w.name) == (head.layer, head.part))
    assert head.head is not None
    values = by_source(run, write.block, write.name, row, at, head.head) @ write.direction
    tokens = run.source_rows[row] if head.kind == "cross_head" else run.token_rows[row]
    names: list[Coordinate] = [f"{i}:{token}" for i, token in enumerate(tokens)]
    coords = {"key": names} if len(names) == len(values) else {}
    return Sources(Labelled(values.detach().double(), ("key",), coords), label)


def decoder_side(model: Any) -> tuple[Stack, Embedding]:
    """Return the stack and embedding that end in the logits; raises `AnalysisUnavailable` for other modules."""
    if isinstance(model, Decoder):
        return model.stack, model.embed
    if isinstance(model, EncoderDecoder):
        return model.decoder, model.decoder_embed
    if model is None:
        raise AnalysisUnavailable("this analysis looks at weights: give the model, Run.load(path, model=…).")
    raise AnalysisUnavailable(
        f"this analysis needs the parts of a Decoder or an EncoderDecoder; {type(model).__name__} is neither.\n"
        "    What any module offers is gf.run(model, inputs, read=[…]) at its module boundaries."
    )


@dataclasses.dataclass(frozen=True)
class _Write:
    """A sub-layer, the direction its write is measured along, and what the norm after it adds by its bias."""

    block: Block
    name: str
    direction: Float[Tensor, " d_model"]
    bias: Tensor | None


@dataclasses.dataclass(frozen=True)
class _Path:
    """The direction on its way down: at every sub-layer, last one first, and at the entry of the stack."""

    writes: list[_Write]
    entry: Float[Tensor, " d_model"]
    final_bias: Tensor


def _direction(model: Any, answer: int, against: int | None) -> Float[Tensor, " d_model"]:
    direction = model.unembed.direction(torch.tensor(answer))
    return (direction if against is None else direction - model.unembed.direction(torch.tensor(against))).detach()


def _pull_back(run: Run, model: Any, direction: Tensor, row: int, at: int) -> _Path:
    stack, _ = decoder_side(model)
    final_bias = _bias(stack.final, direction)
    u = _adjoint(run, stack.final, direction, row, at)
    writes = []
    for block, name in reversed(_sub_layers(stack)):
        after = block.norm_after(name)
        if after is None:
            writes.append(_Write(block, name, u, None))
            continue
        bias, through = None if after.bias is None else _bias(after, u), _adjoint(run, after, u, row, at)
        writes.append(_Write(block, name, through, bias))
        # a post-norm normalises the whole stream, so everything written earlier passes it too
        u = through if block.wiring == "post" else u
    return _Path(writes, u, final_bias)


def _adjoint(run: Run, norm: Norm, u: Float[Tensor, " d_model"], row: int, at: int) -> Float[Tensor, " d_model"]:
    """Return the direction before a norm that has the given one after it: the transpose of `Norm.linear`."""
    if norm.weight is None:
        return u
    u = u * norm.weight.detach() / run[norm.at_scale].values[row, at]
    return u - u.mean() if norm.centred else u


def _bias(norm: Norm, u: Tensor) -> Tensor:
    return u.new_zeros(()) if norm.bias is None else norm.bias.detach() @ u


def _contributions(run: Run, write: _Write, row: int, at: int) -> list[tuple[Component, Tensor]]:
    block, name, u, layer = write.block, write.name, write.direction, write.block.layer
    path, part = f"{block.path}.{name}", _attention(block, name)
    parts: list[tuple[Component, Tensor]] = []
    if part is None:
        kind: Kind = "mlp" if name.startswith("mlp") else "part"
        parts.append((Component(f"L{layer} {name}", kind, layer, name), run[f"{path}.out"].values[row, at] @ u))
    else:
        kind = "cross_head" if part.config.cross else "head"
        for h, value in enumerate(run[part.at.head_out].values[row, :, at] @ u):
            parts.append((Component(head_label("", name, layer, h), kind, layer, name, h), value))
        if part.merge.output.bias is not None:
            value = part.merge.output.bias @ u
            parts.append((Component(f"L{layer} {name} bias", "attn_bias", layer, name), value))
    if write.bias is not None:
        parts.append((Component(f"L{layer} {name} norm bias", "norm_bias", layer, name), write.bias))
    return parts


def by_source(run: Run, block: Block, name: str, row: int, at: int, head: int) -> Float[Tensor, "key d_model"]:
    """Return what a head writes on behalf of each key; raises as `sources` does."""
    part = _attention(block, name)
    assert part is not None
    if part.traits.linear_in_value == "no":
        raise AnalysisUnavailable(
            f'sources: layer {block.layer} uses "{part.config.mixer.kind}" (linear_in_value="no"), so no token '
            "has a share of its own.\n    The head as a whole is in attribution(run)."
        )
    gate = None if part.merge.gate is None else _read_through(block, name)
    scale = None if part.merge.linear else part.at.z_scale
    run.require([name for name in (part.at.pattern, part.at.value, gate, scale) if name], "sources")
    pattern = run[part.at.pattern].values[row : row + 1, :, at]
    moved = pattern[..., None] * per_query_head(run[part.at.value].values[row : row + 1], pattern[..., None])
    # the merge step is linear in z once scale and gate are fixed: give it one addend of z per key, as if at positions
    scales = None if scale is None else run[scale].values[row : row + 1, :, at, None].expand(moved.shape[:-1])
    x = moved if gate is None else run[gate].values[row, at].expand(1, moved.shape[2], -1)
    return part.merge.per_head(moved, x, scales)[0, head]


def _sub_layers(stack: Stack) -> Sequence[tuple[Block, str]]:
    return [(block, name) for block in stack.blocks for name in block.names]  # type: ignore[union-attr, misc]


def _attention(block: Block, name: str) -> AttentionLayer | None:
    part = block.part(name)
    return part if isinstance(part, AttentionLayer) else None


def _read_through(block: Block, name: str) -> str:
    """Return the site of what a sub-layer reads: its norm's output, or (post-norm) the stream itself."""
    return block.at_resid[block.names.index(name)] if block.wiring == "post" else block.norm(name).at_out
