"""Where dropout lies: behind the sites of patterns, neurons and embeddings, and on what sub-layers write."""

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from glassformer.attention import Attention, Differential, Lightning, Linear, MixerConfig, Rope, Softmax, Traits
from glassformer.errors import ConfigError, NoPattern
from glassformer.models import (
    BlockConfig,
    DecoderConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    LayerNorm,
    Learned,
    Mlp,
    ModelConfig,
    block,
)
from glassformer.models.evaluation import evaluating
from glassformer.models.presets import transformer_base, transformer_big
from glassformer.testing import close
from glassformer.testing.sub_layer_laws import tokens
from glassformer.trace import Tape
from one_pass import in_one_pass

MIXERS = [Softmax(), Softmax(window=3), Differential(), Linear(), Lightning(chunk=2)]


def decoder(mixer: MixerConfig | None = None, **kwargs: Any) -> DecoderConfig:
    layer = block(mixer or Softmax(), n_heads=2, positions=Rope(), mlp=Mlp(12), **kwargs)
    return DecoderConfig(11, 16, (layer,))


def run(model: Any, ids: torch.Tensor, *read: str, seed: int = 3) -> tuple[torch.Tensor, Tape]:
    torch.manual_seed(seed)
    tape = Tape(model, read)
    return model(ids, tape=tape), tape


@in_one_pass
@pytest.mark.parametrize("mixer", MIXERS, ids=lambda mixer: mixer.described)
def test_dropout_on_weights_lies_between_the_pattern_and_what_it_mixes(mixer: MixerConfig) -> None:
    model = decoder(mixer, attn_dropout=0.4).build().double().train()
    _, tape = run(model, tokens(2, 7), "blocks.0.attn.pattern", "blocks.0.attn.value", "blocks.0.attn.z")
    pattern, value, z = (tape[f"blocks.0.attn.{name}"].values for name in ("pattern", "value", "z"))
    # the pattern is the whole one, and the draw is the first of this seed
    _, seen = run(model.eval(), tokens(2, 7), "blocks.0.attn.pattern")
    close(pattern, seen["blocks.0.attn.pattern"].values)
    torch.manual_seed(3)
    close(z, F.dropout(pattern, 0.4) @ value)


@in_one_pass
@pytest.mark.parametrize("mixer", MIXERS, ids=lambda mixer: mixer.described)
def test_reading_the_pattern_changes_no_draw(mixer: MixerConfig) -> None:
    model = decoder(mixer, attn_dropout=0.4, dropout=0.2).build().double().train()
    without, _ = run(model, tokens(2, 7))
    with_pattern, _ = run(model, tokens(2, 7), "blocks.0.attn.pattern", "blocks.0.mlp.hidden")
    assert torch.equal(without, with_pattern)
    assert not torch.equal(without, run(model, tokens(2, 7), seed=4)[0])


def test_dropout_on_neurons_lies_behind_their_site() -> None:
    config = DecoderConfig(11, 16, (block(n_heads=2, mlp=Mlp(12, dropout=0.5)),))
    model = config.build().double().train()
    _, tape = run(model, tokens(2, 7), "blocks.0.mlp.hidden", "blocks.0.mlp.out")
    torch.manual_seed(3)
    hidden = F.dropout(tape["blocks.0.mlp.hidden"].values, 0.5)
    mlp: Any = model.stack.blocks[0].part("mlp")
    close(tape["blocks.0.mlp.out"].values, mlp.output(hidden))


EMBEDDED: dict[str, ModelConfig] = {
    "decoder": DecoderConfig(11, 16, (block(n_heads=2),), positions=Learned(), embed_dropout=0.5),
    "encoder": EncoderConfig(11, 16, (block(n_heads=2),), positions=Learned(), embed_dropout=0.5),
    "encoder_decoder": EncoderDecoderConfig(
        11, 16, (block(n_heads=2),), (block(n_heads=2, cross=True),), embed_dropout=0.5
    ),
}


@pytest.mark.parametrize("kind", EMBEDDED)
def test_dropout_on_embeddings_is_on_token_plus_position(kind: str) -> None:
    model = EMBEDDED[kind].build().double().train()
    args = (tokens(2, 7), tokens(2, 5, 1)) if kind == "encoder_decoder" else (tokens(2, 7),)
    first = next(iter(model.stacks.values())).prefix
    read = [f"{first}{name}" for name in ("embed.token", "embed.position", "blocks.0.resid_pre")]
    tape = Tape(model, read)
    torch.manual_seed(3)
    model(*args, tape=tape)
    token, position, entered = (tape[name].values for name in read)
    torch.manual_seed(3)
    close(entered, F.dropout(token + position, 0.5))


