"""Every analysis says what it is asked of when it is given something else; and what else goes by a name."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

import glassformer as gf
from glassformer import analysis, training, weights
from glassformer.analysis import (
    behaviour,
    causal,
    circuits,
    from_weights,
    learning,
    lens,
    losses,
    subspaces,
    vocabulary,
)
from glassformer.analysis.cards import Card, cards
from glassformer.analysis.sweep import NAMES, accuracy, logit_difference, next_token_loss, sweep
from glassformer.data import Contrast
from glassformer.errors import AnalysisUnavailable, ConfigError, GlassformerError, WrongArgument
from glassformer.testing.models import subject
from one_pass import in_one_pass
from right_calls import calls
from runtime_checks import lifted

IDS = torch.tensor([[3, 5, 7, 9, 4], [1, 2, 3, 4, 5]])
EVERY = [card.name for card in cards()]


@pytest.fixture(scope="module")
def wrong() -> dict[str, Any]:
    model = subject("gpt2").model
    of = {"run": gf.run(model, IDS), "weights": weights.of(model), "a name": "gpt-4l", "a list": [model]}
    return of | {"nothing": None, "a number": 3, "a type": gf.Decoder}


def last_logit(logits: torch.Tensor) -> torch.Tensor:
    return logits[..., -1, 3]


def asked(card: Card, first: Any) -> Any:
    """Ask an analysis of something, all else as it should be; annotations of the first are left to a type checker."""
    model, edges = subject("gpt2").model, [("L0H0", "logits")]
    others = {
        "pairs": pairs(), "metric": last_logit, "inputs": IDS, "base": IDS, "plan": [[]], "text": IDS[:1],
        "chosen": "L0H0", "batches": [IDS], "heads": ["L0H0"], "lens": lens.TunedLens.identity(model), "edges": edges,
        "after": model, "documents": [[1, 2, 3]], "first": 0, "second": 1, "head": "L0H0", "mask": torch.ones(5, 5),
        "receivers": ["logits"], "circuit": edges, "senders": ["L0H0"], "word": "a", "contexts": ["a b"],
    }  # fmt: skip
    # what is asked of one pass is given its run at the door
    function = card.function if card.of == "one pass" else inspect.unwrap(card.function)
    parameters = list(inspect.signature(function).parameters.values())[1:]
    needed = [p for p in parameters if p.default is p.empty and p.kind is not p.VAR_POSITIONAL]
    named = {p.name: others.get(p.name) for p in needed if p.kind is p.KEYWORD_ONLY}
    return function(first, *[others.get(p.name) for p in needed if p.name not in named], **named)


@pytest.mark.parametrize("card", cards(), ids=EVERY)
def test_the_wrong_kind_of_first_argument_is_refused_in_words(card: Card, wrong: dict[str, Any]) -> None:
    right = {"one pass": "run", "weights": "weights"}.get(card.of)
    for kind, found in wrong.items():
        if kind != right:
            with pytest.raises(GlassformerError):
                asked(card, found)


def pairs() -> Contrast:
    return Contrast(IDS, IDS.flip(0), answer=[3, 5], wrong=[5, 3])


@pytest.mark.parametrize("name", NAMES)
def test_a_metric_goes_by_its_name_on_the_command_line_where_pairs_bring_answers(name: str) -> None:
    model = subject("gpt2").model
    found = causal.patch(model, pairs(), name, "attn_out")
    assert bool(found["attn_out"].fraction.values.nan_to_num().isfinite().all())
    if name not in ("rank", "accuracy"):
        assert bool(circuits.attribute_nodes(model, pairs(), name).effect.values.isfinite().all())


def test_a_name_stands_for_the_metric_of_the_answers() -> None:
    model = subject("gpt2").model
    by_name = causal.patch(model, pairs(), ["logit-difference", "accuracy"], "attn_out")
    itself = causal.patch(model, pairs(), [logit_difference([3, 5], [5, 3]), accuracy([3, 5])], "attn_out")
    assert by_name.to_json() == itself.to_json()


def test_accuracy_is_one_where_the_answer_is_the_likeliest_token_and_no_other_is_as_likely() -> None:
    logits = torch.tensor([[[0.0, 2.0, 1.0], [3.0, 3.0, 0.0]], [[0.0, 1.0, 2.0], [4.0, 3.0, 0.0]]])
    metric = accuracy([1, 0])
    assert metric.function(logits, torch.tensor([1, 0])).tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_names_without_answers_and_names_of_nothing_say_what_would_work() -> None:
    model = subject("gpt2").model
    with pytest.raises(AnalysisUnavailable, match=r"sweep.logit_difference\(answer, …\)"):
        sweep(model, IDS, [[]], "logit-difference")
    with pytest.raises(AnalysisUnavailable, match=r'no metric "logit-diference"\. Nearest: "logit-difference"'):
        causal.patch(model, pairs(), "logit-diference")
    with pytest.raises(AnalysisUnavailable, match=r"Contrast\(clean, corrupt, answer=…, wrong=…\)"):
        causal.patch(model, Contrast(IDS, IDS.flip(0)), "logit")


BESIDE: dict[str, Callable[[Any], Any]] = {
    "next_token_loss": lambda model: next_token_loss(model),
    "logit_difference": lambda model: logit_difference(model, 1),
    "bits_per_byte": lambda model: losses.bits_per_byte(torch.ones(3), 0),
    "document_losses": lambda model: losses.document_losses(model, [[99_999, 1]], 4),
    "rotate": lambda model: subspaces.rotate(model),
    "rotation": lambda model: subspaces.rotation(-4),
    "frequent_tokens": lambda model: vocabulary.frequent_tokens(model),
    "average_traces": lambda model: causal.average_traces(model),
    "subject_deviation": lambda model: causal.subject_deviation(model, []),
    "regenerate": lambda model: behaviour.regenerate(model, torch.tensor([[99_999]]), 1),
    "read_history": lambda model: learning.read_history(model),
    "train": lambda model: training.train(model, "runs/none"),
}


@in_one_pass
@pytest.mark.parametrize("name", BESIDE)
def test_what_stands_beside_the_analyses_refuses_a_wrong_argument_by_a_public_error(name: str) -> None:
    with lifted(), pytest.raises(GlassformerError):
        BESIDE[name](subject("gpt2").model)


def test_composition_with_a_layer_that_writes_nothing_says_so() -> None:
    model = subject("attention_only").model
    with torch.no_grad():
        model.stack.blocks[0].attn.merge.output.weight.zero_()
    with pytest.raises(AnalysisUnavailable, match="zero in every pair") as caught:
        from_weights.composition(model)
    assert "needs two attention layers" not in str(caught.value)


def test_names_of_coordinates_label_the_stream_wherever_it_is_read() -> None:
    model = subject("gpt2").model
    names = [f"is {i}" for i in range(model.config.d_model)]
    model.coordinate_names = names
    read = ["blocks.0.resid_post", "blocks.1.attn.z", gf.Read("embed.token", gf.At(d_model=[0, 3]))]
    run = analysis.run(model, IDS, read=read)
    assert run["blocks.0.resid_post"].labels("d_model") == names
    assert run["blocks.0.resid_post"].select(d_model="is 3", batch=0).axes == ("pos",)
    assert run["embed.token"].labels("d_model") == ["is 0", "is 3"]
    assert "d_model" not in run["blocks.1.attn.z"].coords
    assert weights.folded(model).coordinate_names == tuple(names)


def test_names_that_are_not_one_for_each_coordinate_are_refused() -> None:
    model = subject("gpt2").model
    for names in (["a"], ["a"] * model.config.d_model):
        with pytest.raises(ConfigError, match="coordinate_names"):
            model.coordinate_names = names
    assert model.coordinate_names == ()


@in_one_pass
@pytest.mark.parametrize(
    ("kind", "of"),
    [
        ("sparse", torch.Tensor.to_sparse),
        ("without numbers", lambda x: x.to("meta")),
    ],
)
def test_a_tensor_without_a_number_in_each_place_is_refused_at_the_door(kind, of):
    given = {"logit_lens": "row", "neuron_effects": "position", "token_pairs": "offset", "source_effects": "direction"}
    for name, parameter in given.items():
        with pytest.raises(WrongArgument, match=f"{parameter}= is a tensor that is {kind}"):
            calls()[name]()(**{parameter: of(torch.ones(1, 16))})
