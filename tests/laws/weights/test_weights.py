"""Per-head matrices are the model: whatever is folded, the forward pass written out from them gives the same."""

from typing import Any

import pytest
import torch

from glassformer import analysis, weights
from glassformer.attention import Lightning, NoPositions, QueryKeyOnly, Rope, Softmax
from glassformer.errors import AnalysisUnavailable
from glassformer.models import DecoderConfig, EncoderDecoder, LayerNorm, Learned, NoNorm, RmsNorm, block
from glassformer.testing import close
from glassformer.testing.layers import randomise
from glassformer.testing.models import ARCHITECTURES, subject
from glassformer.trace import Scale, Set, Tape
from one_pass import in_one_pass

# with one whose mechanism and shifted reading go by what the model reads, whatever is folded
EVERY = [*sorted(ARCHITECTURES), "rwkv", "mixed"]
FORMS = [(False, False), (True, False), (False, True), (True, True)]


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize(("fold", "augment"), FORMS)
def test_matrices_give_the_log_probabilities_of_the_model(name, fold, augment):
    model = subject(name)
    tokens = model.inputs[::-1]
    w = weights.of(model.model, fold=fold, augment=augment)
    found = model.model.unembed.capped(weights.logits(w, *tokens))
    expected = model()
    # linear attention divides by a sum that may be small, which makes rounding errors larger
    close(found.log_softmax(-1), expected.log_softmax(-1), 1e-8 if "linear" in name else None)
    if not fold:
        close(found, expected, 1e-8 if "linear" in name else None)


@pytest.mark.parametrize("name", EVERY)
def test_unfolded_matrices_are_views_on_the_parameters(name):
    model = subject(name).model
    storages = {p.untyped_storage().data_ptr() for p in model.parameters()}
    for layer in weights.of(model):
        for matrix in (layer.Q, layer.K, layer.V, layer.O):
            assert matrix.untyped_storage().data_ptr() in storages


@pytest.mark.parametrize("name", EVERY)
def test_folding_leaves_the_model_as_it_was(name):
    model = subject(name)
    before = {k: v.clone() for k, v in model.model.state_dict().items()}
    weights.of(model.model, fold=True, augment=True)
    for key, value in model.model.state_dict().items():
        assert torch.equal(value, before[key]), key


def test_folded_norms_have_no_gain_and_folded_writes_no_mean():
    w = weights.of(subject("gpt2").model, fold=True)
    assert all(gain is None and bias is None for gain, bias in w.norms.values())
    for write in (w.E, w.P, *w.O, *[m.W_out for m in w.mlps]):
        assert write is not None
        close(write.mean(-1), torch.zeros_like(write.mean(-1)), 1e-12)


def test_writes_of_rms_norm_models_keep_their_mean():
    model = subject("llama").model
    close(weights.of(model, fold=True).O[0], weights.of(model).O[0])


def _run(name, **changes):
    """Return a two-layer model with the given attention, and everything read at one layer in one pass."""
    config = DecoderConfig(11, 16, (block(n_heads=4, **changes),) * 2, max_len=24, tied=False)
    model = randomise(config.build().double().eval(), 3, std=0.3)
    tokens = torch.randint(0, 11, (1, 7), generator=torch.Generator().manual_seed(1))
    tape = Tape(model, [f"blocks.{name}.attn.*", f"blocks.{name}.resid_pre", f"blocks.{name}.attn.norm"])
    model(tokens, tape=tape)
    return model, tape.values


@in_one_pass
@pytest.mark.parametrize("kv", [4, 2, 1])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rope", [None, Rope(), Rope(pairing="interleaved"), Rope(fraction=0.5)])
def test_qk_at_each_offset_gives_the_scores_of_the_model(kv, bias, rope):
    positions = {} if rope is None else {"positions": rope}
    model, read = _run(1, n_kv_heads=kv, bias=bias, **positions)
    w = weights.of(model, augment=True)
    layer = w[1]
    x = read["blocks.1.attn.norm"][0]
    x = torch.cat((x, torch.ones_like(x[:, :1])), -1)
    scores = read["blocks.1.attn.scores"][0]
    for i in range(7):
        for j in range(i + 1):
            found = ((x[i] @ layer.qk(offset=i - j).dense()) * x[j]).sum(-1) * layer.scale
            close(found, scores[:, i, j])


@pytest.mark.parametrize("kv", [4, 2, 1])
def test_pattern_times_input_times_ov_is_what_heads_write(kv):
    model, read = _run(0, n_kv_heads=kv)
    w = weights.of(model)
    x = read["blocks.0.attn.norm"]
    written = read["blocks.0.attn.pattern"] @ (x[:, None] @ w[0].ov().dense())
    close(written, read["blocks.0.attn.head_out"])


