"""Models whose logits are of other tokens than they read, and encoder-decoders with a vocabulary for each side."""

import copy
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch

import glassformer as gf
from every_result import result
from glassformer import analysis, weights
from glassformer.analysis import vocabulary
from glassformer.analysis.learning.measures import sample
from glassformer.checkpoints.own import digest_of
from glassformer.cli.options import PromptOptions
from glassformer.cli.prompts import prompts_of
from glassformer.data import Batch, Copy, ModularAddition, ModularSum, Pair, Pairs, PlantedRows, Roles, Tokenizer
from glassformer.data.batch import next_token_batch
from glassformer.data.tokenizer import symbol_tokenizer
from glassformer.errors import AnalysisUnavailable, CheckpointError, ConfigError, DataError, TextError, TokenOutOfRange
from glassformer.handmade import HeadMatrices, assemble, resting_copier
from glassformer.models import DecoderConfig, LayerNorm, Mlp, ModelConfig, Sampling, block
from glassformer.models.accounting import count_flops, count_parameters
from glassformer.models.beam import beam_search
from glassformer.models.generate import generate
from glassformer.testing import close
from glassformer.testing.models import ARCHITECTURES, ENCODERS, subject
from glassformer.training import OptimConfig, TrainConfig, train
from one_pass import in_one_pass
from pages import Opener

APART = ("classifier", "translator_apart")
LETTERS, CLASSES = list("abcd"), ["low", "high", "none"]


def named() -> Any:
    """Return a classifier with names on both sides: of 11 tokens and 7 outputs."""
    model = subject("classifier").model
    model.tokenizer = symbol_tokenizer([f"in{i}" for i in range(11)])
    model.output_tokenizer = symbol_tokenizer([f"out{i}" for i in range(7)])
    return model


def translator() -> Any:
    model = subject("translator_apart").model
    model.tokenizer = symbol_tokenizer([f"to{i}" for i in range(11)])
    model.source_tokenizer = symbol_tokenizer([f"from{i}" for i in range(9)])
    return model


@pytest.mark.parametrize("name", [*ARCHITECTURES, *ENCODERS])
def test_a_config_written_before_vocabularies_had_sizes_of_their_own_is_read_and_keeps_its_digest(name: str) -> None:
    config = (ARCHITECTURES | ENCODERS)[name].replace(output_vocab_size=None)
    if config.kind == "encoder_decoder":
        config = config.replace(source_vocab_size=None)
    written = config.to_dict()
    older = {key: value for key, value in written.items() if key not in ("output_vocab_size", "source_vocab_size")}
    assert ModelConfig.from_dict(older) == config and config.n_outputs == config.vocab_size
    assert len(older) < len(written)


def test_a_folder_written_before_loads_with_its_digests(tmp_path: Path) -> None:
    model = subject("gpt2").model
    gf.save(model, tmp_path)
    said = json.loads((tmp_path / "config.json").read_text())
    del said["model"]["output_vocab_size"]
    said["sha256"]["model"] = digest_of(said["model"])
    (tmp_path / "config.json").write_text(json.dumps(said))
    close(gf.load(tmp_path).unembed.weight.double(), model.unembed.weight)


