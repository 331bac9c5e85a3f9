"""Models set by hand: everything their docstrings say is known in closed form holds, to rounding."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import glassformer as gf
from glassformer.analysis import run
from glassformer.analysis.attribution import direct_logit_attribution, source_effects
from glassformer.analysis.heads import head_roles
from glassformer.analysis.losses import loss_by_position
from glassformer.attention import Alibi, Merge, Rope
from glassformer.data import Markov
from glassformer.data.batch import next_token_batch
from glassformer.errors import ConfigError
from glassformer.handmade import (
    HeadMatrices,
    MlpMatrices,
    SkipTrigramTables,
    assemble,
    bigram_model,
    induction_model,
    keep_in_mind,
    layout,
    markov_model,
    plant,
    pointer_model,
    random_head,
    repeated,
    resting_copier,
    rope_model,
    rotated,
    skip_trigram_model,
    smeared_induction_model,
    virtual_head_model,
)
from glassformer.models import Decoder, DecoderConfig, Learned, Mlp, NoNorm, Sinusoidal, block
from glassformer.testing import close
from glassformer.testing.layers import randomise
from glassformer.trace import At, Scale, Set
from one_pass import in_one_pass

MODELS: dict[str, Callable[[], Decoder]] = {
    "induction": induction_model,
    "redundant": lambda: induction_model(redundant=True),
    "pointer": pointer_model,
    "smeared": smeared_induction_model,
    "bigram": lambda: bigram_model(random_table(7)),
    "skip-trigram": skip_trigram_model,
    "virtual": virtual_head_model,
    "rope": rope_model,
}
every = pytest.mark.parametrize("name", MODELS)


def random_table(n: int, seed: int = 0) -> Tensor:
    """Return random next-token distributions, none of them with a zero."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, n, generator=generator, dtype=torch.float64).mul(2).softmax(-1)


def random_ids(model: Decoder, length: int, seed: int = 0) -> Tensor:
    """Return a row that begins with token 0 and goes on at random without it."""
    generator = torch.Generator().manual_seed(seed)
    rest = torch.randint(1, model.config.vocab_size, (1, length - 1), generator=generator)
    return torch.cat((torch.zeros(1, 1, dtype=torch.long), rest), 1)


def matrices(model: Decoder, layer: int, head: int = 0) -> HeadMatrices:
    """Return the four matrices of a head as they lie in the model."""
    attn: Any = model.stack.blocks[layer].attn
    query, key, value = (attn.projection.matrix(which)[head].detach() for which in ("query", "key", "value"))
    return HeadMatrices(query, key, value, attn.merge.matrix()[head].detach())


def composition(model: Decoder, first: tuple[int, int], second: tuple[int, int]) -> dict[str, float]:
    """Return the composition of two heads by the dense definition."""
    a, b = matrices(model, *first), matrices(model, *second)
    ov, later_ov, qk = a.value @ a.output, b.value @ b.output, b.query @ b.key.T

    def ratio(read: Tensor) -> float:
        return float((ov @ read).norm() / (ov.norm() * read.norm()))

    return {"Q": ratio(qk), "K": ratio(qk.T), "V": ratio(later_ov)}


def circuits(model: Decoder, layer: int, head: int = 0) -> tuple[Tensor, Tensor]:
    """Return the full QK and the full OV circuit, `dst src` and `src out`."""
    h, embed, unembed = matrices(model, layer, head), model.embed.weight.detach(), model.unembed.weight.detach()
    return embed @ h.query @ (embed @ h.key).T, embed @ h.value @ h.output @ unembed.T


def losses(model: Decoder, ids: Tensor, edit: Any = ()) -> Tensor:
    """Return the loss on each token but the first, `batch pos`."""
    logits = run(model, ids[:, :-1], edit=edit).logits
    assert logits is not None
    return F.cross_entropy(logits.detach().mT, ids[:, 1:], reduction="none")


# what all have in common ----------------------------------------------------------------------------------------------


@every
def test_a_rotation_hides_the_layout_and_changes_no_logit(name: str) -> None:
    model = MODELS[name]()
    turned, ids = rotated(model, seed=3), random_ids(model, 12)
    close(turned(ids), model(ids))
    assert not torch.allclose(turned.embed.weight, model.embed.weight)
    # no coordinate is zero any more, and the original is left alone
    assert (turned.embed.weight.abs() > 1e-6).float().mean() > 0.99
    close(model(ids), MODELS[name]()(ids))


