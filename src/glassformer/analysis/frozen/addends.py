"""Addends of the residual stream: what every component wrote to it, and what a head wrote on behalf of each key.

In post-norm stacks the stream itself passes norms; what was written is carried through them with the scales that were
recorded. On the sphere each later sub-layer also takes its share of it away. Elsewhere nothing between a write and a
place is normalised.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.analysis._run import Run
from glassformer.analysis.components import Component, bias_of, vector_sites, written_by
from glassformer.analysis.frozen.norm import FrozenNorm
from glassformer.attention import AttentionLayer
from glassformer.errors import AnalysisUnavailable, UnknownSite, nearest
from glassformer.models import Model, ModelLike, SubLayer, require_model, written_before


def residual_sites(
    model: ModelLike, stack: str | None = None, place: str | None = None, done: Run | None = None
) -> list[str]:
    """Return the sites that `writes` and its neighbours read, the stream itself included.

    Args:
        model: One of ours.
        stack: `encoder` or `decoder` of a model that has two; the decoder by default.
        place: A place in its stream: what was written before it is enough. All by default.
        done: Run that is to be taken apart: what it has of heads' writes, or edited in them, goes before what they are
            made of.
    """
    name = require_model(model).stack_name(stack)
    found, layers = vector_sites(model.embeddings[name]), model.sub_layers(name)
    for layer in layers if place is None else written_before(layers, place):
        found.append(layer.at_out if layer.attention is None else _write_site(layer.attention, done))
        found += [norm.at_scale for norm in layer.behind if not norm.identity]
        found += layer.block.at_resid
    found += [] if place is None else [place]
    return list(dict.fromkeys(found))


def _write_site(part: AttentionLayer, done: Run | None) -> str:
    """Return the site that heads' writes are taken from: mixed values where these are enough, which are smaller."""
    whole = part.at.head_out
    return whole if done is not None and (whole in done or whole in done.edited) else part.at_write


def source_sites(model: ModelLike) -> list[str]:
    """Return the sites that tell apart the tokens heads write on behalf of, as far as mechanisms have patterns."""
    names: list[str] = []
    for layer in require_model(model).sub_layers():
        part = layer.attention
        if part is not None and part.traits.has_patterns:
            names += [part.at.pattern, part.at.value, *layer.multiplier_sites]
    return names


def each_write(run: Run, site: str) -> Iterator[tuple[list[Component], Float[Tensor, "component pos d_model"]]]:
    """Yield the components of the stream at a place, one sub-layer at a time, in the order of the forward pass.

    Args:
        run: Of one prompt; otherwise as for `writes`.
        site: As for `writes`.
    """
    site, stack = place_of(run, site)
    model: Model = run.model
    embed, entry = model.embeddings[stack], "enc " if stack == "encoder" else ""
    run.require(residual_sites(model, stack, site, run), "writes")
    earlier = written_before(model.sub_layers(stack), site)

    def read(site: str) -> Tensor:
        return run[site].values[0]

    def arrived(vectors: Tensor, index: int) -> Tensor:
        for layer in earlier[index:]:
            vectors = FrozenNorm.of(layer.stream_norm, read)(layer.remainder(vectors))
        return vectors.detach()

    enter = FrozenNorm.of(embed.norm, read)
    yield [Component("token", "token")], arrived(token := enter(read(embed.at_token)[None]), 0)
    if embed.positions is not None:
        yield [Component("position", "position")], arrived(enter(read(embed.at_position)[None]), 0)
    if enter.bias is not None:
        yield [Component(f"{entry}embed norm bias", "norm_bias")], arrived(enter.bias.expand_as(token), 0)
    for i, layer in enumerate(earlier):
        components, written = _written(run, layer)
        for norm in layer.behind:
            written = FrozenNorm.of(norm, read)(written)
        yield components, arrived(written, i + 1)
        if layer.shift is not None:
            bias = layer.shift.expand(written.shape[-2:])[None]
            yield [bias_of(layer, "norm_bias")], arrived(bias, i + 1)


def _written(run: Run, layer: SubLayer) -> tuple[list[Component], Tensor]:
    found, part = written_by(layer), layer.attention
    if part is None:
        return found, run[layer.at_out].values
    source = _write_site(part, run)
    written = run[source].values[0]
    if source == part.at.z:
        written = written @ part.merge.matrix().detach()
    if part.merge.output.bias is None:
        return found, written
    bias = part.merge.output.bias.detach().expand(1, *written.shape[1:])
    return [*found, bias_of(layer, "attn_bias")], torch.cat((written, bias))


def place_of(run: Run, site: str | None) -> tuple[str, str]:
    """Return the name of a place in a residual stream, and of its stack."""
    model = require_model(run.model)
    name = stack_of(model, site)
    places = [place for block in model.stacks[name].blocks for place in block.at_resid]
    if site is None:
        if not places:
            token = model.embeddings[name].at_token
            raise AnalysisUnavailable(f'writes: a stack without blocks has no stream but "{token}".')
        site = places[-1]
    if site not in places:
        raise UnknownSite(f'writes: "{site}" is no place in a residual stream.{nearest(site, places)}')
    run.require([site], "writes")
    return site, name


def stack_of(model: Model, site: str | None) -> str:
    """Return the name of the stack that a site lies in; of the one that ends in the logits if it lies in none."""
    table = model.sites()
    found = model.output if site is None or site not in table else table[site].stack
    return found if found in model.stacks else model.output


def by_source(run: Run, layer: SubLayer, at: int, head: int) -> Float[Tensor, "key d_model"]:
    """Return what a head writes on behalf of each key in a run of one prompt; raises as `write_sources` does."""
    part = layer.attention
    assert part is not None, "heads are those of attention"
    _require_sources(run, layer)
    patterns, values = part.by_stream(run[part.at.pattern].values, run[part.at.value].values)
    moved = torch.einsum("sk,ske->ke", patterns[0, :, head, at], values[0, :, head])
    factor = layer.multiplier(lambda site: run[site].values)
    return (moved if factor is None else moved * factor[0, head, at]) @ part.merge.matrix()[head]


def _require_sources(run: Run, layer: SubLayer) -> None:
    """Raise unless a run has what it takes to tell apart the tokens that a head writes on behalf of."""
    part = layer.attention
    assert part is not None, "heads are those of attention"
    if not part.traits.has_patterns:
        linear = part.traits.linear_in_value
        raise AnalysisUnavailable(
            f'write_sources: layer {layer.layer} uses "{part.config.mixer.kind}" (linear_in_value="{linear}"), so no '
            "token has a share that one pattern gives.\n    The head as a whole is in direct_logit_attribution(run)."
        )
    run.require([part.at.pattern, part.at.value, *layer.multiplier_sites], "write_sources")
