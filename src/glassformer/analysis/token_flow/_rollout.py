"""Attention rollout: attention weights multiplied up, as if a layer were half skip and half attention.

    layer = (mean over heads of A) / 2 + I / 2

It sees no values, no MLPs and no true proportion of stream to attention: a baseline for `alti`.

Source: Abnar and Zuidema 2020, "Quantifying Attention Flow in Transformers", section 3.
"""

from typing import Any, Literal

import torch
from torch import Tensor

from glassformer.analysis.question import question
from glassformer.analysis.token_flow._mixing import Moves, Unit, flow_sites, has_source, require_rows
from glassformer.analysis.token_flow._rolling import TokenFlow, Weighed, roll
from glassformer.errors import AnalysisUnavailable


@question(
    "Which tokens does attention lead to, multiplied up?",
    reads=flow_sites,
    traits=("linear_in_value", "rows_sum_to_one"),
    holds=("patterns", "norm scales", "gates"),
)
def rollout(
    run: Any,
    text: Any = None,
    target: Any = None,
    *,
    kept: float = 0.5,
    signed: Literal["refuse", "absolute"] = "refuse",
    row: int = 0,
    stack: str | None = None,
) -> TokenFlow:
    """Multiply attention weights up, from the tokens to each layer.

    Args:
        kept: Share that a layer is taken to keep of its stream; one half in the paper.
        signed: What to do with patterns whose rows are no shares: refuse, or take absolute values over their sum, which
            is another quantity (the method then says so). Patterns of several values of a head are summed before.
        stack: `encoder` of a model that has two, to end there.

    Raises:
        SiteNotRead: The run lacks a site.
        NoPattern: A mechanism has no pattern.
        AnalysisUnavailable: Rows of a pattern do not sum to one, and `signed` is not `absolute`; or an edit left a
            query nothing to attend to.
    """
    if signed == "refuse":
        advice = 'rollout(run, signed="absolute") uses sizes instead; alti(run) takes signed patterns as they are.'
        for name in ("encoder", "decoder") if has_source(run.model, stack) else (stack,):
            require_rows(run.model, "rollout", advice, name)

    def weigh(unit: Unit) -> Weighed:
        # several attention parts side by side in one block share what attention gets
        share = (1 - kept) / len(unit.moves)
        n = unit.kept.shape[0]
        own = kept * torch.eye(n, dtype=unit.kept.dtype, device=unit.kept.device)
        source = None
        for moves in unit.moves:
            weights = share * _mean(moves)
            if moves.crosses:
                source = weights if source is None else source + weights
            else:
                own = own + weights
        return Weighed(own, source)

    method = "rollout" if signed == "refuse" else "rollout of absolute weights"
    return roll(run, method, weigh, stack=stack, norms="not used")


def _mean(moves: Moves) -> Tensor:
    """Return the mean over heads, rows summing to one: feature maps and signs leave them short of it.

    Where heads have several values, a key has what all their patterns have there.
    """
    sizes = moves.pattern.abs().sum(0)
    total = sizes.sum(-1, keepdim=True)
    if not bool((total > 0).all()):
        raise AnalysisUnavailable(
            f"rollout: the layer of {moves.labels[0]} has a query that attends to nothing, so these are no shares.\n"
            "    alti(run) takes patterns as they are."
        )
    return (sizes / total).mean(0)
