"""A stack as the steps by which it mixes positions, each split exactly into what came from where.

    result = kept + sum over heads and keys of  weight[q, k] vector[k]  + position-wise writes + biases

A unit is one sub-layer, or a whole parallel block, whose sub-layers all read and add to one stream. Norm scales are
those of the run: with them fixed all of this is linear, the norms behind a sub-layer (sandwich) or around the stream
(post-norm) included.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.analysis._run import Run
from glassformer.analysis.components import decoder_side
from glassformer.analysis.frozen._stack import FrozenNorm
from glassformer.attention import AttentionLayer, per_query_head
from glassformer.errors import AnalysisUnavailable, NoPattern
from glassformer.labelled import Coordinate
from glassformer.models import Block, EncoderDecoder, Stack
from glassformer.models.norms import Norm
from glassformer.weights import head_label

# vectors held at once while a unit is split: about 64 MiB in float32
NUMBERS_AT_ONCE = 1 << 24


@dataclasses.dataclass(frozen=True, eq=False)
class Moves:
    """What one attention sub-layer adds to the stream, by head and key.

    Args:
        part: The layer.
        labels: Names of its heads.
        pattern: As the mechanism made it.
        weight: What multiplies `vectors`: the pattern over the scales of the norms behind it.
        value: Mixed with `weight`; gains of a norm on mixed values included.
        gate: What mixed values are multiplied by at each query, or None.
        output: From mixed values to the stream, norms behind the sub-layer included up to their scale.
    """

    part: AttentionLayer
    labels: list[str]
    pattern: Float[Tensor, "head query key"]
    weight: Float[Tensor, "head query key"]
    value: Float[Tensor, "head key d_value"]
    gate: Float[Tensor, "head query d_value"] | None
    output: Float[Tensor, "head d_value d_model"]

    @property
    def crosses(self) -> bool:
        """Whether the keys are those of the encoder."""
        return self.part.config.cross

    def summed(self, queries: slice | Tensor) -> Float[Tensor, "query key d_model"]:
        """Return what some queries get from each key, all heads together."""
        weight = self.weight[:, queries]
        if self.gate is None:
            return torch.einsum("hqk,hkd->qkd", weight, self.value @ self.output)
        mixed = torch.einsum("hqk,hke,hqe->qkhe", weight, self.value, self.gate[:, queries])
        return mixed.flatten(2) @ self.output.flatten(0, 1)

    def per_head(self, queries: slice | Tensor) -> Float[Tensor, "query head key d_model"]:
        """Return what some queries get from each key by each head."""
        weight = self.weight[:, queries].transpose(0, 1)
        if self.gate is None:
            return weight[..., None] * (self.value @ self.output)
        mixed = weight[..., None] * self.value * self.gate[:, queries].transpose(0, 1)[:, :, None]
        return mixed @ self.output

    def total(self) -> Float[Tensor, "query d_model"]:
        """Return the sum over heads and keys."""
        z = self.weight @ self.value
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


def flow_sites(model: Any, stack: str | None = None) -> list[str]:
    """Return the sites that the analyses of token flow read, to be passed as `read=`.

    Args:
        model: One of ours.
        stack: `encoder` for a model that has two, to read no more than that; else all that leads to the logits.
    """
    found: list[str] = []
    for name in _names(model, stack):
        for block in _blocks(model, name):
            found += block.at_resid
            for part_name in block.names:
                part, after = block.part(part_name), block.norm_after(part_name)
                found += [after.at_scale] if after is not None and not after.identity else []
                if not isinstance(part, AttentionLayer):
                    found.append(_out(block, part_name))
                elif part.traits.linear_in_value in ("exact", "scaled"):
                    found += [part.at.pattern, part.at.value]
                    found += [] if part.merge.linear else [part.at.z_scale]
                    found += [] if part.merge.gate is None else [_read_by(block, part_name)]
    return list(dict.fromkeys(found))


def units(run: Run, analysis: str, *, row: int = 0, stack: str | None = None) -> Iterator[Unit]:
    """Yield the steps of one stack in order, for one row without its padding.

    Args:
        run: A forward pass that read `flow_sites(model)`.
        analysis: Named in errors.
        row: Row of the batch.
        stack: `encoder` or `decoder` of a model that has two; the decoder by default.

    Raises:
        SiteNotRead: The run lacks a site.
        NoPattern: A mechanism has no pattern that multiplies values.
    """
    name = _own(run.model, stack)
    require_patterns(run.model, analysis, name)
    run.require(flow_sites(run.model, name), analysis)
    length, source = len(token_row(run, name, row)), len(run.source_rows[row]) if run.source_rows else 0
    row_of = _Row(run, row, length, source)
    for block in _blocks(run.model, name):
        groups = [block.names] if block.wiring == "parallel" else [[part] for part in block.names]
        for i, group in enumerate(groups):
            yield _unit(row_of, name, block, group, block.at_resid[i], block.at_resid[i + 1])


def require_patterns(model: Any, analysis: str, stack: str | None = None) -> None:
    """Raise `NoPattern` unless all that mixes positions is attention with a pattern that multiplies values."""
    for block in _blocks(model, _own(model, stack)):
        for name in block.names:
            part = block.part(name)
            if not isinstance(part, AttentionLayer) and not part.by_position:
                raise NoPattern(
                    f'{analysis}: layer {block.layer} has a sub-layer "{name}", which mixes positions without a '
                    "pattern.\n    Gradients need none: analysis.input_gradients(model, text)."
                )
            if isinstance(part, AttentionLayer) and not part.projection.values_by_position:
                raise NoPattern(
                    f"{analysis}: layer {block.layer} mixes values with those just before them "
                    f"({part.config.projection.kind}), so its pattern does not say where they come from.\n"
                    "    Gradients need none: analysis.input_gradients(model, text)."
                )
            if isinstance(part, AttentionLayer) and part.traits.linear_in_value not in ("exact", "scaled"):
                raise NoPattern(
                    f'{analysis}: layer {block.layer} uses "{part.config.mixer.kind}" '
                    f'(linear_in_value="{part.traits.linear_in_value}"), which has no pattern that multiplies values.\n'
                    "    Gradients need none: analysis.attribution.input_gradients(model, text)."
                )


def require_rows(model: Any, analysis: str, advice: str, stack: str | None = None) -> None:
    """Raise `AnalysisUnavailable` unless rows of every pattern are non-negative and sum to one."""
    for block in _blocks(model, _own(model, stack)):
        for name in block.names:
            part = block.part(name)
            if isinstance(part, AttentionLayer) and not part.traits.rows_sum_to_one:
                raise AnalysisUnavailable(
                    f'{analysis}: layer {block.layer} uses "{part.config.mixer.described}" (rows_sum_to_one=False), '
                    f"whose weights are no shares.\n    {advice}"
                )


def token_row(run: Run, stack: str, row: int) -> list[str]:
    """Return the tokens of a stack's positions."""
    return list((run.source_rows if stack == "encoder" else run.token_rows)[row])


