"""Cards: what analyses answer and read, and that those of one pass take a run, or a model and a text."""
# pyright: reportUnnecessaryTypeIgnoreComment=true

import importlib
import inspect
from typing import Any, assert_type

import pytest
import torch

import glassformer as gf
from glassformer import analysis
from glassformer.analysis import Run, run
from glassformer.analysis.attribution import (
    DirectLogitAttribution,
    direct_logit_attribution,
    neuron_effects,
    source_effects,
)
from glassformer.analysis.cards import Card, card_of, cards
from glassformer.analysis.from_weights import copying
from glassformer.analysis.frozen import writes
from glassformer.analysis.lens import Lens, lens_grid, logit_lens
from glassformer.analysis.token_flow import TokenFlow, rollout
from glassformer.errors import AnalysisUnavailable
from glassformer.labelled import Labelled
from glassformer.testing import close
from glassformer.testing.models import subject
from glassformer.trace import Read
from one_pass import in_one_pass

CARDS = {card.name: card for card in cards()}
# public functions that answer nothing of a model by themselves: what analyses are made of, or take
PARTS = {
    "accuracy", "answer_rank", "attach", "average_traces", "calibration_error", "class_loss", "dictionaries_in",
    "dictionary_quality", "fit_dictionary", "fit_eraser", "frequent_tokens", "grid", "kl_divergence", "load_dictionary",
    "log_probability", "logit", "logit_difference", "memory_sites", "memory_use", "metric_named", "next_token_loss",
    "one_by_one", "position_bias", "position_scores", "probability", "read_history", "regenerate", "residual_ratio",
    "rotate", "rotation", "save_dictionary", "short_circuit_edits", "subject_deviation", "superposition", "token_loss",
    "train_dictionary", "velocity_loss", "with_gates", "with_scales",
}  # fmt: skip
# what an analysis of one pass cannot do without
REQUIRED: dict[str, dict[str, Any]] = {
    "find_pattern": {"mask": torch.eye(7, dtype=torch.bool)},
    "path_sources": {"heads": ["L1H0"]},
    "score_paths": {"head": "L1H0"},
    "composed_pattern": {"first": "L0H0", "second": "L1H0"},
    "neuron_shares": {"layer": 0},
    "query_key_plane": {"head": "L1H0"},
    "write_projections": {"directions": torch.ones(16, dtype=torch.float64)},
    "write_sources": {"label": "L1H0"},
}
# what is asked of a kind of layer that the usual model has not
OF = {"expert_load": "experts"}
ONE_PASS = sorted(name for name, card in CARDS.items() if card.of == "one pass")


def numbers(found: Any) -> list[torch.Tensor]:
    """Return the numbers of a result, however deep."""
    if isinstance(found, torch.Tensor):
        return [found]
    if isinstance(found, float):
        return [torch.tensor(found)]
    if isinstance(found, Labelled):
        return [found.values]
    if isinstance(found, dict):
        return [tensor for value in found.values() for tensor in numbers(value)]
    if isinstance(found, list | tuple):
        return [tensor for value in found for tensor in numbers(value)]
    return [tensor for value in vars(found).values() for tensor in numbers(value)] if hasattr(found, "__dict__") else []


def test_every_public_analysis_has_a_card() -> None:
    for room in analysis.ROOMS:
        for name, value in vars(importlib.import_module(f"glassformer.analysis.{room}")).items():
            own = inspect.isfunction(value) and value.__module__.startswith(analysis.__name__)
            if own and not name.startswith("_"):
                assert (name in CARDS) != (name in PARTS), name


@in_one_pass
@pytest.mark.parametrize("card", CARDS.values(), ids=lambda card: card.name)
def test_a_card_asks_a_question_and_its_function_is_the_public_one(card: Card) -> None:
    assert card.question.endswith("?") and card.summary.endswith((".", ":"))
    assert getattr(importlib.import_module(f"glassformer.analysis.{card.room}"), card.name) is card.function
    assert (card.sites is not None) or card.of != "one pass"


@in_one_pass
@pytest.mark.parametrize("name", ONE_PASS)
def test_a_run_that_reads_for_an_analysis_gives_what_the_model_and_the_text_give(name: str) -> None:
    """Reading is by the card; `(model, text)` is by the options, which are the defaults here."""
    found, ask, more = subject(OF.get(name, "gpt2")), CARDS[name].function, REQUIRED.get(name, {})
    ids = found.inputs[0][:1, :7]
    from_run = ask(run(found.model, ids, read=[ask, "blocks.0.attn.query"]), **more)
    from_text = ask(found.model, ids, **more)
    pairs = zip(numbers(list(from_run) if inspect.isgenerator(from_run) else from_run),
                numbers(list(from_text) if inspect.isgenerator(from_text) else from_text))  # fmt: skip
    counted = 0
    for one, other in pairs:
        close(one.nan_to_num(), other.nan_to_num())
        counted += 1
    assert counted


