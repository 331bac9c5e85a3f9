"""One token more: what the layer of a head keeps of the text before it, and what is computed for it, counted."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from glassformer.analysis.heads import roles
from glassformer.analysis.places import text_positions
from glassformer.attention import AttentionLayer
from glassformer.errors import AnalysisUnavailable
from glassformer.labelled import Labelled
from glassformer.models import State, SubLayer
from glassformer.models.added_token import AddedToken, Kept, added_token, kept_tensors, step_flops
from glassformer.models.stack import tensors
from glassformer.serve import api
from glassformer.serve.answers import Answer
from glassformer.serve.looking import Looking
from glassformer.serve.programs import program
from glassformer.serve.runs import ServedRun

_IMPORTS = (
    "import torch",
    "from glassformer.models.added_token import added_token, kept_tensors, step_flops",
    "from glassformer.models.stack import tensors",
)
_CHANGED = "the run is changed, and states are read without its changes: they have the same sizes, and other numbers."


@dataclass
class _Found:
    """Arrays as they are found, with the code of each, and why some are left out."""

    arrays: dict[str, Labelled] = field(default_factory=dict)
    code: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, value: Labelled, code: str) -> None:
        self.arrays[name], self.code[name] = value, code


def carried(run: ServedRun, head: str, index: int, view: api.View) -> Answer:
    """Return what the layer of a head keeps of the tokens up to a position, and what the last of them takes."""
    looking, model, found = Looking(run, head), run.model, _Found()
    layer, path = model.sub_layer(looking.site.path), looking.site.path
    if layer.stack == "encoder":
        raise AnalysisUnavailable(
            f"what {head} keeps when a token is added: an encoder reads a text whole, and carries nothing.\n    "
            "Ask a head of the decoder."
        )
    (position,) = text_positions([index], run.inputs.output.counts[0])
    reads = _pattern(looking, position, found) or [f"{head}.z"]
    ids, source = run.inputs.require_ids("what is kept when a token is added"), run.inputs.source_ids
    dtype, n_source = next(model.parameters()).dtype, 0 if source is None else source.shape[1]
    size = sum(part.state_bytes(position + 1, n_source, dtype) for part in model.output_stack.parts())
    run.served.limits.require("memory", 2 * size, "bytes of the states around a token")
    states = added_token(model, ids, position, source)
    before, after = (_kept(state, layer) for state in states[:2])
    _bytes(before, after, states, found)
    _numbers(after, looking, found)
    _operations(looking.part, f"run.model.sub_layer({path!r}).attention", position + 1, source, found)
    facts = {
        "head": head, "position": position, "path": path, "mechanism": looking.part.config.mixer.kind,
        "stores_keys": looking.part.projection.stores_keys or looking.part.config.mixer.stores_keys,
        "reread": states.reread, "shapes": [{name: list(one.values.shape) for name, one in kept.items()}
        for kept in (before, after)], "left_out": found.left_out,
    }  # fmt: skip
    lines = [
        *program(("run", run.code, [repr(name) for name in reads]), imports=_IMPORTS),
        f"states = added_token(run.model, run.ids, {position}{'' if source is None else ', run.source_ids'})",
        f"before, after = (kept_tensors(one.layers[{layer.layer}][{layer.place}]) for one in states[:2])",
    ]
    body = [f"    {name!r}: {expression}," for name, expression in found.code.items()]
    return Answer("added-token", found.arrays, facts, "\n".join([*lines, "found = {", *body, "}"]))


def _kept(state: State, layer: SubLayer) -> dict[str, Kept]:
    return kept_tensors(state.layers[layer.layer][layer.place])


def _pattern(looking: Looking, position: int, found: _Found) -> list[str]:
    """Add the pattern up to a position, whose last row is the new one; return what it is read from."""
    axes = ("query",) if looking.part.config.cross else ("query", "key")
    try:
        value = looking.stage("weights", **dict.fromkeys(axes, slice(0, position + 1)))
    except AnalysisUnavailable as error:
        found.left_out["weights"] = str(error)
        return []
    said = ", ".join(f"{axis}=slice(0, {position + 1})" for axis in axes)
    found.add("weights", value, f"{looking.code('weights')}.select({said})")
    return looking.sites("weights")


def _bytes(before: dict[str, Kept], after: dict[str, Kept], states: AddedToken, found: _Found) -> None:
    """Add the bytes of each tensor of the layer's state, before and after, and those of all layers together."""
    when = {"when": ["before", "after"]}
    if after:
        sizes = [[one[name].values.nbytes if name in one else 0 for name in after] for one in (before, after)]
        each = "[one[name].values.nbytes if name in one else 0 for name in after] for one in (before, after)"
        value = Labelled(torch.tensor(sizes), ("when", "tensor"), when | {"tensor": list(after)})
        found.add("bytes", value, f"gf.Labelled(torch.tensor([{each}]), ('when', 'tensor'))")
    whole = [sum(one.nbytes for one in tensors(state.layers)) for state in states[:2]]
    each = "sum(one.nbytes for one in tensors(state.layers)) for state in states[:2]"
    found.add(
        "all_bytes", Labelled(torch.tensor(whole), ("when",), when), f"gf.Labelled(torch.tensor([{each}]), ('when',))"
    )


def _numbers(after: dict[str, Kept], looking: Looking, found: _Found) -> None:
    """Add the numbers that the state holds of the head, or of all heads where it does not tell them apart."""
    if looking.run.spec.changes:
        found.left_out["state"] = _CHANGED
        return
    head = next(one.head for one in roles.heads(looking.run.model) if one.label == looking.of)
    dims = looking.part.dims
    places = {"batch": 0, "head": head, "kv_head": head // (dims.n_heads // dims.n_kv_heads)}
    for name, (axes, values) in after.items():
        axes = ("batch", *axes[1:])
        where = tuple(places.get(axis, slice(None)) for axis in axes)
        left = tuple(axis for axis in axes if axis not in places)
        if left and values.numel():
            said = ", ".join(":" if isinstance(one, slice) else str(one) for one in where)
            found.add(name, Labelled(values[where], left), f"gf.Labelled(after[{name!r}].values[{said}], {left})")


def _operations(layer: AttentionLayer, path: str, length: int, source: Tensor | None, found: _Found) -> None:
    """Add the operations of the layer for the new position over the state, and for all positions without one."""
    other = 0 if source is None else source.shape[1]
    try:
        one = step_flops(layer, length, other)
    except AnalysisUnavailable as error:
        found.left_out["operations"] = str(error)
        return
    ways = {"with the state": one, "without it": layer.flops(length, other, True)}
    parts = [part for part in ways["without it"] if any(way.get(part, 0) for way in ways.values())]
    value = torch.tensor([[way.get(part, 0) for part in parts] for way in ways.values()])
    called = f"step_flops({path}, {length}, {other}), {path}.flops({length}, {other}, True)"
    code = f"[[way.get(part, 0) for part in {parts}] for way in ({called})]"
    coords = {"way": list(ways), "part": parts}
    found.add(
        "operations", Labelled(value, ("way", "part"), coords), f"gf.Labelled(torch.tensor({code}), ('way', 'part'))"
    )
