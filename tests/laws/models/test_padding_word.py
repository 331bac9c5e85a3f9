"""The classic example: a padding symbol that is also a word. Masks come from lengths, so only padding is hidden."""

import torch

from glassformer.attention import causal, padding
from glassformer.data import Batch
from glassformer.models import DecoderConfig, EncoderDecoderConfig, block, repeat

# 2 is the padding symbol and a word; the last two positions are padding
TOKENS = torch.tensor([[0, 2, 4, 8, 1, 2, 2]])
LENGTHS = torch.tensor([5])
DECODER_MASK = torch.tensor(
    [
        [1, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 1, 0, 0],
        [1, 1, 1, 1, 1, 0, 0],
        [1, 1, 1, 1, 1, 0, 0],
    ]
).bool()


def test_the_decoder_mask_is_the_triangle_less_the_two_trailing_columns():
    assert torch.equal((causal() & padding(LENGTHS)).dense(7, 7)[0, 0], DECODER_MASK)


def test_the_encoder_mask_hides_the_two_trailing_columns_alone():
    expected = torch.tensor([1, 1, 1, 1, 1, 0, 0]).bool().expand(7, 7)
    assert torch.equal(padding(LENGTHS).dense(7, 7)[0, 0], expected)


def with_token(position: int, token: int) -> torch.Tensor:
    changed = TOKENS.clone()
    changed[0, position] = token
    return changed


def test_a_decoder_reads_the_word_and_not_the_padding():
    model = DecoderConfig(10, 16, repeat(block(n_heads=2), 2)).build().double().eval()
    logits = model(TOKENS, lengths=LENGTHS)
    for padded in (5, 6):
        assert torch.equal(model(with_token(padded, 7), lengths=LENGTHS)[:, :5], logits[:, :5])
    as_word = model(with_token(1, 7), lengths=LENGTHS)
    assert (as_word[:, 1:5] != logits[:, 1:5]).any(-1).all()


def test_an_encoder_reads_the_word_and_not_the_padding():
    layers = repeat(block(n_heads=2), 1), repeat(block(n_heads=2, cross=True), 1)
    model = EncoderDecoderConfig(10, 16, *layers).build().double().eval()
    target = torch.tensor([[3, 5]])
    logits = model(TOKENS, target, source_lengths=LENGTHS)
    assert torch.equal(model(with_token(6, 7), target, source_lengths=LENGTHS), logits)
    assert not torch.equal(model(with_token(1, 7), target, source_lengths=LENGTHS), logits)


def test_the_word_counts_in_the_loss_and_the_padding_does_not():
    model = DecoderConfig(10, 16, repeat(block(n_heads=2), 1)).build().double().eval()
    weight = torch.arange(6)[None] < LENGTHS[:, None] - 1
    batch = Batch(TOKENS[:, :-1], TOKENS[:, 1:], weight, lengths=LENGTHS - 1)
    log_probs = model(TOKENS[:, :4]).log_softmax(-1)
    expected = -log_probs[0, range(4), [2, 4, 8, 1]].mean()
    torch.testing.assert_close(model.loss(batch), expected)