@in_one_pass
@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("gpt2", {"output_vocab_size": 7}, "Set tied=False, or leave output_vocab_size out"),
        ("masked_post", {"output_vocab_size": 7}, "Set tied=False, or leave output_vocab_size out"),
        ("translator_post", {"output_vocab_size": 7}, "Set tied=False, or leave output_vocab_size out"),
        ("translator_post", {"source_vocab_size": 7}, "Set shared=False, or leave source_vocab_size out"),
        ("classifier", {"output_vocab_size": 0}, "output_vocab_size must be at least 1"),
        ("translator_apart", {"source_vocab_size": 0}, "source_vocab_size must be at least 1"),
        ("masked_pre", {"output_vocab_size": 7, "predicts": False, "readout": None}, "predicts=False leaves nothing"),
    ],
)
def test_one_matrix_for_two_vocabularies_is_refused(name: str, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        (ARCHITECTURES | ENCODERS)[name].replace(**changes)


def test_a_vocabulary_of_equal_size_is_one_of_its_own_all_the_same() -> None:
    model = ARCHITECTURES["classifier"].replace(output_vocab_size=11).build()
    assert not model.one_vocabulary()
    with pytest.raises(AnalysisUnavailable, match=r"\(11\) .* \(11\)"):
        model.require_one_vocabulary("this")


def test_parameters_and_work_of_the_unembedding_are_those_of_the_outputs() -> None:
    config = ARCHITECTURES["classifier"]
    wide = config.replace(output_vocab_size=None)
    assert count_parameters(config)["unembedding"] == 7 * 16 and count_parameters(wide)["unembedding"] == 11 * 16
    assert count_parameters(config)["embedding"] == 11 * 16 == count_parameters(wide)["embedding"]
    assert count_flops(config, 5)["unembedding"] == 2 * 5 * 16 * 7
    assert weights.of(config.build()).U.shape == (16, 7) == weights.matrices(config.build()).U.shape


def test_outputs_may_be_of_an_encoder_and_of_the_decoder_of_a_pair() -> None:
    encoder = ENCODERS["masked_pre"].replace(output_vocab_size=7).build()
    assert encoder(torch.tensor([[1, 10]])).shape == (1, 2, 7)
    pair = ARCHITECTURES["translator_apart"].replace(output_vocab_size=13, tied=False).build()
    assert pair(torch.tensor([[8, 0]]), torch.tensor([[10]])).shape == (1, 1, 13)


def test_names_of_every_side_are_saved_and_loaded(tmp_path: Path) -> None:
    for i, model in enumerate((named(), translator())):
        loaded = gf.load(gf.save(model, tmp_path / str(i)))
        for side in ("tokenizer", "output_tokenizer", "source_tokenizer"):
            assert getattr(loaded, side).to_json() == getattr(model, side).to_json()
    assert named().output_tokenizer.token(6) == "out6" != translator().source_tokenizer.token(6) == "from6"


@pytest.mark.parametrize("name", ["output_tokenizer.json", "tokenizer.json"])
def test_a_damaged_tokenizer_of_either_side_is_told(name: str, tmp_path: Path) -> None:
    gf.save(named(), tmp_path)
    path = tmp_path / name
    path.write_text(path.read_text().replace("3", "4"))
    with pytest.raises(CheckpointError, match="does not match the digest"):
        gf.load(tmp_path)


@pytest.mark.parametrize(
    ("make", "side", "said"),
    [
        (named, "output", "11 tokens, the model output_vocab_size=7"),
        (translator, "source", "11 tokens, the model source_vocab_size=9"),
    ],
)
def test_a_tokenizer_larger_than_its_side_is_refused(make: Any, side: str, said: str, tmp_path: Path) -> None:
    model = make()
    setattr(model, f"{side}_tokenizer", model.tokenizer)
    gf.save(model, tmp_path)
    with pytest.raises(CheckpointError, match=said):
        gf.load(tmp_path)


def test_a_tokenizer_of_a_vocabulary_that_the_model_has_not_is_refused(tmp_path: Path) -> None:
    model = subject("gpt2").model
    model.tokenizer = symbol_tokenizer(LETTERS)
    gf.save(model, tmp_path)
    said = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "output_tokenizer.json").write_text(model.tokenizer.to_json())
    said["sha256"]["output_tokenizer.json"] = said["sha256"]["tokenizer.json"]
    (tmp_path / "config.json").write_text(json.dumps(said))
    with pytest.raises(CheckpointError, match="the model output_vocab_size=None"):
        gf.load(tmp_path)


def test_what_published_files_say_of_specials_is_kept_for_the_side_they_are_of(tmp_path: Path) -> None:
    model = translator()
    roles = Roles(eos=2, stops=(2,), end=(2,))
    assert model.source_tokenizer is not None
    model.source_tokenizer = Tokenizer.from_json(model.source_tokenizer.to_json(), roles)
    loaded = gf.load(gf.save(model, tmp_path))
    assert loaded.source_tokenizer is not None and loaded.source_tokenizer.published == roles
    assert loaded.require_tokenizer().published is None