@every
def test_a_text_of_the_tokens_names_runs(name: str, tmp_path: Path) -> None:
    model = MODELS[name]()
    ids = random_ids(model, 5)
    # a text starts with <bos> of itself
    shown = ids[0, int(model.require_tokenizer().bos is not None) :].tolist()
    text = " ".join(model.require_tokenizer().tokens(shown))
    assert model.require_tokenizer().encode(text) == shown
    logits = run(model, text).logits
    assert logits is not None and logits.dtype == torch.float64
    close(logits, model(ids))
    # what is saved and loaded is the same model
    close(gf.load(gf.save(model, tmp_path / "model"))(ids), logits, 1e-5)


def test_the_layout_puts_blocks_side_by_side() -> None:
    assert layout(token=3, position=4, output=3) == {
        "token": slice(0, 3),
        "position": slice(3, 7),
        "output": slice(7, 10),
    }


# induction ------------------------------------------------------------------------------------------------------------


@in_one_pass
@pytest.mark.parametrize("build", [induction_model, pointer_model])
@pytest.mark.parametrize("turn", [False, True])
def test_both_wirings_learn_a_row_from_its_first_copy(build: Callable[[], Decoder], turn: bool) -> None:
    model = rotated(build()) if turn else build()
    found = loss_by_position(model, next_token_batch(repeated(batch=8))).values
    # what little attention strays from <bos> in the first copy, e^-15 per token, is worth 50 logits
    close(found[:20], torch.full((20,), math.log(21), dtype=torch.float64), 1e-3)
    assert found[21:].max() < 1e-6


def test_the_first_layer_of_the_induction_model_is_the_shift() -> None:
    done = run(induction_model(), repeated(), read=["*.pattern"])
    shift = torch.ones(40, dtype=torch.float64).diag(-1)
    shift[0, 0] = 1
    close(done["blocks.0.attn.pattern"].values[0, 0], shift)
    # in the first copy nothing matches, and the induction head rests on <bos>
    assert done["blocks.1.attn.pattern"].values[0, 0, 1:21, 0].min() > 0.99999
    close(done["blocks.1.attn.pattern"].values[0, 0].sum(-1), torch.ones(41, dtype=torch.float64))


@pytest.mark.parametrize("gamma", [30.0, 6.0, 1.0])
def test_attention_of_the_induction_head_follows_the_formula_at_any_sharpness(gamma: float) -> None:
    done = run(induction_model(gamma=gamma), repeated(), read=["blocks.1.attn.pattern"])
    q = torch.arange(21, 41)
    found = done["blocks.1.attn.pattern"].values[0, 0, q, q - 19]
    close(found, math.exp(gamma) / (math.exp(gamma) + math.exp(gamma / 2) + q.double() - 1))


def test_several_earlier_copies_vote_on_what_comes_next() -> None:
    model = induction_model(c=50.0)
    logits = run(model, "t1 t2 t9 t1 t2 t8 t1 t3 t7 t1").logits
    assert logits is not None
    expected = torch.zeros(21, dtype=torch.float64)
    expected[2], expected[3] = 50 * 2 / 3, 50 / 3
    close(logits[0, -1], expected, 1e-5)


def test_the_induction_model_composes_keys_and_nothing_else() -> None:
    for vocab in (21, 8):
        model = induction_model(vocab, 2 * vocab)
        for subject in (model, rotated(model)):
            found = composition(subject, (0, 0), (1, 0))
            assert found["K"] == pytest.approx(1 / math.sqrt(1.25 * vocab))
            assert max(found["Q"], found["V"]) < 1e-12


def test_the_pointer_model_composes_queries_and_nothing_else() -> None:
    for vocab, length in ((21, 41), (6, 11)):
        model = pointer_model(vocab, length)
        for subject in (model, rotated(model)):
            found = composition(subject, (0, 0), (1, 0))
            expected = math.sqrt((length - 2) / ((length - 1) * (length - 1 + vocab / 4)))
            assert found["Q"] == pytest.approx(expected)
            assert max(found["K"], found["V"]) < 1e-12
    assert composition(pointer_model(), (0, 0), (1, 0))["Q"] == pytest.approx(0.147, abs=5e-4)