def test_one_head_is_a_slice_of_its_layer():
    w = weights.of(subject("llama").model, fold=True)
    for h in range(4):
        close(w[f"L1H{h}"].ov().dense()[0], w[1].ov().dense()[h])
        close(w[f"L1H{h}"].qk(3).dense()[0], w[1].qk(3).dense()[h])
    assert w["L1H2"].labels == ["L1H2"]


def test_a_key_bias_changes_nothing_without_rotary_positions():
    for positions, same in ((NoPositions(), True), (Rope(), False)):
        config = DecoderConfig(11, 16, (block(n_heads=2, bias=True, positions=positions),), max_len=24)
        model: Any = randomise(config.build().double().eval(), 2, std=0.4)
        tokens = torch.randint(0, 11, (2, 9), generator=torch.Generator().manual_seed(1))
        before = model(tokens)
        attn = model.stack.blocks[0].attn
        with torch.no_grad():
            attn.projection.qkv.bias[attn.projection.widths[0] : sum(attn.projection.widths[:2])] = 0
        assert torch.allclose(model(tokens), before, atol=1e-9) is same


def test_value_biases_stay_where_rows_do_not_sum_to_one():
    assert weights.of(subject("gpt2").model, fold=True)[0].bV is None
    averaging = DecoderConfig(11, 16, (block(Softmax(), n_heads=2, bias=True),), max_len=24)
    assert weights.of(averaging.build(), fold=True)[0].bV is None
    decaying = DecoderConfig(11, 16, (block(Lightning(), n_heads=2, bias=True),), max_len=24)
    assert weights.of(decaying.build(), fold=True)[0].bV is not None


BLOCKS = {
    "learned": ({}, {"positions": Learned()}),
    "none": ({}, {}),
    "query_key_only": ({"positions": QueryKeyOnly(2.0)}, {}),
    "rope": ({"positions": Rope()}, {}),
}


@pytest.mark.parametrize("kind", sorted(BLOCKS))
@pytest.mark.parametrize("norm", [LayerNorm(), RmsNorm(), NoNorm()])
@pytest.mark.parametrize(("fold", "augment"), FORMS)
def test_token_position_and_bias_blocks_sum_to_the_scores_of_the_first_layer(kind, norm, fold, augment):
    attention, model_fields = BLOCKS[kind]
    config = DecoderConfig(
        11, 16, (block(n_heads=4, n_kv_heads=2, bias=True, norm=norm, **attention),), max_len=9, **model_fields
    )
    model = randomise(config.build().double().eval(), 5, std=0.3)
    tokens = torch.randint(0, 11, (1, 9), generator=torch.Generator().manual_seed(1))
    w = weights.of(model, fold=fold, augment=augment)
    edits = []
    if kind == "learned" and not isinstance(norm, NoNorm):
        # both addends are divided by one scale: freeze the norm at it
        scale = w.source_scale(w[0])
        assert scale is not None
        edits = [Set("blocks.0.attn.scale", scale.expand(1, 9))]
    tape = Tape(model, ["blocks.0.attn.scores"], edits)
    model(tokens, tape=tape)
    sources = w.sources(w[0])
    assert ("position" in sources) is (kind in ("learned", "query_key_only"))
    for i in range(9):
        for j in range(i + 1):
            place = {"token": lambda t: int(tokens[0, t]), "position": lambda t: t, "bias": lambda t: 0}
            blocks = [
                w.full_qk(0, a, b, offset=i - j).rows(place[a](i))[:, place[b](j)] for a in sources for b in sources
            ]
            close(torch.stack(blocks).sum(0), tape.values["blocks.0.attn.scores"][0, :, i, j])


def test_a_one_layer_model_is_its_direct_path_and_its_patterns_times_its_ov_circuits():
    config = DecoderConfig(11, 16, (block(n_heads=4, positions=QueryKeyOnly()),), max_len=9, final_norm=NoNorm())
    model = randomise(config.build().double().eval(), 5, std=0.3)
    tokens = torch.randint(0, 11, (2, 9), generator=torch.Generator().manual_seed(1))
    for fold in (False, True):
        w = weights.of(model, fold=fold)
        tape = Tape(model, ["blocks.0.attn.pattern"])
        expected = model(tokens, tape=tape).log_softmax(-1)
        moved = w.full_ov(0).dense()[:, tokens].transpose(0, 1)
        attended = (tape.values["blocks.0.attn.pattern"] @ moved).sum(1)
        constant = torch.zeros(16, dtype=torch.float64)
        shift = w.norms["blocks.0.attn.norm"][1]
        if shift is not None:
            constant = (shift @ w[0].ov().dense()).sum(0)
        constant = constant if w[0].bO is None else constant + w[0].bO
        found = w.direct().dense()[tokens] + attended + constant @ w.U
        close((found if w.bU is None else found + w.bU).log_softmax(-1), expected)


