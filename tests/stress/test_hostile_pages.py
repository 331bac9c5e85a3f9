"""Pages of models whose tokens and names are hostile: nothing in them runs, becomes markup or is fetched."""

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from glassformer import analysis
from glassformer.analysis.reports import circuits, explain
from glassformer.attention import Rope
from glassformer.data.batch import next_token_batch
from glassformer.data.tokenizer import symbol_tokenizer
from glassformer.models import Decoder, DecoderConfig, Mlp, block, repeat
from pages import NASTY, Opener, open_everything
from trials import Trials

FRAGMENTS = [
    *NASTY, "<script>window.ran=1</script>", "<svg onload=window.ran=1>", "javascript:window.ran=1", "]]>",
    "${window.ran=1}", '" onmouseover="window.ran=1', "<style>*{display:none}</style>", "\0", "\x1b[31m", "\u2066",
    "<base href=//elsewhere.example>", "<iframe srcdoc='<script>parent.ran=1</script>'>", "\\u003c", "a\u0301" * 40,
    "url(//elsewhere.example/a.png)", "__proto__", "constructor", "toString", "-1", "0", "null", "𝕏" * 30,
]  # fmt: skip


def hostile(seed: int) -> Decoder:
    """Return a tiny model with random weights, whose every token and whose name is hostile."""
    draw = random.Random(seed)
    words = {"".join(draw.sample(FRAGMENTS, draw.randint(1, 3))) for _ in range(40)}
    tokenizer = symbol_tokenizer(sorted(words - {""}), specials=("<bos>", FRAGMENTS[9]))
    layer = block(n_heads=2, positions=Rope(), mlp=Mlp(8))
    model = DecoderConfig(tokenizer.vocab_size, 16, repeat(layer, 2), max_len=32, tied=False).build(seed)
    model.tokenizer, model.name = tokenizer, draw.choice(FRAGMENTS)
    return model.eval()


def opens(opened: Opener, *what: Any) -> None:
    """Open a page with everything on it unfolded, and check that it is all there and nothing has run."""
    shown = opened(*what)
    open_everything(shown)
    assert shown.evaluate("window.ran") is None
    assert shown.locator("img, iframe, base, object, embed").count() == 0
    assert shown.locator("main section, main .card").count() > 0


def explained(model: Decoder, ids: Tensor, seed: int) -> tuple[Any, ...]:
    return (explain(model, ids[:1].tolist()).to_dict(),)


def results(model: Decoder, ids: Tensor, seed: int) -> tuple[Any, ...]:
    run = analysis.run(model, ids[:1], read="*")
    found = [analysis.lens.lens_grid(run), analysis.attribution.direct_logit_attribution(run)]
    return found, {"model": {"name": model.name}, "given": {FRAGMENTS[seed % 9]: FRAGMENTS[-seed % 9]}}


def reported(model: Decoder, ids: Tensor, seed: int) -> tuple[Any, ...]:
    return (circuits(model, next_token_batch(ids), k=3).to_dict(),)


PAGES = (explained, results, reported)


@pytest.mark.full
@pytest.mark.browser
def test_nothing_hostile_in_a_page_runs_or_is_fetched(opened: Opener, trials: Trials) -> None:
    # one kind of page a trial, since a browser takes a second for each
    for seed in trials(quick=1, sweep=12):
        model = hostile(seed)
        ids = torch.randint(0, model.config.vocab_size, (2, 9), generator=torch.Generator().manual_seed(seed))
        shown = PAGES[seed % len(PAGES)]
        opens(opened, *shown(model, ids, seed))
        trials.count(f"{shown.__name__}: nothing ran")