@pytest.mark.parametrize("build", [induction_model, pointer_model])
def test_the_induction_heads_copy_by_their_eigenvalues(build: Callable[[], Decoder]) -> None:
    _, ov = circuits(rotated(build()), 1)
    eigenvalues = torch.linalg.eigvals(ov)
    close(eigenvalues.real.sort().values, torch.tensor([0.0] + [50.0] * 20).double())
    assert eigenvalues.imag.abs().max() < 1e-9


def test_the_key_composed_qk_circuit_matches_equal_tokens() -> None:
    model = rotated(induction_model(gamma=30.0))
    first, second, embed = matrices(model, 0), matrices(model, 1), model.embed.weight.detach()
    moved = embed @ first.value @ first.output
    close(embed @ second.query @ (moved @ second.key).T, 30 * torch.eye(21, dtype=torch.float64))


def test_the_pointer_model_has_a_duplicate_token_head_and_an_induction_head() -> None:
    model = pointer_model()
    scores = head_roles(run(model, repeated(batch=3), read=[head_roles]))
    assert scores.best("duplicate_token") == ("L0H0", pytest.approx(1.0))
    assert scores.best("induction") == ("L1H0", pytest.approx(1.0))
    assert float(scores.scores.select(head="L0H0", role="previous_token").values) < 0.15


def test_attention_of_the_duplicate_token_head_follows_the_formula_at_any_sharpness() -> None:
    for gamma in (60.0, 2.0):
        done = run(pointer_model(gamma=gamma), repeated(), read=["blocks.0.attn.pattern"])
        q = torch.arange(21, 41)
        found = done["blocks.0.attn.pattern"].values[0, 0, q, q - 20]
        rest = math.exp(gamma / 2) + math.exp(-gamma) + q.double() - 2
        close(found, math.exp(gamma) / (math.exp(gamma) + rest))


def test_without_the_previous_token_head_induction_is_lost_but_its_values_were_never_needed() -> None:
    model, ids = induction_model(), repeated(batch=2)
    clean = run(model, ids[:, :-1], read=["*.pattern"])
    without = Scale("blocks.0.attn.z", 0.0, at=At(head=0))
    full = losses(model, ids, [without])
    close(full[:, 21:], torch.full((2, 19), math.log(21), dtype=torch.float64), 1e-4)
    patterns = [Set(name, clean) for name in clean]
    assert losses(model, ids, [without, *patterns])[:, 21:].max() < 1e-6
    # the later head's write is read by the output alone, so there both kinds agree
    last = Scale("blocks.1.attn.z", 0.0, at=At(head=0))
    close(losses(model, ids, [last]), losses(model, ids, [last, *patterns]))
    close(losses(model, ids, [last]), torch.full((2, 40), math.log(21), dtype=torch.float64))


def test_a_redundant_head_hides_the_loss_of_the_other() -> None:
    model, ids = induction_model(redundant=True), repeated()
    close(model(ids), induction_model()(ids))
    heads = [Scale("blocks.1.attn.z", 0.0, at=At(head=head)) for head in (0, 1)]
    for head in heads:
        assert losses(model, ids, [head])[:, 21:].max() < 1e-4
    assert losses(model, ids, heads)[:, 21:].min() > 3
    done = run(model, ids[:, :-1], read=[direct_logit_attribution])
    split = direct_logit_attribution(done, answer=int(ids[0, -1]))
    adds, whole = [float(split[label]) for label in ("L1H0", "L1H1")], float(split.total)
    assert adds == pytest.approx([whole / 2] * 2)


@pytest.mark.parametrize("build", [induction_model, pointer_model])
def test_the_logit_is_the_induction_heads_alone(build: Callable[[], Decoder]) -> None:
    model, ids = rotated(build()), repeated()
    done = run(model, ids[:, :-1], read=[direct_logit_attribution, source_effects])
    split = direct_logit_attribution(done, answer=int(ids[0, -1]))
    assert float(split["L1H0"]) == pytest.approx(50.0, rel=1e-4)
    assert max(abs(float(split[c.label])) for c in split.components if c.label != "L1H0") < 1e-9
    # taken from where the answer stood before
    taken = source_effects(done, answer=int(ids[0, -1]))["L1H0"]
    assert float(taken.select(key=20)) == pytest.approx(50.0, rel=1e-4)


