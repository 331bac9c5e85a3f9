"""Masked tokens: how many are chosen, what becomes of them, and that they are a function of seed, split and step."""

from pathlib import Path

import pytest
import torch

from glassformer.data import (
    Batch,
    Digits,
    Induction,
    Masked,
    MixtureConfig,
    ModularSum,
    Repeat,
    TextConfig,
    ZhEnConfig,
    bytes_tokenizer,
    with_mask,
)
from glassformer.data.masked import choose
from glassformer.errors import ConfigError, DataError
from glassformer.models import DecoderConfig, EncoderConfig, Mlp, block, image_encoder, repeat
from glassformer.models.patches import Patches
from glassformer.testing import close
from glassformer.trace import Tape
from glassformer.training import OptimConfig, TrainConfig, train

ROWS = Repeat(vocab_size=40, unit_min=4, unit_max=8)
ENCODER = EncoderConfig(40 + 1, 16, repeat(block(n_heads=2, mlp=Mlp(24)), 2), max_len=16)
HIDDEN = Masked(batch_size=4, length=12, text=Repeat(vocab_size=40, unit_min=3, unit_max=4))


def test_a_share_of_each_row_is_chosen_and_of_those_eight_in_ten_are_masked_and_one_replaced():
    data = Masked(batch_size=64, length=256, text=ROWS).build()
    rows = data.rows.batch(3)
    batch, mask = data.batch(3), data.tokenizer.require("mask")
    among = torch.zeros_like(rows.weight)
    among[:, 1:] = rows.weight[:, :-1]
    assert batch.targets.equal(rows.tokens) and not bool((batch.weight & ~among).any())
    assert batch.weight.sum(-1).tolist() == [round(0.15 * n) for n in among.sum(-1).tolist()]
    assert batch.tokens[~batch.weight].equal(rows.tokens[~batch.weight])
    read, stood = batch.tokens[batch.weight], rows.tokens[batch.weight]
    n = len(read)
    # five standard deviations of a binomial share; of those replaced, one in 39 is the token itself
    shares = {"masked": (read == mask, 0.8), "kept": (read == stood, 0.1 + 0.1 / 39)}
    for found, expected in shares.values():
        assert abs(float(found.float().mean()) - expected) < 5 * (expected * (1 - expected) / n) ** 0.5
    assert not bool(torch.isin(read[read != mask], torch.tensor([*data.tokenizer.specials])).any())
    others = read[(read != mask) & (read != stood)]
    assert len(others.unique()) == 39, "any token that is not special stands in for another"


@pytest.mark.parametrize(("masked", "replaced"), [(1.0, 0.0), (0.0, 1.0), (0.0, 0.0)])
def test_what_becomes_of_chosen_tokens_is_as_told(masked, replaced):
    data = Masked(batch_size=8, length=64, text=ROWS, masked=masked, replaced=replaced).build()
    batch, mask = data.batch(1), data.tokenizer.require("mask")
    read, stood = batch.tokens[batch.weight], batch.targets[batch.weight]
    assert bool((read == mask).all()) if masked else not bool((read == mask).any())
    if masked == replaced == 0:
        assert read.equal(stood)
    if replaced:
        assert float((read == stood).float().mean()) < 0.2


def test_masks_are_a_function_of_seed_split_and_step():
    def tokens(data, *key):
        return data.batch(*key).tokens

    data = Masked(batch_size=4, length=32, text=ROWS).build()
    again = Masked(batch_size=4, length=32, text=ROWS).build(data.tokenizer)
    other = Masked(batch_size=4, length=32, text=ROWS, seed=1).build()
    later = tokens(data, 7)
    assert later.equal(tokens(again, 7)) and not later.equal(tokens(data, 8))
    assert tokens(data, 0, "heldout").equal(tokens(again, 0, "heldout"))
    assert not later.equal(tokens(data, 7, "heldout"))
    assert other.batch(7).targets.equal(data.batch(7).targets) and not tokens(other, 7).equal(later)


def test_each_position_is_chosen_as_often_as_any_other_and_a_row_of_few_has_one():
    among = torch.ones(4000, 20, dtype=torch.bool)
    among[:, 0] = False
    often = choose(among, 0.15, torch.Generator().manual_seed(0)).float().mean(0)
    assert often[0] == 0 and float((often[1:] - 3 / 19).abs().max()) < 5 * (3 / 19 * 16 / 19 / 4000) ** 0.5
    among = torch.tensor([[True, False, True], [False, True, False], [False, False, False]])
    assert choose(among, 0.01).sum(-1).tolist() == [1, 1, 0]
    assert choose(among, 1.0).equal(among)


def test_what_fills_a_row_up_begins_a_document_or_is_special_is_never_chosen(tmp_path: Path):
    (tmp_path / "a.txt").write_text("abcdef")
    (tmp_path / "b.txt").write_text("xyz")
    text = TextConfig(sources=(str(tmp_path),), heldout=0.0, crop="cut")
    data = Masked(batch_size=1, length=20, text=text, share=1.0, masked=1.0, replaced=0.0).build(
        with_mask(bytes_tokenizer())
    )
    batch, rows = data.batch(0), data.rows.batch(0)
    bos, mask = data.tokenizer.require("bos"), data.tokenizer.require("mask")
    real = 2 + 6 + 3
    assert batch.weight[0].tolist() == [i < real and rows.tokens[0, i] != bos for i in range(20)]
    assert data.tokenizer.decode(batch.targets[0][:real].tolist()) in ("abcdefxyz", "xyzabcdef")
    assert batch.tokens[0, :real].tolist() == [bos if id == bos else mask for id in rows.tokens[0, :real].tolist()]
    assert batch.documents is not None and rows.documents is not None and batch.documents.equal(rows.documents)