def position_labels(tokens: list[str], before: str = "") -> list[Coordinate]:
    """Return what positions are called in results: index and token."""
    return [f"{before}{i}:{token}" for i, token in enumerate(tokens)]


def has_source(model: Any, stack: str | None) -> bool:
    """Whether a stack's cross-attention brings in positions of an encoder."""
    return isinstance(model, EncoderDecoder) and stack != "encoder"


@dataclasses.dataclass(frozen=True, eq=False)
class _Row:
    """Sites of one row, cut to its real tokens."""

    run: Run
    row: int
    length: int
    source: int

    def __call__(self, site: str) -> Tensor:
        return self.run[site].values[self.row].detach()

    def at_positions(self, site: str) -> Tensor:
        """Return a site whose positions come first."""
        return self(site)[: self.length]

    def frozen(self, norm: Norm | None) -> FrozenNorm:
        scaled = norm is not None and not norm.identity
        return FrozenNorm(norm, self.at_positions(norm.at_scale) if scaled else None)  # type: ignore[union-attr]


def _unit(row: _Row, stack: str, block: Block, names: list[str], before: str, behind: str) -> Unit:
    kept, result = row.at_positions(before), row.at_positions(behind)
    moves, writes, bias = list[Moves](), list[tuple[str, Tensor]](), torch.zeros_like(kept)
    for name in names:
        part, after = block.part(name), row.frozen(block.norm_after(name))
        if block.wiring == "post":
            kept = _passed(after, kept)
        if isinstance(part, AttentionLayer):
            moves.append(_moves(row, stack, block, name, part, after))
            own = part.merge.output.bias
            bias = bias if own is None else bias + _passed(after, own.detach().expand_as(kept))
        if after.bias is not None and (block.wiring == "post" or isinstance(part, AttentionLayer)):
            bias = bias + after.bias.detach()
        if isinstance(part, AttentionLayer):
            continue
        written = row.at_positions(_out(block, name))
        writes.append((_label(stack, block, name), _passed(after, written) if block.wiring == "post" else written))
    mixing = [name for name in names if isinstance(block.part(name), AttentionLayer)]
    label = _label(stack, block, mixing[0] if mixing else names[0])
    return Unit(label, kept, tuple(moves), tuple(writes), bias, result)