def test_a_model_of_one_vocabulary_takes_no_second_tokenizer() -> None:
    model = subject("gpt2").model
    model.tokenizer = symbol_tokenizer(LETTERS)
    assert model.output_tokenizer is model.tokenizer is model.source_tokenizer
    with pytest.raises(ConfigError, match="set tokenizer"):
        model.output_tokenizer = symbol_tokenizer(CLASSES)
    with pytest.raises(ConfigError, match="set tokenizer"):
        subject("translator_post").model.source_tokenizer = symbol_tokenizer(CLASSES)


def test_a_converted_folder_of_ours_keeps_the_names_of_both_sides(tmp_path: Path) -> None:
    gf.save(named(), tmp_path / "one")
    gf.checkpoints.convert(tmp_path / "one", tmp_path / "two")
    outputs = gf.load(tmp_path / "two").output_tokenizer
    assert outputs is not None and outputs.token(3) == "out3"


def lens_model() -> Any:
    config = DecoderConfig(
        11,
        16,
        (block(n_heads=2, mlp=Mlp(), bias=True),),
        max_len=24,
        positions=gf.models.Learned(),
        final_norm=LayerNorm(),
        tied=False,
        unembed_bias=True,
        output_vocab_size=7,
    )
    return config.build(3).double().eval()


def test_transformer_lens_says_the_size_of_the_outputs_and_is_read_with_it(tmp_path: Path) -> None:
    model = lens_model()
    gf.save(model, tmp_path / "ours")
    gf.checkpoints.convert(tmp_path / "ours", tmp_path / "theirs", "transformer-lens")
    said = json.loads((tmp_path / "theirs" / "config.json").read_text())
    assert (said["d_vocab"], said["d_vocab_out"]) == (11, 7)
    ids = torch.tensor([[1, 10, 3]])
    again = gf.load(tmp_path / "theirs", dtype=torch.float64)
    assert again.config.output_vocab_size == 7
    close(again(ids), model(ids))


@pytest.mark.parametrize("layout", ["huggingface", "nanogpt", "llama2c"])
def test_a_layout_with_one_vocabulary_refuses_a_model_with_two(layout: str, tmp_path: Path) -> None:
    gf.save(lens_model(), tmp_path / "ours")
    with pytest.raises(CheckpointError):
        gf.checkpoints.convert(tmp_path / "ours", tmp_path / "theirs", layout)
    one = lens_model().config.replace(output_vocab_size=None)
    gf.save(one.build(), tmp_path / "one")
    if layout == "huggingface":
        gf.checkpoints.convert(tmp_path / "one", tmp_path / "theirs", layout)


def ids() -> torch.Tensor:
    return torch.tensor([[1, 2, 3, 1, 2, 3, 4, 5]])


NEED_ONE: dict[str, Callable[[Any], Any]] = {
    "generate": lambda m: generate(m, [[1]], max_new_tokens=2),
    "beam search": lambda m: beam_search(m, [[1]], max_new_tokens=2),
    "copying": analysis.from_weights.copying,
    "copying_rates": analysis.from_weights.copying_rates,
    "induction_circuits": analysis.from_weights.induction_circuits,
    "virtual_copying": lambda m: analysis.paths.virtual_copying(m, 0, 1),
    "virtual_heads": lambda m: analysis.paths.virtual_heads(m, ids()),
    "crossed_trigrams": lambda m: vocabulary.crossed_trigrams(m, [[1, 2, 3]], [1], [2], [3]),
    "bigrams of a text": lambda m: vocabulary.bigrams(m, text=torch.full((11, 11), 1 / 11)),
    "document_losses": lambda m: analysis.losses.document_losses(m, [[1, 2, 3]], 8),
    "ablate on ids": lambda m: analysis.causal.ablate(m, "L0H0", ids()),
    "suppression on ids": lambda m: analysis.behaviour.suppression(m, ids()),
    "attention_sinks": lambda m: analysis.behaviour.attention_sinks(m, ids()),
}


# all else that these are asked of is of models of one vocabulary
NEED_ONE_FIRST: dict[str, Callable[[Any], Any]] = {
    "short_circuit": lambda m: analysis.behaviour.short_circuit(m, PlantedRows(ids(), torch.tensor([1]), 3)),
    "crossed_cost": lambda m: vocabulary.crossed_cost(m, cast(Any, result("CrossedTrigrams")), ids()),
    "pairs of a task": lambda m: prompts_of(m, PromptOptions(task="induction")),
}