@pytest.mark.parametrize("share", [0.01, 0.3])
def test_one_layer_with_smeared_keys_completes_repetitions(share: float) -> None:
    model, ids = smeared_induction_model(share=share, gamma=120.0), repeated(22, batch=3, gap=True)
    found = losses(model, ids)
    close(found[:, :21], torch.full((3, 21), math.log(22), dtype=torch.float64), 1e-3)
    assert found[:, 22:].max() < 1e-6
    scores = run(model, ids, read=["*.scores"])["blocks.0.attn.scores"].values[0, 0]
    q = torch.arange(23, 42)
    for key, expected in ((q - 19, 1 - share), (q - 20, share), (q, share), (0, 0.5), (1, (1 - share) / 2)):
        close(scores[q, key], torch.full((19,), 120 * expected, dtype=torch.float64))


def test_the_same_layer_with_keys_that_are_not_mixed_repeats_the_current_token() -> None:
    found = losses(smeared_induction_model(share=1.0), repeated(22, gap=True))
    close(found[:, 22:], torch.full((1, 19), 50.0, dtype=torch.float64), 1e-3)
    with pytest.raises(ConfigError, match=r"share=0\.0 must be above 0 and at most 1"):
        smeared_induction_model(share=0.0)


# tables ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("d_model", [None, 6, 7])
def test_a_bigram_model_is_its_table(d_model: int | None) -> None:
    table = random_table(7)
    model = bigram_model(table, d_model=d_model)
    assert model.config.d_model == (d_model or 7)
    close(model(torch.arange(7)[None])[0].softmax(-1), table)


def test_a_bigram_model_with_too_narrow_a_stream_is_another_table() -> None:
    table = random_table(7)
    found = bigram_model(table, d_model=5)(torch.arange(7)[None])[0].softmax(-1)
    assert (found - table).abs().max() > 0.01


def test_impossible_tokens_have_the_floor_as_logit() -> None:
    model = bigram_model(torch.eye(3, dtype=torch.float64), floor=-40.0)
    close(model(torch.tensor([[1]]))[0, 0], torch.tensor([-40.0, 0.0, -40.0]).double())


@pytest.mark.parametrize("d_model", [None, 5])
def test_the_loss_of_a_markov_model_on_its_chain_is_the_entropy_rate(d_model: int | None) -> None:
    chain = Markov(n_symbols=5, seed=2, batch_size=256, length=64)
    model = markov_model(chain, d_model=d_model)
    # in expectation exactly: rows of the table against what the model predicts, weighted as the chain visits them
    table = chain.table()
    predicted = model(torch.arange(1, 6)[None])[0].log_softmax(-1)[:, 1:].detach()
    weights = torch.linalg.matrix_power(table, 4096)[0]
    assert float(-(weights[:, None] * table * predicted).sum()) == pytest.approx(chain.optimal_loss(), abs=1e-9)
    # on drawn rows up to sampling: 16,000 draws with a standard deviation below 1
    batch = chain.build().batch(0)
    assert float(model.loss(batch).detach()) == pytest.approx(chain.optimal_loss(), abs=0.03)
    assert model.require_tokenizer().tokens(range(6)) == chain.symbols()


@in_one_pass
@pytest.mark.parametrize("n_heads", [1, 2])
@pytest.mark.parametrize("d_head", [None, 2, 9])
def test_the_circuits_of_a_skip_trigram_model_are_its_tables(n_heads: int, d_head: int | None) -> None:
    tables, bigram = keep_in_mind(n_heads), random_table(6)
    model = skip_trigram_model(tables, bigram, d_head=d_head)
    for subject in (model, rotated(model)):
        assert subject.require_tokenizer().tokens(range(6)) == tables.symbols
        for head in range(n_heads):
            qk, ov = circuits(subject, 0, head)
            close(qk, tables.attention[head])
            close(ov, tables.effect[head])
        close(subject.embed.weight @ subject.unembed.weight.T, bigram)


