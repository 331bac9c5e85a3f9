"""A stack as the steps by which it mixes positions, each split exactly into what came from where.

    result = kept + sum over heads and keys of  weight[q, k] vector[k]  + position-wise writes + biases

A unit is one sub-layer, or a whole parallel block, whose sub-layers all read and add to one stream. Norm scales are
those of the run: with them fixed all of this is linear, the norms behind a sub-layer (sandwich) or around the stream
(post-norm) included.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.analysis._run import Run
from glassformer.analysis.components import head_labels, require_pattern
from glassformer.analysis.frozen.norm import FrozenNorm
from glassformer.attention import AttentionLayer
from glassformer.errors import AnalysisUnavailable, NoPattern
from glassformer.models import ModelLike, SubLayer, require_model

# vectors held at once while a unit is split: about 64 MiB in float32
NUMBERS_AT_ONCE = 1 << 24


@dataclasses.dataclass(frozen=True, eq=False)
class Moves:
    """What one attention sub-layer adds to the stream, by head and key.

    Args:
        part: The layer.
        labels: Names of its heads.
        pattern: As the mechanism made it, by value stream.
        weight: What multiplies `vectors`: the pattern over the scales of the norms behind it.
        value: Mixed with `weight`; gains of a norm on mixed values included.
        gate: What mixed values are multiplied by at each query, or None.
        output: From mixed values to the stream, norms behind the sub-layer included up to their scale.
    """

    part: AttentionLayer
    labels: list[str]
    pattern: Float[Tensor, "value_stream head query key"]
    weight: Float[Tensor, "value_stream head query key"]
    value: Float[Tensor, "value_stream head key d_z"]
    gate: Float[Tensor, "head query d_z"] | None
    output: Float[Tensor, "head d_z d_model"]

    @property
    def crosses(self) -> bool:
        """Whether the keys are those of the encoder."""
        return self.part.config.cross

    def summed(self, queries: slice | Tensor) -> Float[Tensor, "query key d_model"]:
        """Return what some queries get from each key, all heads together."""
        weight = self.weight[:, :, queries]
        if self.gate is None:
            return torch.einsum("shqk,shkd->qkd", weight, self.value @ self.output)
        mixed = torch.einsum("shqk,shke,hqe->qkhe", weight, self.value, self.gate[:, queries])
        return mixed.flatten(2) @ self.output.flatten(0, 1)

    def per_head(self, queries: slice | Tensor) -> Float[Tensor, "query head key d_model"]:
        """Return what some queries get from each key by each head."""
        weight, moved = self.weight[:, :, queries], self.value if self.gate is not None else self.value @ self.output
        each = (w.transpose(0, 1)[..., None] * u for w, u in zip(weight, moved))
        mixed = functools.reduce(torch.add, each)
        if self.gate is None:
            return mixed
        return (mixed * self.gate[:, queries].transpose(0, 1)[:, :, None]) @ self.output

    def total(self) -> Float[Tensor, "query d_model"]:
        """Return the sum over heads and keys."""
        z = (self.weight @ self.value).sum(0)
        return torch.einsum("hqe,hed->qd", z if self.gate is None else z * self.gate, self.output)


@dataclasses.dataclass(frozen=True, eq=False)
class Unit:
    """One step of a stack.

    Args:
        label: `L0`, `L0 cross`, `L0 mlp`, ….
        kept: What is left of the stream before, `query d_model`.
        moves: Its attention sub-layers.
        writes: What its other sub-layers add, by label.
        bias: What is the same whatever the sub-layers read: biases of outputs and of norms behind them.
        result: The stream behind it.
    """

    label: str
    kept: Float[Tensor, "query d_model"]
    moves: tuple[Moves, ...]
    writes: tuple[tuple[str, Float[Tensor, "query d_model"]], ...]
    bias: Float[Tensor, "query d_model"]
    result: Float[Tensor, "query d_model"]

    @property
    def mixed(self) -> Float[Tensor, "query d_model"]:
        """The stream behind it without what the position-wise sub-layers of a parallel block add."""
        return self.result - sum(write for _, write in self.writes)

    def pieces(self, keys: int, heads: int = 1) -> Iterator[slice]:
        """Yield queries, as many at a time as fit in memory with a vector for each of so many keys and heads."""
        n, width = self.kept.shape
        at_once = max(1, NUMBERS_AT_ONCE // max(1, keys * heads * width))
        yield from (slice(start, min(start + at_once, n)) for start in range(0, n, at_once))


def flow_sites(model: ModelLike, stack: str | None = None) -> list[str]:
    """Return the sites that the analyses of token flow read, to be passed as `read=`.

    Args:
        model: One of ours.
        stack: `encoder` for a model that has two, to read no more than that; else all that leads to the logits.
    """
    name = require_model(model, "token flow").stack_name(stack)
    names = [model.source, name] if stack is None and model.source is not None else [name]
    found: list[str] = []
    for layer in [layer for name in names for layer in model.sub_layers(name)]:
        found += layer.block.at_resid
        found += [norm.at_scale for norm in layer.behind if not norm.identity]
        if (part := layer.attention) is None:
            found.append(_written_at(layer))
        elif part.traits.has_patterns:
            found += [part.at.pattern, part.at.value, *layer.multiplier_sites]
    return list(dict.fromkeys(found))


def units(run: Run, analysis: str, *, stack: str | None = None) -> Iterator[Unit]:
    """Yield the steps of one stack in order, for a run of one prompt.

    Args:
        run: A forward pass that read `flow_sites(model)`.
        analysis: Named in errors.
        stack: `encoder` or `decoder` of a model that has two; the decoder by default.

    Raises:
        SiteNotRead: The run lacks a site.
        NoPattern: A mechanism has no pattern that multiplies values.
    """
    name = require_model(run.model, analysis).stack_name(stack)
    require_patterns(run.model, analysis, name)
    run.require(flow_sites(run.model, name), analysis)
    # sub-layers that read one stream also add to one: they are one step
    for _, group in itertools.groupby(run.model.sub_layers(name), lambda layer: layer.entry):
        yield _unit(run, list(group))


def require_patterns(model: ModelLike, analysis: str, stack: str | None = None) -> None:
    """Raise `NoPattern` unless all that mixes positions is attention with a pattern that multiplies values."""
    for layer in require_model(model, analysis).sub_layers(model.stack_name(stack)):
        part = layer.attention
        if part is None and not layer.part.by_position:
            raise NoPattern(
                f'{analysis}: layer {layer.layer} has a sub-layer "{layer.name}", which mixes positions without a '
                "pattern.\n    Gradients need none: analysis.attribution.input_gradients(model, text)."
            )
        if part is not None and not part.projection.values_by_position:
            raise NoPattern(
                f"{analysis}: layer {layer.layer} mixes values with those just before them "
                f"({part.config.projection.kind}), so its pattern does not say where they come from.\n"
                "    Gradients need none: analysis.attribution.input_gradients(model, text)."
            )
        if part is not None:
            instead = "Gradients need none: analysis.attribution.input_gradients(model, text)."
            require_pattern(part, analysis, instead)


def require_rows(model: ModelLike, analysis: str, advice: str, stack: str | None = None) -> None:
    """Raise `AnalysisUnavailable` unless rows of every pattern are non-negative and sum to one."""
    for part in _attentions(model, analysis, stack):
        if not part.traits.rows_sum_to_one:
            raise AnalysisUnavailable(
                f'{analysis}: layer {part.dims.layer} uses "{part.config.mixer.described}" (rows_sum_to_one=False), '
                f"whose weights are no shares.\n    {advice}"
            )


def _attentions(model: ModelLike, analysis: str, stack: str | None) -> list[AttentionLayer]:
    layers = require_model(model, analysis).sub_layers(model.stack_name(stack))
    return [layer.attention for layer in layers if layer.attention is not None]


def token_row(run: Run, stack: str) -> list[str]:
    """Return the tokens of a stack's positions, of a run of one prompt."""
    return run.source_tokens if stack == "encoder" else run.tokens