@pytest.mark.parametrize("name", NEED_ONE_FIRST)
def test_a_model_of_two_vocabularies_is_refused_before_anything_else_is_looked_at(name: str) -> None:
    with pytest.raises(AnalysisUnavailable, match=r"of one vocabulary \(11\) and its logits are of another \(7\)"):
        NEED_ONE_FIRST[name](subject("classifier").model)


@in_one_pass
@pytest.mark.parametrize("name", NEED_ONE)
def test_what_takes_both_ends_for_the_same_tokens_is_unavailable_and_says_so(name: str) -> None:
    with pytest.raises(AnalysisUnavailable, match=r"of one vocabulary \(11\) and its logits are of another \(7\)"):
        NEED_ONE[name](subject("classifier").model)


def test_the_same_is_available_where_both_ends_are_the_same_tokens() -> None:
    model = ARCHITECTURES["classifier"].replace(output_vocab_size=None).build().double().eval()
    for name in set(NEED_ONE) - {"crossed_trigrams"}:
        assert NEED_ONE[name](model) is not None, name


def test_what_needs_targets_takes_those_of_the_batch_and_checks_them() -> None:
    found = subject("classifier")
    batch = found.batch()
    losses = analysis.losses.loss_by_position(found.model, batch)
    wanted = -found.model(batch.tokens).log_softmax(-1).gather(-1, batch.targets[..., None])[..., 0].mean(0)
    close(losses.values, wanted.detach())
    wrong = dataclasses.replace(batch, targets=batch.targets + 5)
    for take in (lambda: analysis.losses.loss_by_position(found.model, wrong), lambda: gf.run(found.model, wrong)):
        with pytest.raises(TokenOutOfRange, match="outside what the model predicts: 0 to 6"):
            take()


def classified() -> Any:
    """Return a hand-made model: attending to `b` says `high`, `c` itself says `low`."""
    embed, unembed = torch.eye(5)[:4].double(), torch.zeros(3, 5).double()
    unembed[0, 2], unembed[1, 4] = 2.0, 1.0
    head = HeadMatrices.zero(5, 1, 1)
    head.query[:4, 0], head.key[1, 0], head.value[1, 0], head.output[0, 4] = 6.0, 1.0, 1.0, 3.0
    return assemble(embed, unembed, [[head]], symbols=LETTERS, outputs=CLASSES, max_len=8)


def test_tables_name_what_is_read_by_the_one_vocabulary_and_what_is_said_by_the_other() -> None:
    model = classified()
    assert vocabulary.token_pairs(model, "OV", k=1).table("L0H0", 1)[0][:2] == ("1:b", "1:high")
    assert vocabulary.token_pairs(model, "QK", k=1).table("L0H0", 1)[0][1] == "1:b"
    assert vocabulary.bigrams(model, k=1).table(2, 1)[0][0] == "0:low"
    found = vocabulary.token_circuits(model, "b", k=1)
    assert [found.output_names[i] for i in found.raised_tokens.values[0].tolist()] == ["1:high"]
    rule = vocabulary.skip_trigrams(model, k=1).table("L0H0", 1)[0][0]
    assert rule.startswith("1:b … ") and rule.endswith("-> 1:high")


@pytest.mark.browser
def test_a_page_of_pairs_names_what_is_read_and_what_is_said(opened: Opener) -> None:
    found = vocabulary.token_pairs(named(), heads=["L0H0"], circuit="OV", k=2)
    chips = opened([found]).locator("table.bars th .chip").all_inner_texts()
    assert chips and [chip.partition(":")[2].rstrip("0123456789") for chip in chips] == ["in", "out"] * (
        len(chips) // 2
    )


def test_answers_are_given_and_shown_by_the_names_of_the_outputs() -> None:
    model = classified()
    lens = analysis.lens.logit_lens(model, "b a", answer="high")
    assert lens.answer == 1 and int(lens.rank.values[-1]) == 1
    found = gf.explain(model, "b a")
    assert (found.answer.text, found.tokens[0].text) == ("high", "b")
    assert {c.text for c in found.next_token.candidates} == set(CLASSES)
    assert found.pipeline[-1].name == "probabilities" != gf.explain(subject("gpt2").model, [1, 2]).pipeline[-1].name
    assert any("3 tokens that are predicted are not the 4" in note.seen for note in found.notes)
    with pytest.raises(TextError, match="outside the vocabulary"):
        analysis.lens.logit_lens(model, "b a", answer="b")
    grid = analysis.lens.lens_grid(model, "b a", k=1)
    assert set(grid.words.values()) <= set(CLASSES)


