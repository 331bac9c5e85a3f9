"""The lens at every place: its end is the model, one position is a case of it, and nothing large is kept."""

import math
from typing import Any

import pytest
import torch

from glassformer.analysis import run
from glassformer.analysis.cards import card_of
from glassformer.analysis.lens import lens_grid, logit_lens
from glassformer.analysis.lens._grid import MEASURES
from glassformer.errors import ShapeMismatch, SiteNotRead, UnknownSite
from glassformer.handmade import induction_model, repeated
from glassformer.models import DecoderConfig, Learned
from glassformer.models.embedding import Unembedding
from glassformer.testing import close
from glassformer.testing.layers import randomise
from glassformer.testing.models import ARCHITECTURES, Subject, subject

every = pytest.mark.parametrize("name", ARCHITECTURES)


def passed(found: Subject, *more: str) -> Any:
    return run(found.model, found.inputs[0], *found.inputs[1:], read=[lens_grid, *more])


@every
def test_the_last_site_is_the_models_output(name: str) -> None:
    done = passed(subject(name))
    found = lens_grid(done, answer=3, k=11)
    log_probs = done.logits.log_softmax(-1)
    assert found.top is not None and found.top_probability is not None and found.probability is not None
    assert found.kl_bits is not None and found.rank is not None and found.entropy_bits is not None
    close(found.probability.values[-1], log_probs[..., 3].exp())
    assert torch.equal(found.top.values[-1, ..., 0], done.logits.argmax(-1))
    close(found.top_probability.values[-1], log_probs.exp().sort(-1, descending=True).values)
    close(found.entropy_bits.values[-1], -(log_probs.exp() * log_probs).sum(-1) / math.log(2))
    close(found.rank.values[-1].double(), ((done.logits > done.logits[..., 3:4]).sum(-1) + 1).double())
    assert (found.kl_bits.values[-1] == 0).all()
    assert (found.kl_bits.values >= 0).all()


@every
def test_the_lens_of_one_position_is_a_column_of_the_grid(name: str) -> None:
    found = subject(name)
    done = passed(found, *card_of(logit_lens).reads(found.model))
    sites = [found.model.stacks[list(found.model.stacks)[-1]].blocks[0].at_resid[0]]
    sites += [block.at_resid[-1] for block in list(found.model.stacks.values())[-1].blocks]
    grid, single = lens_grid(done, answer=3, sites=sites), logit_lens(done, answer=3, row=1, position=4)
    for field in ("probability", "entropy_bits", "kl_bits"):
        close(getattr(grid, field).values[:, 1, 4], getattr(single, field).values)
    assert grid.rank is not None and torch.equal(grid.rank.values[:, 1, 4], single.rank.values)


def test_any_budget_gives_the_same_and_small_ones_hold_little(monkeypatch: pytest.MonkeyPatch) -> None:
    done = passed(subject("gpt2"))
    whole = lens_grid(done)
    sizes: list[int] = []
    original = Unembedding.logits
    monkeypatch.setattr(Unembedding, "logits", lambda self, x: sizes.append(x[..., 0].numel()) or original(self, x))
    small = lens_grid(done, budget=3 * 6 * 11 * 8)
    assert max(sizes) == 3
    for field in ("top", "top_probability", "probability", "rank", "entropy_bits", "kl_bits", "first", "settled"):
        close(getattr(small, field).values.double(), getattr(whole, field).values.double())


def test_what_is_not_asked_for_is_not_there() -> None:
    done = passed(subject("llama"))
    whole = lens_grid(done)
    fields = {"top": "top", "answer": "probability", "entropy": "entropy_bits", "kl": "kl_bits"}
    for measure in MEASURES:
        found = lens_grid(done, measures=[measure])
        for other, field in fields.items():
            if other == measure:
                close(getattr(found, field).values.double(), getattr(whole, field).values.double())
            else:
                assert getattr(found, field) is None
        assert torch.equal(found.first.values, whole.first.values)


def test_where_the_last_likeliest_token_first_leads_and_from_where_it_stays() -> None:
    # a stream whose likeliest token goes 2, 1, 2, 1, 1 through depth
    done = passed(subject("gpt2"))
    model = done.model
    winners = [2, 1, 2, 1, 1]
    with torch.no_grad():
        model.stack.final.weight.fill_(1.0)
        model.stack.final.bias.zero_()
    for site, winner in zip(card_of(lens_grid).reads(model), winners):
        done[site].values.copy_(model.unembed.weight[winner].detach() - model.unembed.weight.detach().mean(0))
    found = lens_grid(done)
    assert found.top is not None
    ends = [int(i) for i in found.top.values[:, 0, 0, 0]]
    expected_first = ends.index(ends[-1])
    expected_settled = max((i + 1 for i, end in enumerate(ends) if end != ends[-1]), default=0)
    assert ends.count(ends[-1]) < len(ends)
    assert int(found.first.values[0, 0]) == expected_first
    assert int(found.settled.values[0, 0]) == expected_settled
    assert expected_first != expected_settled


def test_the_induction_model_knows_nothing_before_its_last_layer() -> None:
    model, ids = induction_model(), repeated()
    done = run(model, ids[:, :-1], read=[lens_grid])
    found = lens_grid(done, answer=ids[:, 1:])
    assert found.entropy_bits is not None and found.probability is not None
    second = slice(ids.shape[1] // 2 + 1, None)
    close(found.entropy_bits.values[:-1], torch.full_like(found.entropy_bits.values[:-1], math.log2(21)))
    close(found.probability.values[-1, :, second], torch.ones_like(found.probability.values[-1, :, second]))


def test_a_model_without_layers_is_read_at_its_embedding() -> None:
    config = DecoderConfig(7, 6, (), positions=Learned(), max_len=4)
    model = randomise(config.build().double())
    done = run(model, [1, 2], read=[lens_grid])
    found = lens_grid(done, answer=3)
    assert found.probability is not None and done.logits is not None
    close(found.probability.values[0], done.logits.softmax(-1)[..., 3])


def test_positions_are_chosen_and_named() -> None:
    model = induction_model(vocab=6, max_len=12)
    done = run(model, "t1 t2 t3", read=[lens_grid])
    found = lens_grid(done, answer="t2", positions=[0, -1])
    assert found.probability is not None
    assert found.probability.labels("pos") == ["0:<bos>", "3:t3"]
    close(found.probability.values, lens_grid(done, answer="t2").probability.values[:, :, [0, -1]])  # type: ignore[union-attr]


def test_half_precision_is_read_in_single() -> None:
    found = subject("gpt2", dtype=torch.bfloat16)
    done = passed(found)
    grid = lens_grid(done, answer=3)
    assert grid.probability is not None and grid.probability.values.dtype == torch.float32
    close(grid.probability.values[-1], done.logits.float().softmax(-1)[..., 3])


def test_what_cannot_be_read_is_refused_with_what_can() -> None:
    found = subject("gpt2")
    done = passed(found)
    with pytest.raises(UnknownSite, match=r'"blocks.0.attn.z" is no place of the stream'):
        lens_grid(done, sites=["blocks.0.attn.z"])
    with pytest.raises(SiteNotRead, match=r"lens_grid needs sites"):
        lens_grid(run(found.model, [1, 2]))
    with pytest.raises(ShapeMismatch, match="answers have shape"):
        lens_grid(done, answer=torch.tensor([1, 2, 3]))