def _passed(norm: FrozenNorm, x: Float[Tensor, "query d_model"]) -> Float[Tensor, "query d_model"]:
    """Return an addend of the stream behind a norm, its scale as in the run."""
    return x if norm.norm is None or norm.scale is None else norm.norm.linear(x, norm.scale).detach()


def _moves(row: _Row, stack: str, block: Block, name: str, part: AttentionLayer, after: FrozenNorm) -> Moves:
    n, keys = row.length, row.source if part.config.cross else row.length
    pattern = row(part.at.pattern)[:, :n, :keys]
    value = per_query_head(row(part.at.value)[:, :keys], pattern)
    weight, output, gate = pattern, part.merge.matrix().detach(), None
    if not part.merge.linear:
        weight = weight / row(part.at.z_scale)[:, :n, None]
    if after.norm is not None and not after.norm.identity:
        assert after.scale is not None, "a norm with a gain has a scale"
        weight = weight / after.scale[:, None]
        output = after.norm.linear(output, output.new_ones(output.shape[:-1])).detach()
    if not part.merge.linear or part.merge.gate is not None:
        # gain and gate: what merging makes of ones that need no scaling
        ones = value.new_ones(1, *pattern.shape[:2], part.dims.d_value)
        x = ones if part.merge.gate is None else row.at_positions(_read_by(block, name))[None]
        flat = part.merge.prepare(ones, x, None if part.merge.linear else ones[..., 0]).detach()
        factor = flat[0].unflatten(-1, (ones.shape[1], -1)).transpose(0, 1)
        if part.merge.gate is None:
            value = value * factor[:, :1]
        else:
            gate = factor
    labels = [head_label(stack, name, block.layer, h) for h in range(part.dims.n_heads)]
    return Moves(part, labels, pattern, weight, value, gate, output)


def _names(model: Any, stack: str | None) -> list[str]:
    own = _own(model, stack)
    return ["encoder", own] if has_source(model, stack) and stack is None else [own]


def _own(model: Any, stack: str | None) -> str:
    decoder_side(model)
    if not isinstance(model, EncoderDecoder):
        return ""
    return stack or "decoder"


def _blocks(model: Any, name: str) -> list[Block]:
    found: Stack = model.stacks[name]
    return [block for block in found.blocks if isinstance(block, Block)]


def _label(stack: str, block: Block, name: str) -> str:
    prefix = "enc " if stack == "encoder" else ""
    return f"{prefix}L{block.layer}" + ("" if name == "attn" else f" {name}")


def _out(block: Block, name: str) -> str:
    """Return the site of what a sub-layer adds: behind its norm in a sandwich block."""
    after = block.norm_after(name)
    return f"{block.path}.{name}.out" if after is None or block.wiring != "sandwich" else after.at_out


def _read_by(block: Block, name: str) -> str:
    return block.at_resid[block.names.index(name)] if block.wiring == "post" else block.norm(name).at_out