def test_no_output_was_there_before_in_the_text() -> None:
    # `d` is the fourth of the tokens that are read, and there are three outputs
    plain, penalised = (
        gf.explain(classified(), "b d", sampling=Sampling(repetition_penalty=penalty)) for penalty in (1.0, 4.0)
    )
    assert plain.sampling is not None and penalised.sampling is not None
    assert penalised.sampling.steps[-1].candidates == plain.sampling.steps[-1].candidates


def test_what_layers_read_is_compared_for_tokens_that_are_no_outputs() -> None:
    model = ARCHITECTURES["attention_only"].replace(output_vocab_size=7).build().double().eval()
    one = ARCHITECTURES["attention_only"].build().double().eval()
    assert not model.one_vocabulary() and one.one_vocabulary()
    own = {name: value for name, value in one.state_dict().items() if name.startswith("unembed")}
    one.load_state_dict(model.state_dict() | own)
    found, expected = (analysis.from_weights.matching_trace(each) for each in (model, one))
    assert bool(found.ratio.values.isfinite().any())
    torch.testing.assert_close(found.ratio.values, expected.ratio.values, equal_nan=True)


def test_where_outputs_have_no_names_their_ids_are_shown() -> None:
    model = classified()
    model.output_tokenizer = None
    assert gf.explain(model, "b a").answer.text == "<1>"
    assert vocabulary.token_pairs(model, "OV", k=1).table("L0H0", 1)[0][:2] == ("1:b", "1:1")
    with pytest.raises(TextError, match="outputs have no names"):
        analysis.lens.logit_lens(model, "b a", answer="high")


def test_pairs_have_answers_of_the_outputs() -> None:
    pairs = Pairs((Pair("b a", "c a", "high", "low"),))
    found = pairs.encode(classified())
    assert (torch.as_tensor(found.answer).tolist(), torch.as_tensor(found.wrong).tolist()) == ([1], [0])
    with pytest.raises(DataError, match="answer's id 3 is outside the vocabulary of 3"):
        Pairs((Pair("b a", "c a", 3, 0),)).encode(classified())


def test_a_source_of_its_own_is_read_and_named_by_its_own_tokenizer() -> None:
    model = translator()
    done = gf.run(model, "from8 from2", target=[3, 10])
    assert done.source_tokens == ["from8", "from2"] and done.tokens == ["to3", "to10"]
    assert done.source_ids is not None and done.source_ids.tolist() == [[8, 2]]
    with pytest.raises(TokenOutOfRange, match="0 to 8"):
        gf.run(model, [9], target=[1])
    with pytest.raises(TokenOutOfRange, match="token id 9 is outside the vocabulary: 0 to 8"):
        generate(model, [[1]], source=[[9]])
    assert len(generate(model, [[1]], source=[[8, 1]], max_new_tokens=3).tokens[0]) == 3
    model.source_tokenizer = None
    with pytest.raises(TextError, match="no source_tokenizer"):
        gf.run(model, "from8", target=[1])


def test_circuits_say_that_nothing_is_copied_and_never_that_a_head_copies() -> None:
    for name in APART:
        model = subject(name).model
        found = analysis.reports.circuits(model)
        own = not model.one_vocabulary()
        assert found.model.output_vocab_size == (7 if own else None)
        said = " ".join([*found.findings, *(line for head in found.heads for line in (*head.verdict, *head.doubts))])
        assert ("no head can be said to copy" in said) == own
        if own:
            assert "copies:" not in said and "heads copy tokens" not in said and "is an induction head" not in said
            assert all(head.copying is None and head.copying_measured is None for head in found.heads)
            assert "copying by eigenvalues" in {missing.analysis for missing in found.unavailable}