def test_options_change_what_is_read_of_a_text() -> None:
    found = subject("capped")
    direction, ids = torch.ones(found.model.config.d_model, dtype=torch.float64), found.inputs[0]
    for ask in (source_effects, neuron_effects):
        ask(found.model, ids, direction=direction, layers=[1])
        ask(found.model, ids, answer=3)
    lens_grid(found.model, ids, sites=["blocks.0.resid_mid", "blocks.1.resid_post"])
    pair = subject("translator_pre")
    read, written = pair.inputs
    assert writes(pair.model, read, written, site="encoder.blocks.0.resid_mid").components
    assert rollout(pair.model, read, written, stack="encoder").final.values.shape == (read.shape[1],) * 2


def test_an_analysis_stands_for_what_it_reads_beside_sites_and_heads() -> None:
    found = subject("llama")
    done = run(found.model, found.inputs[0], read=[logit_lens, "L1H2.pattern", Read("*.z")])
    assert {*card_of(logit_lens).reads(found.model), "L1H2.pattern", "blocks.0.attn.z"} <= set(done)
    assert logit_lens(done).position == found.inputs[0].shape[1] - 1


def test_a_wrong_first_argument_is_told_the_right_one() -> None:
    found = subject("gpt2")
    model: torch.nn.Module = found.model
    done = run(model, found.inputs[0], read=[logit_lens])
    with pytest.raises(AnalysisUnavailable, match=r"Give the text too: logit_lens\(model, text\)"):
        logit_lens(model)  # pyright: ignore[reportArgumentType]
    with pytest.raises(AnalysisUnavailable, match=r"it was given a model's name, 'gpt-4l'"):
        logit_lens("gpt-4l", "a text")  # pyright: ignore[reportArgumentType]
    with pytest.raises(AnalysisUnavailable, match=r"it was given a Labelled"):
        logit_lens(done["embed.token"])  # pyright: ignore[reportArgumentType]
    with pytest.raises(AnalysisUnavailable, match=r"a run has its text already"):
        logit_lens(done, "another text")  # pyright: ignore[reportArgumentType]
    with pytest.raises(AnalysisUnavailable, match=r"found a Run(.|\n)*give it \.model"):
        copying(done)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, "looks at weights: give the model"),
        ("gpt-4l", r'found the text "gpt-4l"(.|\n)*Load a model first: glassformer\.load\("gpt-4l"\)'),
        (torch.nn.Linear(2, 2), r"Linear is none of them(.|\n)*gf\.run\(model, inputs"),
        (3, "found int(.|\n)*Give a model"),
    ],
)
def test_what_is_no_model_is_told_what_would_be_one(given: Any, said: str) -> None:
    with pytest.raises(AnalysisUnavailable, match=said):
        copying(given)


def test_what_has_no_card_or_reads_no_pass_cannot_be_read() -> None:
    found = subject("gpt2")
    with pytest.raises(AnalysisUnavailable, match=r'"logit_lense" is no analysis with a card\. Nearest: "logit_lens"'):

        def logit_lense() -> None: ...

        run(found.model, found.inputs[0], read=[logit_lense])
    with pytest.raises(AnalysisUnavailable, match=r"copying reads no sites of one pass: it is asked of weights"):
        run(found.model, found.inputs[0], read=[copying])


def test_types_tell_a_run_from_a_model_and_keep_the_options() -> None:
    found = subject("gpt2")
    model: torch.nn.Module = found.model
    ids = found.inputs[0]
    done: Run = gf.run(model, ids, read=[logit_lens, direct_logit_attribution, rollout])
    assert_type(logit_lens(done), Lens)
    assert_type(logit_lens(model, ids, answer=3, position=-1), Lens)
    assert_type(direct_logit_attribution(done, answer=3, against=5), DirectLogitAttribution)
    assert_type(rollout(model, ids, None, kept=0.5), TokenFlow)
    for wrong in (
        lambda: logit_lens(done, anser=3),  # pyright: ignore[reportCallIssue]
        lambda: logit_lens(model, ids, anser=3),  # pyright: ignore[reportCallIssue]
    ):
        with pytest.raises(TypeError):
            wrong()
