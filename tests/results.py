"""Results of analyses as samples for their page: of tiny random models, of one set by hand, and made by hand."""

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from explanations import TEXT, gpt, translator
from glassformer import analysis
from glassformer.analysis.behaviour import ShortCircuit
from glassformer.analysis.cards import card_of
from glassformer.analysis.reports import explain
from glassformer.analysis.sweep import logit
from glassformer.handmade import induction_model, repeated
from glassformer.labelled import Labelled, Result

SAMPLES = (
    "patching", "tracing", "lens", "flow", "routes", "gradients", "direct", "context", "circuit", "pruning",
    "ablation", "memorisation", "translation",
)  # fmt: skip


# what the page says of all results of a sample
HEAD: dict[str, Any] = {
    "command": "test",
    "model": {"name": "sample", "parameters": 1000, "n_layers": 2, "n_heads": 2, "d_model": 8},
    "given": {"text": "a text"},
}


@cache
def sample(name: str) -> tuple[Result, ...]:
    """Return the results of a sample."""
    return tuple(_sample(name))


def document(name: str) -> list[dict[str, Any]]:
    """Return the results of a sample as they come back from a JSON file."""
    return json.loads(json.dumps([result.to_dict() for result in sample(name)], allow_nan=False))


def _sample(name: str) -> Sequence[Result]:
    if name in ("patching", "circuit", "pruning", "ablation"):
        return _pairs(name)
    if name == "memorisation":
        return [memorisation()]
    if name == "translation":
        done = _read(translator(), "我吃了", "I ate")
        return [
            analysis.token_flow.alti(done),
            analysis.attribution.input_gradients(done.model, "我吃了", target="I ate", steps=2),
        ]
    model, text = gpt(), TEXT[:40]
    if name == "tracing":
        return [analysis.causal.causal_trace(model, text, "area", samples=4, window=2)]
    if name == "gradients":
        return [
            analysis.attribution.input_gradients(model, text, positions="all", steps=2, layers=layers)
            for layers in (False, True)
        ]
    if name == "context":
        ids = torch.tensor([model.require_tokenizer().encode(TEXT)[:60]])
        return [
            analysis.behaviour.long_context(model, ids, sink=1, recent=4),
            analysis.behaviour.rank_of_stream(model, ids),
        ]
    done = _read(model, text)
    if name == "lens":
        return [analysis.lens.lens_grid(done)]
    if name == "routes":
        return [analysis.token_flow.information_flow_routes(done)]
    if name == "flow":
        return [analysis.token_flow.rollout(done), analysis.token_flow.value_norms(done)]
    attribute = analysis.attribution.direct_logit_attribution
    return [attribute(done, position=None, row=None), attribute(done)]


def _read(model: Any, text: str, target: str | None = None) -> analysis.Run:
    read = [
        *card_of(analysis.token_flow.rollout).reads(model),
        *card_of(explain).reads(model),
        *card_of(analysis.lens.lens_grid).reads(model),
    ]
    return analysis.run(model, text, target, read=list(dict.fromkeys(read)))


def _pairs(name: str) -> Sequence[Result]:
    model = induction_model(vocab=12, max_len=30)
    clean, corrupt = repeated(12, 2, 0, 3), repeated(12, 2, 77, 3)
    stop = 18
    metric = {"logit": logit(clean[:, stop].tolist())}
    asked = (model, (clean[:, :stop], corrupt[:, :stop]), *metric.values())
    if name == "circuit":
        return [analysis.circuits.attribute_edges(*asked), analysis.circuits.sender_effects(*asked)]
    if name == "pruning":
        return [
            analysis.circuits.acdc(*asked, threshold=0.1),
            analysis.circuits.acdc_curve(*asked, thresholds=[0.1, 1.0]),
        ]
    if name == "ablation":
        return [analysis.causal.ablation_table(model, clean[:, :stop], metric["logit"])]
    return [
        analysis.causal.patch(
            model, (clean[:, :stop], corrupt[:, :stop]), metric, sites=["resid_pre", "z"], direction=direction
        )
        for direction in ("denoising", "noising")
    ]


def memorisation() -> ShortCircuit:
    """Return curves over how often sequences were shown, as made up as any."""
    names, counts = ["none", *"0123", "last 2", "last 3"], [1, 4, 16]
    curve = Labelled(torch.rand(7, 3, generator=torch.Generator().manual_seed(0)), ("layers", "count"),
                     {"layers": names, "count": counts})  # fmt: skip
    one = curve.select(count=0)
    shown = Labelled(torch.tensor([5, 5, 5]), ("count",), {"count": counts})
    return ShortCircuit(curve, curve, curve, curve, curve, one, one, one, shown, 8, 8, 100)