def test_a_modular_sum_has_answers_that_are_no_tokens() -> None:
    data = ModularSum(batch_size=32, modulus=7).build()
    batch = data.batch(0)
    assert data.vocab_size == 8 and data.output_tokenizer.vocab_size == 7
    a, b, equals = batch.tokens.unbind(1)
    assert torch.equal(batch.targets[:, -1], (a + b) % 7) and bool((equals == 7).all())
    assert batch.weight.sum(1).tolist() == [1] * 32
    seen, heldout = (
        {tuple(sorted(row)) for i in range(20) for row in data.batch(i, split).tokens[:, :2].tolist()}
        for split in ("train", "heldout")
    )
    assert not seen & heldout


def recipe(**changes: Any) -> TrainConfig:
    model = DecoderConfig(
        6,
        64,
        (block(n_heads=2, mlp=Mlp(64, "relu")),),
        max_len=3,
        positions=gf.models.Learned(),
        tied=False,
        output_vocab_size=5,
    )
    return TrainConfig(
        model=model.replace(**changes),
        data=ModularSum(batch_size=64, modulus=5, heldout=0.0),
        evaluate=ModularSum(batch_size=64, modulus=5, heldout=0.3),
        optim=OptimConfig(lr=5e-3, warmup=10),
        steps=200,
        evaluate_every=200,
        save_every=200,
        evaluate_batches=1,
    )


@pytest.mark.full
def test_a_classifier_learns_modular_addition_and_its_run_keeps_the_names_of_both_sides(tmp_path: Path) -> None:
    model = train(recipe(), tmp_path)
    batch = ModularSum(batch_size=64, modulus=5, heldout=0.0).build().batch(999)
    assert (model(batch.tokens)[:, -1].argmax(-1) == batch.targets[:, -1]).double().mean() > 0.7
    loaded = gf.load(tmp_path)
    assert loaded.require_tokenizer().token(5) == "="
    assert loaded.output_tokenizer is not None and loaded.output_tokenizer.vocab_size == 5
    first = analysis.learning.read_history(tmp_path).model(0)
    assert first.output_tokenizer.token(4) == "4"


def test_training_refuses_data_whose_targets_the_model_has_no_outputs_for(tmp_path: Path) -> None:
    for changes, said in (
        ({"output_vocab_size": None}, "targets are of another vocabulary, of 5; the model has output_vocab_size=None"),
        ({"output_vocab_size": 4}, "output_vocab_size=4, the data 5"),
    ):
        with pytest.raises(ConfigError, match=said):
            train(recipe(**changes), tmp_path / str(len(changes)))
    data = ModularAddition(batch_size=4, modulus=5)
    with pytest.raises(ConfigError, match="targets are of the tokens it reads"):
        train(recipe(vocab_size=8, max_len=5).replace(data=data, evaluate=None), tmp_path / "other")
    assert not any(tmp_path.rglob("*.safetensors"))


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_training_refuses_a_batch_with_a_target_that_the_model_has_no_output_for(
    split: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = ModularSum.rows

    def beyond(task: ModularSum, alphabet: Any, of: Any, random: Any) -> Any:
        found = rows(task, alphabet, of, random)
        assert found.targets is not None
        return found._replace(targets=found.targets + 5) if of == split else found

    monkeypatch.setattr(ModularSum, "rows", beyond)
    with pytest.raises(TokenOutOfRange, match="outside what the model predicts: 0 to 4"):
        train(recipe(), tmp_path / "run")
    assert not any(tmp_path.rglob("*.safetensors"))


@pytest.mark.full
def test_what_shows_copying_or_goes_on_from_a_text_is_not_made_of_a_model_that_cannot() -> None:
    with pytest.raises(ConfigError, match="nothing is copied"):
        resting_copier(named(), 0)
    data = Copy().build()
    assert data.tokenizer.bos is not None
    assert sample(named(), data) == {}


@pytest.mark.full
def test_a_target_beyond_the_outputs_is_refused_in_words() -> None:
    batch = next_token_batch(torch.tensor([[1, 2, 9]]))
    with pytest.raises(TokenOutOfRange, match="target 9, outside what the model predicts: 0 to 6"):
        batch.check_targets(7)
    Batch(batch.tokens, copy.copy(batch.targets), batch.weight).check_targets(10)
    with pytest.raises(TokenOutOfRange, match="target -1, outside what the model predicts: 0 to 9"):
        dataclasses.replace(batch, targets=batch.targets.sub(3)).check_targets(10)