def test_any_tables_can_be_given() -> None:
    generator = torch.Generator().manual_seed(5)
    attention, effect = (torch.randn(3, 4, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    model = skip_trigram_model(SkipTrigramTables(list("abcd"), attention, effect))
    ids = torch.tensor([[0, 3, 1, 1, 2]])
    scores = attention[:, ids[0]][:, :, ids[0]].masked_fill(torch.ones(5, 5).triu(1).bool(), -math.inf)
    close(model(ids)[0], (scores.softmax(-1) @ effect[:, ids[0]]).sum(0))


def test_one_head_keeps_in_mind_and_in_bay() -> None:
    model = skip_trigram_model()
    rows = [run(model, f"keep bay mind {word}").logits for word in ("in", "at")]
    expected = torch.zeros(6, dtype=torch.float64)
    expected[[3, 5]] = 6 / (1 + math.exp(-20) + 3 * math.exp(-40))
    for logits in rows:
        assert logits is not None
        close(logits[0, -1], expected)
        # two answers it cannot tell apart cost ln 2 at the least
        assert -logits[0, -1].log_softmax(-1)[3] > math.log(2)


def test_two_heads_keep_in_mind_and_at_bay() -> None:
    model = skip_trigram_model(keep_in_mind(2))
    for word, right, wrong in (("in", 3, 5), ("at", 5, 3)):
        logits = run(model, f"keep bay mind {word}").logits
        assert logits is not None
        assert float(logits[0, -1, right]) == pytest.approx(6.0)
        assert float(logits[0, -1, wrong]) == pytest.approx(0.0, abs=1e-7)


def test_each_head_of_the_example_adds_a_product_of_destination_and_answer() -> None:
    model = skip_trigram_model(bigram=random_table(6))
    contributions = torch.empty(2, 2).double()
    for i, word in enumerate(("in", "at")):
        done = run(model, f"keep {word}", read=[direct_logit_attribution])
        for j, answer in enumerate(("mind", "bay")):
            contributions[i, j] = float(direct_logit_attribution(done, answer=answer)["L0H0"])
    assert float(contributions.min()) == pytest.approx(6.0)
    assert float(torch.linalg.det(contributions)) == pytest.approx(0.0, abs=1e-9)


# positions ------------------------------------------------------------------------------------------------------------


def test_the_virtual_head_predicts_the_token_two_back() -> None:
    model = virtual_head_model()
    ids = random_ids(model, 24)
    close(model(ids)[0, 2:], 30 * F.one_hot(ids[0, :-2], 10).double())
    done = run(model, ids, read=["*.pattern"])
    first, second = (done[f"blocks.{i}.attn.pattern"].values[0, 0] for i in range(2))
    two_back = torch.ones(22, dtype=torch.float64).diag(-2)[2:]
    close((second @ first)[2:], two_back)


def test_the_virtual_head_composes_values_and_nothing_else() -> None:
    for vocab in (10, 7):
        found = composition(rotated(virtual_head_model(vocab)), (0, 0), (1, 0))
        assert found["V"] == pytest.approx(1 / math.sqrt(vocab))
        assert max(found["Q"], found["K"]) < 1e-12
    assert composition(virtual_head_model(), (0, 0), (1, 0))["V"] == pytest.approx(0.3162, abs=5e-5)


def test_only_paths_through_both_heads_reach_the_output_of_the_virtual_head() -> None:
    model = virtual_head_model()
    ids = random_ids(model, 12)
    clean = run(model, ids, read=["*.pattern"])
    for layer in (0, 1):
        # with the patterns kept, what is left are the paths around this head: orders zero and one
        kept = [Set(name, clean) for name in clean]
        left = run(model, ids, edit=[*kept, Scale(f"blocks.{layer}.attn.z", 0.0)]).logits
        assert left is not None and left.abs().max() == 0
    first, second = matrices(model, 0), matrices(model, 1)
    composed = first.value @ first.output @ second.value @ second.output
    close(model.embed.weight @ composed @ model.unembed.weight.T, 30 * torch.eye(10, dtype=torch.float64))


ROPES = [Rope(), Rope(pairing="interleaved"), Rope(fraction=0.5), Rope(base=500.0, pairing="interleaved", fraction=0.5)]


@in_one_pass
@pytest.mark.parametrize("rope", ROPES, ids=lambda r: f"{r.pairing}-{r.fraction}-{r.base:g}")
@pytest.mark.parametrize("offset", [1, 3])
def test_the_rotary_head_scores_distance_by_the_formula(rope: Rope, offset: int) -> None:
    model = rope_model(offset=offset, rope=rope, gain=60.0)
    done = run(model, random_ids(model, 128), read=["*.scores"])
    distance = torch.arange(128)[:, None] - torch.arange(128)[None]
    frequencies = rope.frequencies(32)[:4]
    expected = 60 * ((distance - offset)[..., None] * frequencies).cos().sum(-1)
    seen = distance >= 0
    close(done["blocks.0.attn.scores"].values[0, 0][seen], expected[seen])


def test_the_rotary_head_looks_one_back_at_any_length_and_copies() -> None:
    model = rope_model()
    ids = random_ids(model, 128)
    done = run(model, ids, read=["*.pattern", "*.scores"])
    close(done["blocks.0.attn.pattern"].values[0, 0].diagonal(-1), torch.ones(127, dtype=torch.float64))
    best, second = done["blocks.0.attn.scores"].values[0, 0, -1].topk(2).values
    assert float(best - second) > 38
    assert done.logits is not None
    close(done.logits[0, 1:], 50 * F.one_hot(ids[0, :-1], 21).double())


# decoys ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("turn", [False, True])
def test_a_silent_random_head_has_the_largest_norms_and_no_effect(turn: bool) -> None:
    model, ids = rotated(induction_model()) if turn else induction_model(), repeated()
    planted = plant(model, 0, random_head(model, 0, size=1000.0))
    close(planted(ids), model(ids))
    ov, qk = ([(h.value @ h.output, h.query @ h.key.T)[i].norm() for h in heads(planted, 0)] for i in range(2))
    assert ov[2] > 5 * max(ov[:2]) and qk[2] > 2 * max(qk[:2])
    split = direct_logit_attribution(run(planted, ids[:, :-1], read=[direct_logit_attribution]), answer=int(ids[0, -1]))
    assert abs(float(split["L0H2"])) < 1e-6
    assert float(split["L1H0"]) == pytest.approx(50.0, rel=1e-4)


def heads(model: Decoder, layer: int) -> list[HeadMatrices]:
    attn: Any = model.stack.blocks[layer].attn
    return [matrices(model, layer, h) for h in range(attn.dims.n_heads)]


def test_a_random_head_composes_like_a_random_matrix_whatever_its_size() -> None:
    model = induction_model()
    found = [
        composition(plant(model, 0, random_head(model, 0, size=10.0**seed, seed=seed)), (0, 2), (1, 0))
        for seed in range(4)
    ]
    mean = {kind: sum(f[kind] for f in found) / 4 for kind in "QKV"}
    for value in mean.values():
        assert value == pytest.approx(1 / math.sqrt(104), rel=0.2)
    # and so less than the head that matters
    assert composition(model, (0, 0), (1, 0))["K"] > 1.5 * max(mean.values())


def test_a_random_head_that_is_not_silent_shakes_the_model() -> None:
    model, ids = induction_model(), repeated()
    planted = plant(model, 0, random_head(model, 0, silent=False))
    assert (planted(ids) - model(ids)).abs().max() > 1


@pytest.mark.parametrize("turn", [False, True])
def test_a_resting_copier_copies_by_its_weights_and_never_in_fact(turn: bool) -> None:
    model, ids = rotated(induction_model()) if turn else induction_model(), repeated()
    planted = plant(model, 1, resting_copier(model, 1))
    _, real = circuits(planted, 1, 0)
    qk, ov = circuits(planted, 1, 2)
    close(ov, real)
    expected = torch.zeros(21, 21, dtype=torch.float64)
    expected[:, 0] = 60.0
    close(qk, expected)
    close(planted(ids), model(ids))
    done = run(
        planted,
        ids[:, :-1],
        read=[direct_logit_attribution, head_roles],
    )
    assert abs(float(direct_logit_attribution(done, answer=int(ids[0, -1]))["L1H2"])) < 1e-9
    scores = head_roles(done).scores
    assert float(scores.select(head="L1H2", role="first_token").values) == pytest.approx(1.0)
    assert float(scores.select(head="L1H2", role="induction").values) < 1e-9


def test_planting_a_head_keeps_the_others_and_the_original() -> None:
    model, ids = rope_model(), torch.tensor([[0, 3, 5, 2]])
    before = model(ids)
    # a second copy of the same head doubles the logits
    close(plant(model, 0, matrices(model, 0))(ids), 2 * before)
    close(model(ids), before)


# what is refused ------------------------------------------------------------------------------------------------------


def test_a_head_of_the_wrong_shape_is_refused_with_the_right_one() -> None:
    with pytest.raises(ConfigError, match=r"layer 0 takes \[\(104, 41\), \(104, 41\), \(104, 41\), \(41, 104\)\]"):
        plant(induction_model(), 0, HeadMatrices.zero(104, 40))


@pytest.mark.parametrize("kwargs", [{"bias": True}, {"n_kv_heads": 1}, {"positions": Alibi()}], ids=str)
def test_heads_are_planted_among_plain_ones_only(kwargs: dict[str, Any]) -> None:
    layer = block(n_heads=2, d_head=4, norm=NoNorm(), **kwargs)
    model = DecoderConfig(5, 8, (layer,), max_len=8).build().double()
    with pytest.raises(ConfigError, match="it takes plain heads only"):
        plant(model, 0, HeadMatrices.zero(8, 4))


@pytest.mark.parametrize(
    "config",
    [
        DecoderConfig(5, 8, (block(n_heads=2),), max_len=8, final_norm=NoNorm()),
        DecoderConfig(5, 8, (block(n_heads=2, norm=NoNorm()),), max_len=8),
        DecoderConfig(5, 8, (), max_len=8, final_norm=NoNorm(), positions=Sinusoidal()),
    ],
    ids=["norm", "final norm", "sinusoidal"],
)
def test_what_knows_its_coordinates_is_not_rotated(config: DecoderConfig) -> None:
    with pytest.raises(ConfigError, match="go by the coordinates of the stream"):
        rotated(config.build())


def test_tables_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match="of sum one; sums are 2 to 2"):
        bigram_model(torch.ones(2, 2))
    with pytest.raises(ConfigError, match="d_model=4 must be in 1 to 3"):
        bigram_model(random_table(3), d_model=4)
    with pytest.raises(ConfigError, match="looks one symbol back, the chain looks 2 back"):
        markov_model(Markov(order=2))
    with pytest.raises(ConfigError, match="an attention table has rank 2, which d_head=1 cannot carry"):
        skip_trigram_model(d_head=1)
    with pytest.raises(ConfigError, match="6 symbols need 6 by 6"):
        skip_trigram_model(bigram=torch.zeros(5, 5))
    with pytest.raises(ConfigError, match="one head has the bug, two have not; found n_heads=3"):
        keep_in_mind(3)


def test_more_rotary_pairs_than_there_are_is_refused() -> None:
    with pytest.raises(ConfigError, match="n_pairs=4, but of d_head=8 only 2 pairs turn"):
        rope_model(d_head=8, rope=Rope(fraction=0.5))


def test_a_copier_needs_room_for_every_token() -> None:
    model = DecoderConfig(
        9, 8, (block(n_heads=1, d_head=9, norm=NoNorm()),), max_len=8, positions=Learned(), final_norm=NoNorm()
    ).build()
    with pytest.raises(ConfigError, match="9 tokens need values at least as wide"):
        resting_copier(model, 0)


@pytest.mark.parametrize("bias", [False, True])
def test_a_rotation_takes_mlps_gates_and_biases_along(bias: bool) -> None:
    merges = [Merge(bias=bias), Merge(bias=bias, gate="sigmoid")]
    layers = tuple(
        block(n_heads=2, norm=NoNorm(), mlp=Mlp(6, gated=i > 0, bias=bias), merge=merge, bias=bias)
        for i, merge in enumerate(merges)
    )
    config = DecoderConfig(7, 8, layers, max_len=6, positions=Learned(), final_norm=NoNorm(), tied=bias)
    model = randomise(config.build().double().eval())
    ids = torch.tensor([[1, 2, 3, 4]])
    close(rotated(model)(ids), model(ids))


def test_an_mlp_of_matrices_multiplies_what_its_gate_lets_through():
    blank, mlp = (
        HeadMatrices.zero(3, 1),
        MlpMatrices(*(torch.zeros(shape).double() for shape in ((3, 1), (3, 1), (1, 3)))),
    )
    mlp.gate[0, 0] = mlp.input[1, 0] = mlp.output[0, 2] = 1
    embed = torch.tensor([[2.0, 5.0, 0.0], [-2.0, 5.0, 0.0]]).double()
    model = assemble(
        embed, torch.eye(3).double(), [[blank]], symbols=["a", "b"], outputs=[*"xyz"], max_len=2, mlps=[mlp]
    )
    assert model(torch.tensor([[0, 1]])).tolist() == [[[2, 5, 10], [-2, 5, 0]]]
    with pytest.raises(ConfigError, match="found 1 for 2 layers"):
        assemble(embed, torch.eye(3).double(), [[blank]] * 2, symbols=["a", "b"], max_len=2, mlps=[mlp])