def has_source(model: ModelLike, stack: str | None) -> bool:
    """Whether a stack's cross-attention brings in positions of an encoder."""
    return model.source is not None and stack != model.source


def _written_at(layer: SubLayer) -> str:
    """Return the site of what a sub-layer that mixes no positions writes: behind its norm, or what it returns."""
    return layer.at_write if layer.rate is None else layer.at_out


def _unit(run: Run, layers: Sequence[SubLayer]) -> Unit:
    def read(site: str) -> Tensor:
        return run[site].values[0].detach()

    kept, result = read(layers[0].at_stream), read(layers[0].at_behind)
    moves, writes, bias = list[Moves](), list[tuple[str, Tensor]](), torch.zeros_like(kept)
    for layer in layers:
        part, behind = layer.attention, [FrozenNorm.of(norm, read) for norm in layer.behind]
        kept = FrozenNorm.of(layer.stream_norm, read)(layer.remainder(kept)).detach()
        if part is not None:
            moves.append(_moves(read, layer, part, behind))
            own = part.merge.output.bias
            bias = bias if own is None else bias + _through(behind, own.detach().expand_as(kept)).detach()
        if layer.shift is not None and (layer.stream_norm or part is not None):
            bias = bias + layer.shift.detach()
        if part is None:
            at = _written_at(layer)
            # what is read behind a norm on the write has passed it already
            writes.append((_label(layer), _through(behind if at == layer.at_out else [], read(at)).detach()))
    mixing = [layer for layer in layers if layer.attention is not None]
    return Unit(_label((mixing or layers)[0]), kept, tuple(moves), tuple(writes), bias, result)


def _through(norms: Sequence[FrozenNorm], x: Tensor) -> Tensor:
    for norm in norms:
        x = norm(x)
    return x


def _moves(read: Callable[[str], Tensor], layer: SubLayer, part: AttentionLayer, behind: Sequence[FrozenNorm]) -> Moves:
    pattern, value = (u[0] for u in part.by_stream(read(part.at.pattern)[None], read(part.at.value)[None]))
    weight, output, gate = pattern, part.merge.matrix().detach(), None
    if not part.merge.linear:
        weight = weight / read(part.at.z_scale)[..., None]
    for norm in behind:
        if norm.scale is not None:
            weight, output = weight / norm.scale[:, None], norm.unscaled(output).detach()
    if part.merge.multiplies:
        ones = value.new_ones(1, *pattern.shape[1:3])
        x = ones.mT if part.merge.gate is None else read(layer.at_gate)[None]
        factor = part.merge.multiplier(x, None if part.merge.linear else ones)[0].detach()
        if part.merge.gate is None:
            value = value * factor[:, :1]
        else:
            gate = factor
    return Moves(
        part=part, labels=head_labels(layer), pattern=pattern, weight=weight, value=value, gate=gate, output=output
    )


def _label(layer: SubLayer) -> str:
    """Return how a step is called: an attention layer by its block alone, if it is the block's first."""
    return layer.block_label if layer.name == "attn" else layer.label
