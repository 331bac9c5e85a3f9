"""Value matrices of a head: W_V down, W_O up, and their product; how many numbers each has, and how many dimensions.

out = pattern @ x @ W_V @ W_O        W_V: d_model d_value        W_O: d_value d_model        product: d_model d_model
"""

import torch
from jaxtyping import Int
from torch import Tensor

from glassformer import weights
from glassformer.errors import AnalysisUnavailable
from glassformer.labelled import Labelled
from glassformer.models.accounting import count_parameters
from glassformer.numerics.decompositions import dimensions, singular_values
from glassformer.serve import api
from glassformer.serve.answers import Answer
from glassformer.serve.frames import reduced
from glassformer.serve.programs import loading
from glassformer.serve.runs import ServedModel
from glassformer.weights import AttentionWeights, HeadWeights

_HELD = ("value", "latent", "output")  # parameters of these matrices, as `count_parameters` names them
_CODE = {
    "down": "gf.Labelled(one.V[0], ('d_model', 'd_value'))",
    "up": "gf.Labelled(one.O[0], ('d_value', 'd_model'))",
    "product": "gf.Labelled(one.ov().dense()[0], ('read', 'written'))",
}
_SINGULAR = {
    "down": "singular_values(one.V[0])",
    "up": "singular_values(one.O[0])",
    "product": "one.ov().singular_values()[0]",
}


def value_matrices(served: ServedModel, head: str, view: api.MatricesView) -> Answer:
    """Return the matrices of a head, their dimensions, and numbers of them in the head, its layer and the model."""
    w, left_out = weights.of(served.model), dict[str, str]()
    one = w[head]
    place = next(i for i, layer in enumerate(w) if head in layer.labels)
    arrays = {"down": Labelled(one.V[0], ("d_model", "d_value")), "up": Labelled(one.O[0], ("d_value", "d_model"))}
    spectra = {"down": singular_values(one.V[0]), "up": singular_values(one.O[0])}
    try:
        circuit = one.ov()
    except AnalysisUnavailable as error:
        left_out["product"] = str(error)
    else:
        served.limits.require("memory", 4 * circuit.shape[-1] * circuit.shape[-2], "bytes of the product")
        arrays["product"] = Labelled(circuit.dense()[0], ("read", "written"))
        spectra["product"] = circuit.singular_values()[0]
    found = torch.stack([dimensions(spectrum) for spectrum in spectra.values()])
    measures = ["rank", "rank of 99 % of the energy", "participation ratio"]
    numbers = torch.stack([_numbers([one]), _numbers([w[place]]), _numbers(list(w))])
    if view.size is not None:
        arrays = {
            name: Labelled(reduced(value.values, view.size, view.size), value.axes) for name, value in arrays.items()
        }
    arrays |= {
        "dimensions": Labelled(found, ("matrix", "measure"), {"matrix": list(spectra), "measure": measures}),
        "numbers": Labelled(numbers, ("of", "matrix"), {"of": ["head", "layer", "model"], "matrix": list(_CODE)}),
    }
    return Answer("value-matrices", arrays, _facts(served, w, one, head) | {"left_out": left_out}, _python(
        served.source, head, place, list(spectra)
    ))  # fmt: skip


def _numbers(layers: list[AttentionWeights]) -> Int[Tensor, " matrix"]:
    """Return how many numbers matrices down and up have, keys' heads once, and products of all query heads."""
    down, up = (sum(getattr(layer, name).numel() for layer in layers) for name in "VO")
    return torch.tensor([down, up, sum(len(layer.Q) * layer.O.shape[-1] ** 2 for layer in layers)])


def _facts(served: ServedModel, w: HeadWeights, one: AttentionWeights, head: str) -> dict[str, object]:
    held = served.remembered("parameters", lambda: count_parameters(served.model.config))
    dims = one.module.dims
    return {
        "head": head, "heads": dims.n_heads, "kv_heads": dims.n_kv_heads, "layers": len(w),
        "shapes": {"down": list(one.V.shape[1:]), "up": list(one.O.shape[1:])},
        # norms' gains stand in the product, and in neither matrix
        "gained": one.gain is not None or one.after is not None,
        "held": {part: held[part] for part in _HELD if part in held},
    }  # fmt: skip


def _python(source: str, head: str, place: int, spectra: list[str]) -> str:
    each = "[sum(x.V.numel() for x in some), sum(x.O.numel() for x in some), "
    each += "sum(len(x.Q) * x.O.shape[-1] ** 2 for x in some)]"
    lines = [
        "import torch",
        "import glassformer as gf",
        "from glassformer.numerics.decompositions import dimensions, singular_values",
        "",
        *loading(source),
        "w = gf.weights.of(model)",
        f"one = w[{head!r}]",
        f"numbers = [{each} for some in ([one], [w[{place}]], list(w))]",
        f"sizes = [dimensions(one) for one in [{', '.join(_SINGULAR[name] for name in spectra)}]]",
        "found = {",
        *(f"    {name!r}: {_CODE[name]}," for name in spectra),
        "    'dimensions': gf.Labelled(torch.stack(sizes), ('matrix', 'measure')),",
        "    'numbers': gf.Labelled(torch.tensor(numbers), ('of', 'matrix')),",
        "}",
    ]
    return "\n".join(lines)
