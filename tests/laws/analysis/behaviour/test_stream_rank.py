"""Do positions become alike: the ratio itself, and the four variants of every architecture."""

import functools
from typing import Any

import pytest
import torch
from hypothesis import given

from glassformer.analysis import run
from glassformer.analysis.behaviour import StreamRank, rank_of_stream, residual_ratio
from glassformer.attention.sub_layer import ByPosition
from glassformer.errors import ShapeMismatch
from glassformer.models import DecoderConfig, Mlp, NoNorm, block
from glassformer.testing import close
from glassformer.testing.layers import randomise, seeds, stream
from glassformer.testing.models import ARCHITECTURES, subject
from one_pass import in_one_pass

every = pytest.mark.parametrize("name", ARCHITECTURES)


# results are frozen: tests may share them
@functools.cache
def measured(name: str, **kwargs: Any) -> StreamRank:
    found = subject(name)
    ids, *more = found.inputs
    rows: dict[str, Any] = {"target": more[0]} if more else {}
    return rank_of_stream(found.model, ids, **rows, **kwargs)


def norm(x: torch.Tensor) -> torch.Tensor:
    return (torch.linalg.matrix_norm(x, 1) * torch.linalg.matrix_norm(x, torch.inf)).sqrt()


@pytest.mark.parametrize(("name", "stack"), [("gpt2", None), ("translator_pre", "encoder"), ("translator_pre", None)])
def test_padded_rows_count_as_they_do_alone(name: str, stack: str | None) -> None:
    model, rows = subject(name).model, [[3, 5, 7, 9, 2], [4, 4, 8]]
    targets: list[Any] = [None, None] if model.source is None else [[[1, 2, 3, 4]], [[6, 7, 8, 9]]]
    both = None if model.source is None else [*targets[0], *targets[1]]
    padded = rank_of_stream(model, rows, target=both, stack=stack, initial=None)
    alone = [rank_of_stream(model, r, target=t, stack=stack, initial=None) for r, t in zip(rows, targets)]
    for found, one, other in ((padded.ratio, alone[0].ratio, alone[1].ratio),
                              (padded.effective_rank, alone[0].effective_rank, alone[1].effective_rank)):  # fmt: skip
        close(found.values, (one.values + other.values) / 2)


@given(seeds)
def test_the_ratio_is_zero_for_equal_rows_and_that_of_the_norms_otherwise(seed: int) -> None:
    x = stream(1, 6, seed)[0]
    close(residual_ratio(x), norm(x - x.mean(0)) / norm(x))
    # a binary fraction per entry: rows are equal in every digit
    assert float(residual_ratio((x[:1] * 64).round().expand(8, -1))) == 0
    assert float(residual_ratio(torch.zeros(3, 4))) == 0


@given(seeds)
def test_what_rows_have_in_common_passes_row_stochastic_mixing_untouched(seed: int) -> None:
    x = stream(1, 6, seed)[0]
    mixing = stream(1, 6, seed + 7, 6)[0].softmax(-1)

    def rest(y: torch.Tensor) -> torch.Tensor:
        return y - y.mean(0)

    close(rest(mixing @ x), rest(mixing @ rest(x)))


@every
def test_the_full_variant_is_the_model_itself(name: str) -> None:
    found = subject(name)
    ids, *more = found.inputs
    side, rows = ("decoder." if more else ""), dict[str, Any](target=more[0]) if more else {}
    site = f"{side}blocks.1.resid_post"
    streams = run(found.model, ids, read=[site], **rows)[site].values
    expected = torch.stack([residual_ratio(x) for x in streams]).mean()
    close(measured(name, initial=None).ratio.select(weights="trained", variant="full").values[-1], expected)


@every
def test_every_variant_has_numbers_of_its_own_at_every_depth(name: str) -> None:
    found = measured(name)
    assert found.ratio.labels("weights") == ["trained", "initial"]
    assert found.rows == 2 and found.ratio.values.isfinite().all() and found.ratio_spread.values.isfinite().all()
    assert ((found.effective_rank.values >= 1 - 1e-9) & (found.effective_rank.values <= 7 + 1e-9)).all()
    trained = found.ratio.select(weights="trained").values
    # by ratio: a post-norm translator with random gains is down to 1e-10
    assert all((trained[i, -1] / trained[j, -1] - 1).abs() > 1e-6 for i in range(len(trained)) for j in range(i))


@in_one_pass
@pytest.mark.parametrize("wiring", ["pre", "post", "sandwich", "parallel"])
def test_variants_are_what_the_sub_layers_give_by_themselves(wiring: str) -> None:
    layer = block(n_heads=2, mlp=Mlp(6), wiring=wiring, norm=NoNorm())  # type: ignore[arg-type]
    model = randomise(DecoderConfig(vocab_size=5, d_model=8, layers=(layer,) * 2).build().double().eval())
    ids = torch.tensor([[0, 1, 2, 3, 4, 0]])
    context_of = run(model, ids, read=["embed.token"])["embed.token"].values
    found = rank_of_stream(model, ids, initial=None)
    for variant in ("attention only", "+ MLP", "+ skip"):
        x = context_of
        for one in model.stack.blocks:
            attended, mlp = one.part("attn")(x, _context(x))[0], one.part("mlp")
            assert isinstance(mlp, ByPosition)
            if variant == "attention only":
                x = attended
            elif variant == "+ skip":
                x = x + attended
            else:
                x = attended + mlp.write(x) if wiring == "parallel" else mlp.write(attended)
        close(found.ratio.select(weights="trained", variant=variant).values[-1], residual_ratio(x[0]))


def _context(x: torch.Tensor) -> Any:
    from glassformer.testing.layers import causal_context

    return causal_context(x)


def test_attention_alone_without_a_mask_loses_rank_faster_than_exponentially() -> None:
    from glassformer.models import EncoderDecoderConfig

    layer = block(n_heads=2, norm=NoNorm())
    config = EncoderDecoderConfig(
        vocab_size=11, d_model=16, encoder_layers=(layer,) * 3, decoder_layers=(block(n_heads=2, cross=True),),
    )  # fmt: skip
    model = randomise(config.build().double(), std=0.3)
    ids = torch.arange(1, 11)[None]
    found = rank_of_stream(model, ids, target=[[1, 2]], stack="encoder", initial=None)
    alone = found.ratio.select(weights="trained", variant="attention only").values
    shrink = alone[1:] / alone[:-1]
    assert (shrink[1:] < shrink[:-1] / 2).all() and alone[-1] < 0.05
    assert found.ratio.select(weights="trained", variant="full").values[-1] > 0.1


def test_a_model_without_mlps_has_two_variants_and_says_why() -> None:
    found = measured("attention_only")
    assert found.ratio.labels("variant") == ["attention only", "full"]
    assert found.left_out["+ MLP"] == "there is none"


def test_no_text_is_refused() -> None:
    with pytest.raises(ShapeMismatch, match="give at least one text"):
        rank_of_stream(subject("gpt2").model)
