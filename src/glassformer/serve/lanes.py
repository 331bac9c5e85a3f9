"""The stream as lanes, one for each position: how far each write moves it; and what heads mix there, token by token."""

import torch

from glassformer.analysis.heads import roles
from glassformer.analysis.places import text_positions
from glassformer.errors import AnalysisUnavailable
from glassformer.labelled import Labelled
from glassformer.serve import api
from glassformer.serve.answers import Answer
from glassformer.serve.looking import Looking
from glassformer.serve.runs import ServedRun


def lanes(run: ServedRun, view: api.View) -> Answer:
    """Return the size of every write beside the stream that it is added to, itself included, and of that stream."""
    layers = run.model.sub_layers()
    if not layers:
        raise AnalysisUnavailable(
            "the stream as lanes: this model has no blocks, so that nothing writes to its stream."
        )
    sites = {layer.label: (layer.at_write, layer.at_sum or layer.at_behind) for layer in layers}
    reads = list(dict.fromkeys(site for pair in sites.values() for site in pair))
    found = run.read(reads)

    def sizes(site: str) -> torch.Tensor:
        return found[site].values[0].norm(dim=-1)

    coords = {"write": list(sites), "pos": found[reads[0]].labels("pos")}
    streams = torch.stack([sizes(stream) for _, stream in sites.values()])
    writes = torch.stack([sizes(write) for write, _ in sites.values()])
    arrays = {
        "share": Labelled(writes / streams, ("write", "pos"), coords),
        "stream": Labelled(streams, ("write", "pos"), coords),
    }
    facts = {
        "layers": {layer.label: layer.layer for layer in layers},
        "paths": {layer.label: layer.part.path for layer in layers if layer.attention is not None},
    }
    lines = [
        *run.code.lines("run", [repr(site) for site in reads]),
        f"sites = {list(sites.values())}",
        "writes, streams = (torch.stack([run[pair[i]].values[0].norm(dim=-1) for pair in sites]) for i in (0, 1))",
        "found = {",
        "    'share': gf.Labelled(writes / streams, ('write', 'pos')),",
        "    'stream': gf.Labelled(streams, ('write', 'pos')),",
        "}",
    ]
    return Answer("lanes", arrays, facts, "\n".join(["import torch", *lines]))


def mixtures(run: ServedRun, view: api.MixtureView) -> Answer:
    """Return the weights with which each head of a layer mixes the values of tokens at one position, and their sums."""
    (position,) = text_positions([view.position], run.inputs.output.counts[0])
    heads = [head for head in roles.heads(run.model) if head.path.startswith(run.model.prefix)]
    if not heads:
        raise AnalysisUnavailable("mixtures of tokens: this model has no attention, whose heads mix them.")
    paths = list(dict.fromkeys(head.path for head in heads))
    # the last layer that has one, unless another is asked for
    path = view.path or next((head.path for head in reversed(heads) if head.reading is not None), paths[-1])
    looking = Looking(run, path)
    weights = looking.stage("weights", query=[position]).select(query=0)
    sums = Labelled(weights.values.nansum(-1), weights.axes[:-1], {"head": weights.labels("head")})
    traits = looking.part.mixer.traits
    facts = {
        "position": position, "path": path, "paths": paths, "crosses": looking.part.config.cross,
        "mechanism": looking.part.config.mixer.kind,
        "rows": "mass" if traits.rows_sum_to_one else "sink" if traits.rows_lack_mass else "signed",
    }  # fmt: skip
    lines = [
        *run.code.lines("run", [repr(site) for site in looking.sites("weights")]),
        f"weights = {looking.code('weights')}.select(query={position})",
        "found = {",
        "    'weights': weights,",
        "    'sums': gf.Labelled(weights.values.sum(-1), weights.axes[:-1]),",
        "}",
    ]
    return Answer("mixtures", {"weights": weights, "sums": sums}, facts, "\n".join(lines))