def test_a_learned_tokenizer_gets_a_mask_token_behind_all_others(tmp_path: Path):
    (tmp_path / "a.txt").write_text("the cat sat on the mat " * 20)
    (tmp_path / "b.txt").write_text("the dog ran " * 20)
    text = TextConfig(sources=(str(tmp_path),), vocab_size=270)
    rows, data = text.build(), Masked(text=text).build()
    assert data.tokenizer.encode("the cat <mask>") == rows.tokenizer.encode("the cat <mask>")
    assert data.vocab_size == rows.vocab_size + 1 and data.tokenizer.roles.mask == rows.vocab_size
    assert with_mask(data.tokenizer) is data.tokenizer
    again = Masked(text=text).build(data.tokenizer)
    assert again.tokenizer is data.tokenizer and again.batch(5).tokens.equal(data.batch(5).tokens)
    assert list(data.documents("train")) == list(rows.documents("train"))
    assert data.describe()["hidden"] == {"share": 0.15, "masked": 0.8, "replaced": 0.1}


def test_the_loss_is_of_chosen_positions_and_its_gradient_zero_at_all_others():
    model = ENCODER.build().double()
    batch = HIDDEN.build().batch(1)
    tape = Tape(model, ["blocks.1.resid_post"], grad=True)
    loss = model.loss(batch, tape=tape)
    expected = torch.nn.functional.cross_entropy(model(batch.tokens)[batch.weight], batch.targets[batch.weight])
    close(loss, expected)
    (found,) = torch.autograd.grad(loss, tape["blocks.1.resid_post"].values, retain_graph=True)
    assert bool((found[~batch.weight] == 0).all()) and bool((found[batch.weight].abs().sum(-1) > 0).all())
    ours, theirs = (torch.autograd.grad(one, [*model.parameters()], allow_unused=True) for one in (loss, expected))
    for one, other in zip(ours, theirs, strict=True):
        if one is not None:
            close(one, other)
    elsewhere = torch.where(batch.weight, batch.targets, 0)
    close(model.loss(Batch(batch.tokens, elsewhere, batch.weight)), loss)
    assert model.loss(Batch(batch.tokens, batch.targets, torch.zeros_like(batch.weight))).item() == 0


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Masked(share=0.0), ConfigError, r"masked: share must be in \(0, 1\], found 0.0"),
        (lambda: Masked(share=1.5), ConfigError, r"share must be in \(0, 1\], found 1.5"),
        (lambda: Masked(masked=0.8, replaced=0.3), ConfigError, "shares of the chosen tokens; they exceed 1"),
        (lambda: Masked(text=HIDDEN), ConfigError, "these rows are hidden already"),
        (lambda: Masked(text=ROWS).build(bytes_tokenizer()), DataError, "has no mask token to hide tokens behind"),
        (lambda: Masked(text=Digits()), ConfigError, "data of kind digits are images, no text"),
        (lambda: Masked(length=3, text=ModularSum()).build(), DataError, "are no tokens of its rows to hide"),
        (lambda: Masked(text=ZhEnConfig()).build().batch(1), DataError, 'data of kind "zh-en" has sources'),
        (lambda: Masked(text=Induction(vocab_size=300)).build().batch(1), DataError, "so none can be hidden"),
    ],
)
def test_what_cannot_be_hidden_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


DECODER = DecoderConfig(41, 16, repeat(block(n_heads=2), 1), max_len=16)


@pytest.mark.parametrize(
    ("model", "data", "evaluate", "message"),
    [
        (ENCODER, ROWS, None, "learns from masked tokens: Masked"),
        (DECODER, HIDDEN, None, "this model writes the next token"),
        (ENCODER.replace(predicts=False), HIDDEN, None, r"has no unembedding \(predicts=False\)"),
        (
            ENCODER.replace(tied=False, output_vocab_size=3, classifies="text"),
            HIDDEN,
            None,
            "are of the tokens it reads",
        ),
        (ENCODER, HIDDEN, ROWS, "data and evaluate are both Masked"),
        (ENCODER, MixtureConfig((HIDDEN, HIDDEN), (0.5, 0.5)), None, "Hide the rows of all"),
        (ENCODER.replace(vocab_size=40), HIDDEN, None, "the model has vocab_size=40, the data's tokenizer 41"),
        (
            image_encoder(Patches((8, 8), 4), 16, repeat(block(n_heads=2), 1), 3),
            HIDDEN,
            None,
            "the model has vocab_size=0",
        ),
    ],
)
def test_models_and_data_that_do_not_fit_are_refused_before_anything_is_written(
    model, data, evaluate, message, tmp_path
):
    with pytest.raises(ConfigError, match=message):
        train(TrainConfig(model, data, evaluate=evaluate, device="cpu"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_encoder_learns_a_cloze_whose_answer_stands_three_away(tmp_path):
    from glassformer.analysis.learning.measures import masked_measures
    from glassformer.attention import Rope

    layers = repeat(block(n_heads=2, positions=Rope(), mlp=Mlp(64)), 1)
    text = Repeat(vocab_size=12, unit_min=3, unit_max=3)
    data = Masked(batch_size=16, length=13, text=text)
    config = TrainConfig(
        EncoderConfig(13, 32, layers, max_len=16), data, optim=OptimConfig(lr=1e-2, warmup=20, weight_decay=0.0),
        steps=80, evaluate_every=80, log_every=80, save_every=80, device="cpu",
    )  # fmt: skip
    untrained = masked_measures(config.model.build(), data.build())["masked_accuracy"]
    model = train(config, tmp_path / "run", measures={"masked": masked_measures})
    found = masked_measures(model, data.build())
    assert untrained < 0.3 and found["masked_accuracy"] > 0.9
    assert "->" in found["sample"] and "<mask>" in found["sample"].partition("->")[0]