@pytest.mark.parametrize(
    "name", ["gpt2", "llama", "attention_only", "alibi_window", "sandwich", "post", "translator_pre"]
)
def test_folding_changes_full_ov_circuits_by_a_constant_per_row(name):
    model = subject(name).model
    for i in range(2):
        layer = weights.of(model).of_stack()[i]
        found = weights.of(model, fold=True).full_ov(layer.labels[0]).dense()
        close(
            found - found.mean(-1, keepdim=True),
            weights.of(model).full_ov(layer.labels[0]).centred(rows=True).dense(),
            1e-8,
        )


def test_what_is_written_reaches_the_logits_without_its_mean():
    config = DecoderConfig(11, 16, (block(n_heads=2, norm=RmsNorm(), positions=QueryKeyOnly()),), max_len=9)
    model = randomise(config.build().double().eval(), 5, std=0.3)
    tokens = torch.randint(0, 11, (1, 9), generator=torch.Generator().manual_seed(1))
    tape = Tape(model, ["blocks.0.attn.head_out", "blocks.0.attn.pattern", "final.scale"])
    logits = model(tokens, tape=tape)
    for fold in (False, True):
        w = weights.of(model, fold=fold)
        moved = (tape.values["blocks.0.attn.pattern"][0] @ w.full_ov(0).dense()[:, tokens[0]]).sum(0)
        # without the heads, the scale of the final norm held
        alone = Tape(model, [], [Set("final.scale", tape.values["final.scale"]), Scale("blocks.0.attn.head_out", 0.0)])
        rest = logits - model(tokens, tape=alone)
        expected = rest[0] * tape.values["final.scale"][0, :, None]
        close(moved - moved.mean(-1, keepdim=True), expected - expected.mean(-1, keepdim=True), 1e-8)


@pytest.mark.parametrize(
    ("name", "what", "match"),
    [
        ("linear", lambda w: w[0].qk(), "bilinear_scores"),
        ("llama", lambda w: w[0].qk(), "offset"),
        ("lightning_hybrid", lambda w: w[0].ov(), "gate"),
        ("llama", lambda w: w["L9H0"], "no head"),
        ("llama", lambda w: w.full_qk(0, "position", offset=1), "no source"),
        ("attention_only", lambda w: w.full_ov(0, "position"), "no source"),
        ("translator_pre", lambda w: w.full_ov("L0X0"), "encoder's output"),
        ("translator_pre", lambda w: w.full_ov("enc L0H0"), "no unembedding reads"),
    ],
)
def test_what_is_not_defined_says_so(name, what, match):
    with pytest.raises(AnalysisUnavailable, match=match):
        what(weights.of(subject(name).model))


def test_every_head_is_found_by_its_label():
    for name in EVERY:
        w = weights.of(subject(name).model)
        assert len(set(w.labels)) == len(w.labels) > 0
        for label in w.labels:
            assert w[label].labels == [label]
    assert isinstance(subject("translator_pre").model, EncoderDecoder)


def test_what_reads_through_a_norm_that_subtracts_the_mean_has_none():
    w = weights.of(subject("gpt2").model, fold=True)
    for read in (w.U, *w.Q, *w.K, *w.V, *[m.W_in for m in w.mlps]):
        close(read.mean(-2), torch.zeros_like(read.mean(-2)), 1e-12)
    for read in weights.of(subject("llama").model, fold=True).Q:
        assert read.mean(-2).abs().max() > 0.01


def test_a_single_output_is_read_as_it_is_and_not_up_to_a_shift():
    config = DecoderConfig(11, 16, (block(n_heads=2), block(n_heads=2)), max_len=9, output_vocab_size=1, tied=False)
    model = randomise(config.build().double(), seed=1, std=0.3)
    ids = torch.randint(11, (2, 7), generator=torch.Generator().manual_seed(0))
    w = weights.of(model, fold=True)
    close(weights.logits(w, ids), model(ids))
    close(weights.folded(model)(ids), model(ids))
    assert not w.shifts and weights.of(subject("gpt2").model).shifts
    strength = analysis.from_weights.virtual_weights(w).strength
    assert strength.select(reader="unembed").values.isfinite().all()
    pairs = analysis.vocabulary.token_pairs(w, "OV", k=2)
    assert pairs.values.values.abs().min() > 0
    assert analysis.vocabulary.skip_trigrams(w, k=2).effect.values.abs().max() > 0
