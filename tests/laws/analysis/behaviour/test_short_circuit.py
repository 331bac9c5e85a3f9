"""Short-circuited attention: the identity as pattern, the same in one pass and step by step, blind to other tokens."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from glassformer.analysis.behaviour import regenerate, short_circuit, short_circuit_edits
from glassformer.attention import Linear, Softmax
from glassformer.data import PlantedRows
from glassformer.data.batch import next_token_batch
from glassformer.errors import AnalysisUnavailable, NoPattern, ShapeMismatch
from glassformer.handmade import induction_model
from glassformer.models import GREEDY, Mlp, block, generate
from glassformer.testing import close
from glassformer.testing.applies import made as made_by_group
from glassformer.testing.layers import randomise
from glassformer.testing.models import ARCHITECTURES, Subject, subject
from glassformer.trace import Add, Apply, At, Tape
from one_pass import in_one_pass

DECODERS = sorted(name for name, config in ARCHITECTURES.items() if config.kind == "decoder")
TRANSLATORS = sorted(set(ARCHITECTURES) - set(DECODERS))


def attention_paths(model: Any, layer: int) -> list[str]:
    return [f"blocks.{layer}.{name}" for name in model.stack.blocks[layer].names if name.startswith("attn")]


def identity(pattern: Tensor) -> Tensor:
    eye = torch.eye(pattern.shape[-1], dtype=pattern.dtype)
    return eye[-pattern.shape[-2] :].expand_as(pattern)


def logits(given: Subject, edits: Any) -> Tensor:
    return given(given.tape(edit=edits))


@pytest.mark.parametrize("name", DECODERS)
def test_it_is_the_identity_in_place_of_the_pattern(name: str) -> None:
    given = subject(name)
    for layer in range(2):
        paths = attention_paths(given.model, layer)
        expected = logits(given, [Apply(f"{path}.pattern", identity) for path in paths])
        close(logits(given, short_circuit_edits(given.model, [layer])), expected)
        assert not torch.allclose(expected, given())


@pytest.mark.parametrize("name", DECODERS)
def test_gradients_pass_as_through_the_identity_pattern(name: str) -> None:
    given = subject(name)
    found = []
    for edits in (short_circuit_edits(given.model, [0]), [Apply("blocks.0.attn.pattern", identity)]):
        given.model.zero_grad()
        tape = Tape(given.model, edit=edits, grad=True)
        given(tape).square().mean().backward()
        # queries and keys get none, and where they are made by parameters of their own, these have no gradient at all
        found.append({n: p.grad for n, p in given.model.named_parameters() if p.grad is not None and p.grad.any()})
    assert found[0].keys() == found[1].keys()
    for parameter, gradient in found[0].items():
        close(gradient, found[1][parameter])


@pytest.mark.parametrize("name", DECODERS)
def test_prefill_and_cached_decoding_agree(name: str) -> None:
    given = subject(name)
    (tokens,) = given.inputs
    for layers in ([0], [1], [0, 1]):
        edits = short_circuit_edits(given.model, layers)
        whole = logits(given, edits)
        state = given.model.begin(len(tokens))
        parts = []
        for part in tokens.split([3, 1, 1, 2], dim=1):
            out, state = given.model(part, state=state, tape=Tape(given.model, edit=edits))
            parts.append(out)
        close(torch.cat(parts, 1), whole)


@pytest.mark.parametrize("name", DECODERS)
def test_regeneration_is_greedy_generation_of_the_edited_model(name: str) -> None:
    given = subject(name)
    edits = short_circuit_edits(given.model, [1])
    tokens = given.inputs[0][:, :3]
    made = regenerate(given.model, tokens, 4, edits)
    for _ in range(4):
        nearest = given.model(tokens, tape=Tape(given.model, edit=edits))[:, -1:].argmax(-1)
        tokens = torch.cat([tokens, nearest], 1)
    assert torch.equal(made, tokens[:, 3:])


def test_positions_of_edits_are_those_of_the_whole_text_while_it_is_regenerated() -> None:
    given = subject("gpt2")
    tokens, site = given.inputs[0][:, :3], "blocks.0.resid_post"
    push = torch.arange(16.0).double()
    for places in (0, [1, 4], slice(4, None)):
        edit = Add(site, push, at=At(pos=places))
        made = regenerate(given.model, tokens, 4, [edit])
        assert made.tolist() == [
            list(row) for row in generate(given.model, tokens, GREEDY, max_new_tokens=4, edit=edit).tokens
        ]
    with pytest.raises(ShapeMismatch, match="no place in a text that grows"):
        regenerate(given.model, tokens, 4, [Add(site, push, at=At(pos=-1))])


@pytest.mark.parametrize("name", DECODERS)
def test_a_text_of_one_token_is_left_as_it_was_where_rows_sum_to_one(name: str) -> None:
    given = subject(name, length=1)
    mixers = [[block.part(n).mixer for n in block.names if n.startswith("attn")] for block in given.model.stack.blocks]
    layers = [i for i, found in enumerate(mixers) if all(mixer.traits.rows_sum_to_one for mixer in found)]
    # kernel attention adds a small number to its normaliser
    tolerance = 1e-4 if any(mixer.config.kind == "linear" for found in mixers for mixer in found) else None
    close(logits(given, short_circuit_edits(given.model, layers)), given(), tolerance)
    assert (not layers) == (name == "differential")


@pytest.mark.parametrize("name", DECODERS)
def test_with_all_layers_short_circuited_no_other_token_matters(name: str) -> None:
    given = subject(name)
    edits = short_circuit_edits(given.model, [0, 1])
    changed = given.inputs[0].clone()
    changed[:, [0, 2, 5]] = (changed[:, [0, 2, 5]] + 1) % given.model.config.vocab_size
    before = logits(given, edits)
    after = given.model(changed, tape=Tape(given.model, edit=edits))
    same = [1, 3, 4, 6]
    if name == "experts":
        # an expert runs for as many rows at once as choose it, and their number shows in the last digit
        close(before[:, same], after[:, same], 1e-12)
    else:
        assert torch.equal(before[:, same], after[:, same])
    assert not torch.equal(given()[:, same], given.model(changed)[:, same])


@in_one_pass
@pytest.mark.parametrize("name", TRANSLATORS)
@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_encoders_and_decoders_of_translators_are_short_circuited_alike(name: str, stack: str) -> None:
    given = subject(name)
    edits = short_circuit_edits(given.model, [0, 1], stack=stack)
    expected = [Apply(f"{stack}.blocks.{i}.attn.pattern", identity) for i in range(2)]
    close(logits(given, edits), logits(given, expected))


def test_padded_and_packed_rows_read_as_alone() -> None:
    given = subject("llama")
    edits, (tokens,) = short_circuit_edits(given.model, [0]), given.inputs
    alone = given.model(tokens[:, :4], tape=Tape(given.model, edit=edits))
    padded = given.model(tokens, lengths=torch.tensor([4, 4]), tape=Tape(given.model, edit=edits))
    close(padded[:, :4], alone)
    documents = torch.tensor([[0] * 4 + [1] * 3] * 2)
    packed = given.model(tokens, documents=documents, tape=Tape(given.model, edit=edits))
    close(packed[:, :4], alone)


def planted(model: Any, n: int = 6, seed: int = 0) -> PlantedRows:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, model.config.vocab_size, (n, 7), generator=generator)
    return PlantedRows(ids, torch.tensor([0, 5] * (n // 2)), 3)


def test_a_suffix_the_model_would_write_anyway_is_an_exact_match() -> None:
    given = subject("llama", dtype=torch.float64)
    rows = planted(given.model)
    made = regenerate(given.model, rows.ids[:, :3], 4)
    ids = rows.ids.clone()
    ids[rows.counts == 5, 3:] = made[rows.counts == 5]
    # the controls: wrong in the last place only
    ids[rows.counts == 0, 3:] = made[rows.counts == 0]
    ids[rows.counts == 0, -1] = (ids[rows.counts == 0, -1] + 1) % 11
    novel = next_token_batch(given.inputs[0])
    found = short_circuit(given.model, PlantedRows(ids, rows.counts, 3), novel)
    assert found.exact_match.select(layers="none").values.tolist() == [0.0, 1.0]
    assert found.token_accuracy.select(layers="none").values.tolist() == [0.75, 1.0]
    assert found.exact_match.coords["layers"] == ["none", "layer 0", "layer 1", "all"]
    assert found.sequences.values.tolist() == [3, 3]
    assert (found.prefix, found.suffix, found.novel_tokens) == (3, 4, 12)


def test_a_circuit_of_two_layers_recites_only_with_both_of_them() -> None:
    model = induction_model()
    random = torch.Generator().manual_seed(0)
    units = torch.stack([torch.randperm(20, generator=random)[:8] + 1 for _ in range(10)])
    # a prefix that shows the whole sequence once and begins it again: the rest is known by induction alone
    ids = torch.cat([torch.zeros(10, 1, dtype=torch.int64), units, units], 1)
    rows = PlantedRows(ids, torch.ones(10, dtype=torch.int64), 10)
    found = short_circuit(model, rows, next_token_batch(ids), sets={"first": [0], "last": [-1], "both": [0, 1]})
    assert found.exact_match.coords["layers"] == ["none", "first", "last", "both"]
    assert found.exact_match.values[:, 0].tolist() == [1, 0, 0, 0]
    assert found.token_accuracy.values[0] == 1 and (found.token_accuracy.values[1:] < 0.5).all()
    # as the construction says: nothing to lose in the second copy, ln V everywhere without the circuit
    close(found.suffix_loss.values[0, 0], torch.tensor(0.0, dtype=found.suffix_loss.values.dtype), 1e-4)
    assert (found.suffix_loss.values[1:] > 1).all() and (found.novel_loss_change.values[1:] > 0).all()


def test_losses_and_spreads_are_those_of_single_runs() -> None:
    given = subject("gpt2")
    rows, calls = planted(given.model), []
    novel = [next_token_batch(given.inputs[0]), next_token_batch(given.inputs[0][:1, :4])]
    found = short_circuit(given.model, rows, *novel, report=lambda done, total: calls.append((done, total)))
    assert calls == [(1, 4), (2, 4), (3, 4), (4, 4)]
    per_row = []
    for batch in novel:
        for tokens, targets in zip(batch.tokens, batch.targets):
            losses = []
            for edits in ([], short_circuit_edits(given.model, [1])):
                out = given.model(tokens[None], tape=Tape(given.model, edit=edits)).log_softmax(-1)[0]
                losses.append(-out.gather(-1, targets[:, None])[:, 0])
            per_row.append(torch.stack(losses, 1))
    losses = torch.cat(per_row)
    close(found.novel_loss.values[[0, 2]], losses.mean(0))
    close(found.novel_loss_change.values[2], losses.mean(0)[1] - losses.mean(0)[0])
    out = given.model(rows.ids[:, :-1]).log_softmax(-1).gather(-1, rows.ids[:, 1:, None])[..., 0]
    suffix = -out[:, 2:].mean(-1)
    expected = torch.stack([suffix[rows.counts == count].mean() for count in (0, 5)])
    close(found.suffix_loss.select(layers="none").values, expected)
    assert found.novel_loss_change_spread.values[0] == 0 and found.novel_loss_change_spread.values[2] > 0


def test_many_sequences_are_read_a_few_at_a_time() -> None:
    given = subject("llama")
    rows, novel = planted(given.model), next_token_batch(given.inputs[0])
    whole = short_circuit(given.model, rows, novel)
    parts = short_circuit(given.model, rows, novel, rows=4)
    close(parts.suffix_loss.values, whole.suffix_loss.values)
    assert torch.equal(parts.token_accuracy.values, whole.token_accuracy.values)


def test_what_is_found_can_be_tabled_saved_and_drawn(tmp_path: Path) -> None:
    given = subject("gpt2")
    found = short_circuit(given.model, planted(given.model), next_token_batch(given.inputs[0]))
    assert list(found.to_frame().columns) == ["layers", "count", "value"] and len(found.to_frame()) == 8
    assert '"novel_loss_change"' in found.save(tmp_path / "found.json").read_text()
    assert len(found.plot("exact_match", "novel_loss").axes) >= 2


def test_what_cannot_be_short_circuited_is_refused_by_name() -> None:
    given, translator = subject("llama"), subject("translator_post")
    rows, novel = planted(given.model), next_token_batch(given.inputs[0])
    with pytest.raises(AnalysisUnavailable, match="no layer 2; there are 2, counted from 0"):
        short_circuit_edits(given.model, [2])
    with pytest.raises(AnalysisUnavailable, match=r'no stack "" in this model. Stacks: "encoder", "decoder"'):
        short_circuit_edits(translator.model, [0])
    with pytest.raises(AnalysisUnavailable, match="lets a decoder go on from a prefix"):
        short_circuit(translator.model, rows, novel)
    with pytest.raises(ShapeMismatch, match=r"batches of new text \(found 0\)"):
        short_circuit(given.model, rows)
    with pytest.raises(ShapeMismatch, match=r"shorter than the 7 tokens of a sequence \(found 7\)"):
        short_circuit(given.model, rows._replace(prefix=7), novel)
    config = ARCHITECTURES["llama"]
    mlp_only = config.replace(layers=(block(n_heads=2).replace(parts=(Mlp(8),)),)).build()  # type: ignore[union-attr]
    with pytest.raises(AnalysisUnavailable, match="layer 0 has no self-attention"):
        short_circuit_edits(mlp_only, [0])


def test_a_mechanism_without_a_pattern_is_refused_with_what_works(monkeypatch: pytest.MonkeyPatch) -> None:
    import dataclasses

    given = subject("linear")
    for layer in given.model.stack.blocks:
        mixer = layer.part("attn").mixer
        monkeypatch.setattr(mixer, "traits", dataclasses.replace(mixer.traits, linear_in_value="no"))
    with pytest.raises(NoPattern, match=r'layer 1 uses "linear".*\n.*Set\("blocks.1.attn.z", 0.0\)'):
        short_circuit_edits(given.model, [-1])


@pytest.mark.parametrize("mixer", [Softmax(), Linear()])
def test_a_block_with_two_attention_parts_is_short_circuited_in_both(mixer: Any) -> None:
    layer = block(mixer, n_heads=2)
    config = ARCHITECTURES["llama"].replace(layers=(layer.replace(parts=layer.parts * 2),))
    given = subject("llama")
    model = randomise(config.build().double().eval(), 3)
    tokens = given.inputs[0]
    out = model(tokens, tape=Tape(model, edit=short_circuit_edits(model, [0])))
    close(out[:, -1:], model(tokens[:, -1:], tape=Tape(model, edit=short_circuit_edits(model, [0]))))


def test_values_that_are_made_anew_at_each_step_are_short_circuited_as_in_one_pass() -> None:
    given = made_by_group()["attention layer"]["latent"]()
    (tokens,) = given.inputs
    edits = short_circuit_edits(given.model, [0, 1])
    found = regenerate(given.model, tokens[:, :3], 3, edits)
    text = tokens[:, :3]
    for _ in range(3):
        again = given.model(text, tape=Tape(given.model, edit=edits))
        text = torch.cat((text, again[:, -1:].argmax(-1)), 1)
    assert torch.equal(found, text[:, 3:])