def test_dropout_on_embeddings_is_behind_their_norm() -> None:
    model = decoder().replace(embed_norm=LayerNorm(), embed_dropout=0.5).build().double().train()
    _, tape = run(model, tokens(2, 7), "embed.token", "blocks.0.resid_pre")
    torch.manual_seed(3)
    normed: Any = model.embed.norm
    close(tape["blocks.0.resid_pre"].values, F.dropout(normed(tape["embed.token"].values), 0.5))


def test_nothing_is_dropped_in_evaluation() -> None:
    config = decoder(attn_dropout=0.4, dropout=0.2).replace(embed_dropout=0.3)
    attention, mlp = config.layers[0].parts
    config = config.replace(layers=(config.layers[0].replace(parts=(attention, mlp.replace(dropout=0.6))),))
    plain = decoder().build(seed=5).double().eval()
    dropping = config.build(seed=5).double().eval()
    assert torch.equal(plain(tokens(2, 7)), dropping(tokens(2, 7)))


def test_the_preset_of_the_paper_drops_what_sub_layers_write_and_what_enters_the_stacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rates: list[float] = []
    dropout = F.dropout
    monkeypatch.setattr(F, "dropout", lambda x, p, *rest: (rates.append(p), dropout(x, p, *rest))[1])
    config = transformer_base(11).replace(d_model=16)
    model = config.build().train()
    model(tokens(1, 4), tokens(1, 3, 1))
    # source and target, two sub-layers in each block of the encoder, three in each of the decoder
    assert rates == [0.1] * (2 + 6 * 2 + 6 * 3)
    big = transformer_big(11)
    assert {big.embed_dropout, *(block.dropout for block in big.encoder_layers + big.decoder_layers)} == {0.3}


@pytest.mark.parametrize("kind", EMBEDDED)
def test_an_evaluation_drops_nothing_whatever_mode_the_model_is_in(kind: str) -> None:
    layer = block(n_heads=2, mlp=Mlp(8, dropout=0.5), dropout=0.5, attn_dropout=0.5)
    across = block(n_heads=2, mlp=Mlp(8, dropout=0.5), dropout=0.5, attn_dropout=0.5, cross=True)
    config = EMBEDDED[kind]
    both = {"encoder_layers": (layer,), "decoder_layers": (across,)}
    blocks: dict[str, Any] = both if kind == "encoder_decoder" else {"layers": (layer,)}
    model = config.replace(**blocks).build().double()
    args = (tokens(2, 7), tokens(2, 5, 1)) if kind == "encoder_decoder" else (tokens(2, 7),)
    expected = model.eval()(*args)
    model.train()
    with evaluating(model):
        assert torch.equal(model(*args), expected)
    assert not torch.equal(model(*args), expected)


@pytest.mark.parametrize("mixer", [Linear(), Lightning(chunk=2)], ids=lambda mixer: mixer.kind)
def test_a_state_without_keys_refuses_dropout_on_weights_that_it_does_not_have(mixer: MixerConfig) -> None:
    model = decoder(mixer, attn_dropout=0.4).build().double()
    state, after = model.eval().begin(2), tokens(2, 3)
    model(after, state=state)
    model.train()
    with pytest.raises(NoPattern, match="no pattern here"):
        model(after, state=state)
    with evaluating(model):
        model(after, state=state)


def test_no_mechanism_without_a_pattern_takes_dropout_on_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Softmax, "traits", Traits(linear_in_value="no"))
    assert Attention(2, mixer=Softmax()).dropout == 0
    with pytest.raises(ConfigError, match="use the dropout of the block"):
        Attention(2, mixer=Softmax(), dropout=0.1)


@pytest.mark.parametrize("rate", [-0.1, 1.0])
def test_a_rate_that_is_none_is_refused(rate: float) -> None:
    for make in (
        lambda: Attention(2, dropout=rate),
        lambda: Mlp(4, dropout=rate),
        lambda: BlockConfig((Mlp(4),), dropout=rate),
        *(partial(config.replace, embed_dropout=rate) for config in EMBEDDED.values()),
    ):
        with pytest.raises(ConfigError, match=r"dropout must be in \[0, 1\), found"):
            make()
