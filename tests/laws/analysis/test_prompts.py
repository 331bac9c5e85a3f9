"""Prompts of unequal length, given together: every analysis says of each what it says of it alone."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from glassformer.analysis import Run, run
from glassformer.analysis.cards import Card, cards
from glassformer.analysis.causal import ablate
from glassformer.analysis.frozen import frozen_edits
from glassformer.analysis.lens import fit_tuned_lens
from glassformer.analysis.losses import token_losses
from glassformer.analysis.origin import INPUTS
from glassformer.data import Batch, Contrast
from glassformer.errors import AnalysisUnavailable, GlassformerError, NoPattern, ShapeMismatch, WrongArgument
from glassformer.labelled import Labelled, Result
from glassformer.testing import close
from glassformer.testing.models import subject
from glassformer.trace import At, Read
from right_calls import calls

LENGTHS, TARGETS = (7, 4, 6), (3, 6, 5)
# grouped keys and gates, streams in a head, one stack read both ways, two stacks
MODELS = [
    "gpt2", "masked_post", "translator_pre",
    *(pytest.param(name, marks=pytest.mark.full) for name in ("llama", "differential", "translator_relative")),
]  # fmt: skip
# singular values of a handful of vectors
TOLERANCES = {"stream_dimensions": 1e-10}
ONE_PASS = [card for card in cards() if card.of == "one pass"]
SIDES = ("right", "left")
sides = pytest.mark.parametrize("side", SIDES)


@cache
def model_of(name: str) -> Any:
    return subject(name).model


@cache
def prompts(name: str) -> tuple[list[list[int]], list[list[int]] | None]:
    """Return rows of unequal length, and those of the decoder for a model that has two stacks."""
    generator = torch.Generator().manual_seed(3)

    def drawn(lengths: Sequence[int], stack: str | None) -> list[list[int]]:
        size = model.embeddings[stack].vocab_size
        return [torch.randint(0, size, (n,), generator=generator).tolist() for n in lengths]

    model = model_of(name)
    if model.source is None:
        return drawn(LENGTHS, model.output), None
    return drawn(LENGTHS, model.source), drawn(TARGETS, model.output)


def padded(rows: list[list[int]], side: str, more: int = 0) -> tuple[Tensor, Tensor]:
    """Return rows padded on one side with a token that means something, another for each side, and the mask."""
    width = max(map(len, rows)) + more
    fill = [[1 + (side == "left")] * (width - len(row)) for row in rows]
    ids = [row + pad if side == "right" else pad + row for pad, row in zip(fill, rows)]
    mask = [[1] * len(row) + [0] * len(pad) if side == "right" else [0] * len(pad) + [1] * len(row)
            for pad, row in zip(fill, rows)]  # fmt: skip
    return torch.tensor(ids), torch.tensor(mask)


def asked(card: Card, done: Run, **more: Any) -> Any:
    """Ask an analysis of one pass with what it cannot do without."""
    needed = {name: value for name, value in calls()[card.name]().arguments.items() if name not in ("run", "text")}
    if card.name == "find_pattern":
        if done.source_rows:
            pytest.skip("its heads lie in two stacks, whose patterns differ in size")
        n = max(map(len, done.token_rows))
        needed["mask"] = torch.eye(n, dtype=torch.bool)
    found = card.function(done, **needed, **more)
    return list(found) if inspect.isgenerator(found) else found


@cache
def passes(card: Card, name: str, side: str = "right", rows: tuple[int, ...] = (0, 1, 2), more: int = 0) -> Run:
    """Return a pass over some of the prompts, padded together."""
    sources, targets = prompts(name)
    ids, mask = padded([sources[row] for row in rows], side, more)
    target = None if targets is None else [targets[row] for row in rows]
    return run(model_of(name), ids, target, mask=mask, read=[card.function])


@cache
def alone(card: Card, name: str, row: int) -> Run:
    sources, targets = prompts(name)
    return run(model_of(name), sources[row], None if targets is None else targets[row], read=[card.function])


def same(found: Any, expected: Any, tolerance: float = 1e-12) -> None:
    """Check that two results are the same: names, labels and shapes, and numbers to a tolerance."""
    if isinstance(expected, Result):
        expected, found = ({f: getattr(r, f) for f in r.__dataclass_fields__} for r in (expected, found))  # type: ignore[attr-defined]
    if isinstance(expected, Labelled):
        assert (found.axes, dict(found.coords), found.rows) == (expected.axes, dict(expected.coords), expected.rows)
        same(without_padding(found), without_padding(expected), tolerance)
    elif isinstance(expected, Tensor):
        assert found.shape == expected.shape
        close(found.nan_to_num(0, 0, 0), expected.nan_to_num(0, 0, 0), tolerance)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=tolerance, abs=tolerance, nan_ok=True)
    elif isinstance(expected, Mapping):
        assert list(found) == list(expected)
        for key, value in expected.items():
            # a digest of what was read is of its padding too
            if key != "provenance":
                same(found[key], value, tolerance)
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected):
            same(one, other, tolerance)
    elif hasattr(expected, "__dataclass_fields__"):
        same(vars(found), vars(expected), tolerance)
    elif isinstance(expected, str | int | None):
        assert found == expected


def without_padding(value: Labelled) -> Tensor:
    real = value.is_real()
    return value.values if real is None else value.values * real


def labelled(found: Any) -> list[Labelled]:
    """Return the labelled tensors of a result."""
    return [found] if isinstance(found, Labelled) else [v for v in vars(found).values() if isinstance(v, Labelled)]


def answers(call: Callable[[], Any]) -> Any:
    """Return what a call returns; skip where it says in a typed error that it has no answer for this model."""
    try:
        return call()
    except (AnalysisUnavailable, NoPattern) as error:
        pytest.skip(str(error).partition("\n")[0])


of_every_analysis = pytest.mark.parametrize("card", ONE_PASS, ids=lambda card: card.name)
on_every_model = pytest.mark.parametrize("name", MODELS)


@on_every_model
@of_every_analysis
def test_a_prompt_of_a_batch_is_the_prompt_alone(card: Card, name: str) -> None:
    """As a row that is asked for, as the run of that prompt, and as the batch of one with padding of its own."""
    expected = answers(lambda: [asked(card, alone(card, name, row)) for row in range(3)])
    tolerance = TOLERANCES.get(card.name, 1e-12)
    by_row = "row" in inspect.signature(card.function).parameters
    for side in SIDES:
        whole = passes(card, name, side)
        # on the right, one that is padded says what others would
        for row in range(3) if side == "left" else (1,):
            same(asked(card, whole.prompt(row)), expected[row], tolerance)
            if by_row:
                same(asked(card, whole, row=row), expected[row], tolerance)
        if card.name != "frozen_edits":  # which stand where the values stood, padding in its place
            same(asked(card, passes(card, name, side, rows=(1,), more=2)), expected[1], tolerance)


@on_every_model
@of_every_analysis
def test_padding_takes_no_part_in_what_is_of_all_prompts(card: Card, name: str) -> None:
    """On either side, whatever its tokens and however much of it there is; and each prompt is in it as it is alone."""
    if card.name == "frozen_edits":
        pytest.skip("edits stand where the values stood, padding in its place")
    parameter = inspect.signature(card.function).parameters.get("row")
    if parameter is not None and "None" not in str(parameter.annotation):
        pytest.skip("of one prompt")
    of_all = {} if parameter is None else {"row": None}
    found = answers(lambda: asked(card, passes(card, name), **of_all))
    same(asked(card, passes(card, name, "left", more=2), **of_all), found, TOLERANCES.get(card.name, 1e-12))
    for row in range(3) if any("batch" in one.axes for one in labelled(found)) else ():
        expected = asked(card, alone(card, name, row), **of_all)
        same(labelled(found.prompt(row)), labelled(expected))


@sides
def test_frozen_edits_of_padded_prompts_give_each_its_own_logits_again(side: str) -> None:
    model, (rows, _) = model_of("gpt2"), prompts("gpt2")
    ids, mask = padded(rows, side)
    done = run(model, ids, mask=mask, read=[frozen_edits])
    again = run(model, ids, mask=mask, edit=frozen_edits(done))
    for row in range(3):
        close(again.prompt(row).predictions(), done.prompt(row).predictions(), 1e-12)


def contrasted(rows: list[list[int]]) -> Contrast:
    others = [[(i + 3) % 11 for i in row] for row in rows]
    return Contrast(rows, others, [1] * len(rows), [2] * len(rows))


def texts_of(card: Card) -> str:
    """Return the parameter by which an analysis takes texts or pairs that it runs itself."""
    return next(iter(name for name in inspect.signature(card.function).parameters if name in INPUTS - {"target"}), "")


def of_prompts(found: Any, name: str = "") -> dict[str, Labelled]:
    """Return the labelled tensors of a result, however deep, that say something of each prompt."""
    if isinstance(found, Labelled):
        return {name: found} if "batch" in found.axes else {}
    inner = vars(found) if isinstance(found, Result) else found if isinstance(found, dict) else {}
    return {at: one for key, value in inner.items() for at, one in of_prompts(value, f"{name}.{key}").items()}


def takes_a_list(card: Card) -> bool:
    """Whether an analysis takes batches as one list, and not one after the other."""
    found = inspect.signature(card.function).parameters.get("batches")
    return found is not None and found.kind is not found.VAR_POSITIONAL


# rows of a sort of their own, which are made and not given, or have labels
MADE = {
    "evaluate_heads", "crossed_cost", "answered", "probe", "sparse_probe", "structural_probe", "phrase_clusters",
    "erasure_effects", "alignment_search",
}  # fmt: skip
# asked of models with a memory that learns, which the models here have not
OF_OTHERS = {"memory_influence"}
RUN_BY_THEMSELVES = [
    card
    for card in cards()
    if card.of in ("texts", "pairs of prompts") and texts_of(card) and card.name not in OF_OTHERS
]


def in_float64(card: Card, given: Any) -> Any:
    """Ask an analysis that runs texts itself of these."""
    call, model = calls()[card.name](), model_of("gpt2")
    own: dict[str, Any] = {"model": model, texts_of(card): given}
    if "before" in call.parameters:
        own = {texts_of(card): given, "before": model, "after": subject("gpt2", seed=3).model}
    # a lens of this very model; means would be over all prompts; a window that all rows outgrow
    own |= {"lens": {"lens": _lens()}, "ablation_table": {"kinds": ("zero",)}, "attention_sinks": {"window": 3}}.get(
        card.name.removesuffix("_divergence"), {}
    )
    return call(**own)


@cache
def _lens() -> Any:
    return fit_tuned_lens(model_of("gpt2"), [prompts("gpt2")[0]], steps=1)


@pytest.mark.parametrize("card", RUN_BY_THEMSELVES, ids=lambda card: card.name)
def test_an_analysis_of_texts_takes_them_together_or_says_how_to_ask_of_each(card: Card) -> None:
    """What it says of single prompts is what it says of each alone; what is of all of them leaves padding out."""
    if card.name in MADE:
        pytest.skip("its rows are made, and of one length, or have labels")
    first, second = prompts("gpt2")[0][:2]
    together: Any = [first, second]
    each: list[Any] = [[first], [second]]
    if card.of == "pairs of prompts":
        together, *each = (contrasted(rows) for rows in ([first, second], [first], [second]))
    elif takes_a_list(card):
        together, each = [together], [[one] for one in each]
    try:
        found = in_float64(card, together)
    except GlassformerError as refusal:
        assert " for " in str(refusal) and " in " in str(refusal), refusal
        return
    for row, one in enumerate(each):
        expected = of_prompts(in_float64(card, one))
        same(of_prompts(found.prompt(row)) if expected else {}, expected)


def filled(rows: list[list[int]], fill: int) -> Batch:
    """Return rows as a batch whose padding is one token, in inputs and targets."""
    ids = torch.tensor([row + [fill] * (max(map(len, rows)) - len(row)) for row in rows])
    lengths = torch.tensor([len(row) for row in rows])
    targets = torch.cat((ids[:, 1:], torch.full((len(rows), 1), fill)), 1)
    return Batch(ids, targets, torch.arange(ids.shape[1]) < lengths[:, None] - 1, lengths=lengths)


@pytest.mark.parametrize("card", RUN_BY_THEMSELVES, ids=lambda card: card.name)
def test_an_analysis_of_texts_says_the_same_whatever_stands_in_padding(card: Card) -> None:
    if card.name in MADE:
        pytest.skip("its rows are made, and of one length, or have labels")
    rows, found = prompts("gpt2")[0][:2], list[Any]()
    for fill in (1, 2):
        given: Any = filled(rows, fill)
        if card.of == "pairs of prompts":
            others = filled(contrasted(rows).corrupt, fill)
            given = Contrast(given, others, [1, 1], [2, 2])
        elif takes_a_list(card):
            given = [given]
        try:
            found.append(in_float64(card, given))
        except (AnalysisUnavailable, ShapeMismatch, WrongArgument) as refusal:
            pytest.skip(str(refusal).partition("\n")[0])
    same(*found)


@sides
def test_a_position_that_is_padding_in_some_row_is_not_read(side: str) -> None:
    model, (rows, _) = model_of("gpt2"), prompts("gpt2")
    ids, mask = padded(rows, side)
    outer = -1 if side == "right" else 0
    for read in (Read("blocks.0.resid_post", At(pos=outer)), Read("L0H1.pattern", At(batch=1, key=outer))):
        with pytest.raises(ShapeMismatch, match="row 1 has padding there"):
            run(model, ids, mask=mask, read=[read])
    run(model, ids, mask=mask, read=[Read("L0H1.z", At(batch=0, pos=outer))])


def test_losses_of_prompts_of_unequal_length_are_those_of_each_alone() -> None:
    model, rows = model_of("gpt2"), [*prompts("gpt2")[0], [5]]
    losses, weight = token_losses(model, rows)
    assert weight.sum(1).tolist() == [len(row) - 1 for row in rows]
    each = [token_losses(model, row)[0][0] for row in rows[:-1]]
    for row, alone in enumerate(each):
        close(losses[row, : len(alone)], alone, 1e-12)
    found = ablate(model, "L1H0", rows)
    assert found.loss == pytest.approx(float(torch.cat(each).mean()), rel=1e-12)
    changes = torch.stack([ablate(model, "L1H0", row).loss_change.values for row in rows[:-1]])[:, 0]
    counts = weight.sum(1)[:-1]
    close(found.loss_change.values[0], (changes * counts).sum() / counts.sum(), 1e-10)
