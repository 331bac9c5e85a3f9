"""Neurons and singular directions on the terminal, as lists of tokens."""

import torch
from rich.console import RenderableType

from glassformer.analysis.vocabulary import ActivatingTexts, NeuronTokens, SingularTokens
from glassformer.render.terminal.tables import section, table, tables, visible
from glassformer.words import spoken, spoken_each

N_NEURONS, N_TOKENS, N_DIRECTIONS, N_PLACES = 12, 2, 2, 2


@tables.register
def _(result: NeuronTokens) -> RenderableType:
    kurtosis = result.measures.select(measure="kurtosis")
    columns = spoken_each("neuron", "kurtosis", "null share", "promotes", "suppresses", "excited by")
    grid = table(*columns, left=(0, 3, 4, 5))
    sharpest = kurtosis.values.nan_to_num(-torch.inf).flatten().topk(min(N_NEURONS, kurtosis.values.numel()))
    for place in sharpest.indices.tolist():
        i, n = divmod(place, kurtosis.size("neuron"))
        mlp = str(result.measures.labels("mlp")[i])
        share = float(result.measures.select(mlp=mlp, measure="null share").values[n])
        said = result.table(mlp, n, N_TOKENS)
        tokens = (_listed(said[side]) for side in ("promoted", "suppressed", "sought"))
        grid.add_row(f"{mlp} {n}", f"{float(kurtosis.values[i, n]):.2f}", f"{share:.0%}", *tokens)
    return section(spoken("Neurons by how sharply they tell tokens apart, of {n:,}", n=kurtosis.values.numel()), grid)


@tables.register
def _(result: SingularTokens) -> RenderableType:
    grid = table(*spoken_each("matrix", "energy", "gap", "writes", "and against it", "reads"), left=(0, 3, 4, 5))
    for i, label in enumerate(result.energy.labels("matrix")):
        for d in range(min(N_DIRECTIONS, result.energy.size("direction"))):
            said = result.table(str(label), d, N_TOKENS)
            tokens = (_listed(said[side]) for side in ("written", "unwritten", "read"))
            energy, gap = (float(field.values[i, d]) for field in (result.energy, result.gap))
            grid.add_row(f"{label} {d}", f"{energy:.0%}", f"{gap:.0%}", *tokens)
    return section(spoken("First singular directions of {of}, as tokens", of=result.of), grid)


@tables.register
def _(result: ActivatingTexts) -> RenderableType:
    grid = table(*spoken_each("neuron", "activation", "text", "up to the token"), left=(0, 3))
    for i, neuron in enumerate(result.activations.labels("neuron")[:N_NEURONS]):
        for rank, said in enumerate(result.contexts[str(neuron)][:N_PLACES]):
            value, text = float(result.activations.values[i, rank]), int(result.texts.values[i, rank])
            grid.add_row(str(neuron), f"{value:.3g}", str(text), visible(said, 60))
    title = spoken("Where neurons of {mlp} are most active, of {n:,} positions", mlp=result.label, n=result.n_positions)
    return section(title, grid)


def _listed(tokens: list[str]) -> str:
    """Return tokens without the ids in front of them."""
    return "  ".join(visible(token.partition(":")[2], 8) for token in tokens)
