"""Padding, on either side, changes nothing: a row in a batch gives what it gives alone."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import glassformer as gf
from glassformer import weights
from glassformer.analysis import attribution, causal, heads, lens, subspaces
from glassformer.analysis.sweep import logit
from glassformer.errors import ShapeMismatch
from glassformer.labelled import Result
from glassformer.models import EncoderDecoder
from glassformer.testing import close
from glassformer.testing.models import ARCHITECTURES, subject
from glassformer.trace import At, Read
from one_pass import in_one_pass

LENGTHS, LONGEST = (7, 4, 1), 7
every = pytest.mark.parametrize("name", ARCHITECTURES)
sides = pytest.mark.parametrize("side", ["left", "right"])


def drawn(model: Any, length: int = LONGEST) -> Tensor:
    # tokens that either side of the model reads
    most = min(embedding.vocab_size for embedding in model.embeddings.values())
    return torch.randint(0, most, (3, length), generator=torch.Generator().manual_seed(1))


def mask_of(side: str) -> Tensor:
    """Return 1 for each real token of rows of `LENGTHS`, padded on one side."""
    place, counts = torch.arange(LONGEST), torch.tensor(LENGTHS)[:, None]
    return (place < counts if side == "right" else place >= LONGEST - counts).long()


@every
@sides
def test_a_padded_row_gives_the_logits_and_sites_it_gives_alone(name: str, side: str) -> None:
    model = subject(name).model
    ids, mask = drawn(model), mask_of(side)
    target = drawn(model, 5) if isinstance(model, EncoderDecoder) else None
    whole = gf.run(model, ids, target, mask=mask, read="*").aligned()
    assert whole.logits is not None
    for row, n in enumerate(LENGTHS):
        own = None if target is None else target[row : row + 1]
        alone = gf.run(model, ids[row][mask[row].bool()], own, read="*")
        assert alone.logits is not None
        real = slice(None) if target is not None else slice(0, n)
        close(whole.logits[row, real], alone.logits[0], 1e-12)
        for site, value in alone.items():
            if value.axes[:1] == ("batch",):
                found = whole[site].values[row]
                for axis, size in enumerate(value.shape[1:]):
                    found = found.narrow(axis, 0, size)
                close(found.nan_to_num(0, 0, 0), value.values[0].nan_to_num(0, 0, 0), 1e-12)


@every
@sides
def test_the_written_out_forward_pass_takes_padding_too(name: str, side: str) -> None:
    one = subject(name)
    ids, mask, w = drawn(one.model), mask_of(side), weights.of(one.model)
    source = {"source_mask": mask} if isinstance(one.model, EncoderDecoder) else {}
    given = (ids, ids) if source else (ids,)
    whole = weights.logits(w, *given, mask=mask, **source)
    for row in range(3):
        real = mask[row].bool()
        alone = weights.logits(w, *(each[row][real][None] for each in given))
        close(whole[row][real], alone[0], 1e-12)


def test_lengths_say_what_a_mask_on_the_right_says() -> None:
    model = subject("gpt2").model
    ids = drawn(model)
    by_mask, by_length = gf.run(model, ids, mask=mask_of("right")), gf.run(model, ids, lengths=LENGTHS)
    assert torch.equal(by_mask.logits, by_length.logits)  # type: ignore[arg-type]
    assert by_mask.token_rows == by_length.token_rows
    assert [len(row) for row in by_length.token_rows] == list(LENGTHS)


def test_rows_of_unequal_length_are_padded_by_themselves() -> None:
    model = subject("gpt2").model
    ids = drawn(model)
    ragged = [ids[row, :n].tolist() for row, n in enumerate(LENGTHS)]
    found, expected = gf.run(model, ragged), gf.run(model, ids, lengths=LENGTHS)
    for row, n in enumerate(LENGTHS):
        assert torch.equal(found.logits[row, :n], expected.logits[row, :n])  # type: ignore[index]


@pytest.mark.parametrize("lengths", [LENGTHS, (3, 3, 3)])
def test_rows_may_be_tensors_and_arrays(lengths: tuple[int, ...]) -> None:
    model, ids = subject("gpt2").model, torch.randint(0, 11, (3, 7))
    rows = [row[:n] for row, n in zip(ids, lengths)]
    expected = gf.run(model, [row.tolist() for row in rows])
    for given in (rows, tuple(rows), [row.numpy() for row in rows], [list(row.numpy()) for row in rows]):
        found = gf.run(model, given)
        assert found.token_rows == expected.token_rows
        assert torch.equal(found.predictions(), expected.predictions())


def test_several_texts_are_one_batch() -> None:
    model = gf.load("gpt-4l")
    texts = ["def f(x):", "return", "import os\nimport"]
    whole = gf.run(model, texts)
    for row, text in enumerate(texts):
        alone = gf.run(model, text)
        assert list(whole.token_rows[row]) == alone.tokens
        close(whole.logits[row, whole.place(-1, row)], alone.logits[0, -1], 1e-4)  # type: ignore[index]


def test_the_last_position_of_a_row_padded_on_the_left_is_the_last_of_all() -> None:
    model = subject("gpt2").model
    run = gf.run(model, drawn(model), mask=mask_of("left"), read=[Read("blocks.0.resid_post", At(pos=slice(3, None)))])
    assert [run.place(-1, row) for row in range(3)] == [6, 6, 6]
    assert [run.place(0, row) for row in range(3)] == [0, 3, 6]
    with pytest.raises(ShapeMismatch, match="Read the whole site, or pad on the right"):
        run.aligned()


@sides
def test_analyses_of_a_padded_run_give_what_they_give_row_by_row(side: str) -> None:
    model = subject("gpt2").model
    ids, mask = drawn(model), mask_of(side)
    whole = gf.run(model, ids, mask=mask, read=[attribution.direct_logit_attribution, lens.lens_grid])
    split = attribution.direct_logit_attribution(whole, answer=3, position=-1, row=None)
    for row in range(3):
        alone = gf.run(model, ids[row][mask[row].bool()], read=[attribution.direct_logit_attribution])
        one = attribution.direct_logit_attribution(alone, answer=3, position=-1)
        close(split.contributions.values[row], one.contributions.values, 1e-12)


def numbers(result: Result) -> dict[str, Any]:
    """Return what a result says, without what it is of: the ids that stand for padding are part of that."""
    return {name: value for name, value in result.to_dict().items() if name != "provenance"}


@sides
def test_scores_of_heads_leave_padding_out(side: str) -> None:
    model = subject("gpt2").model
    ids = drawn(model)
    ids[:, 4:] = ids[:, :3]
    scores = []
    for other in (0, 1):
        padded = ids.clone()
        padded[~mask_of(side).bool()] = other
        run = gf.run(model, padded, mask=mask_of(side), read="*.pattern")
        scores.append(numbers(heads.head_roles(run)))
    assert scores[0] == scores[1]


@sides
def test_scores_of_an_encoders_heads_leave_its_padding_out(side: str) -> None:
    model = subject("translator_pre").model
    source, target = drawn(model), drawn(model, 3)
    source[:, 4:] = source[:, :3]
    found = []
    for other in (0, 1):
        padded = source.clone()
        padded[~mask_of(side).bool()] = other
        run = gf.run(model, padded, target, mask=mask_of(side), read="*")
        found.append([numbers(heads.head_roles(run, stack="encoder")), numbers(subspaces.kurtosis(run))])
        found[-1].append(numbers(subspaces.stream_dimensions(run)))
    assert found[0] == found[1]


def test_means_of_an_ablation_are_over_real_positions() -> None:
    model = subject("gpt2").model
    rows = [[3, 5, 7, 9], [4, 4]]
    filled = torch.tensor([[3, 5, 7, 9], [4, 4, 9, 9]])
    table = causal.ablation_table(model, rows, logit(3), "attentions", kinds=("mean",), mean_over="all")
    read = gf.run(model, filled, lengths=[4, 2], read="blocks.0.attn.out")["blocks.0.attn.out"].values
    mean = torch.cat((read[0], read[1, :2])).mean(0)
    edit = gf.Set("blocks.0.attn.out", mean)
    for row, n in enumerate((4, 2)):
        expected = gf.run(model, rows[row], edit=[edit]).logits[0, n - 1, 3]  # type: ignore[index]
        close(table.values.values[0, 0, 0, row], expected, 1e-10)


class Masked(nn.Module):
    """A module that averages what its mask says is real."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 4)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        real = attention_mask[..., None].to(self.embed.weight)
        return (self.embed(input_ids) * real).sum(1, keepdim=True) / real.sum(1, keepdim=True)


def test_a_module_that_takes_an_attention_mask_is_told_and_another_is_refused() -> None:
    model = Masked().double()
    ids = torch.arange(21).reshape(3, 7) % 11
    run = gf.run(model, ids, lengths=LENGTHS)
    for row, n in enumerate(LENGTHS):
        close(run.output[row, 0], model.embed(ids[row, :n]).mean(0), 1e-12)
    with pytest.raises(ShapeMismatch, match="is told of padding is not known: it takes input"):
        gf.run(nn.Embedding(11, 4), ids, lengths=LENGTHS)


@in_one_pass
@pytest.mark.parametrize(
    "said",
    [
        {"lengths": [7, 4]},
        {"lengths": [7, 4, 0]},
        {"lengths": [7, 4, 8]},
        {"lengths": [7.0, 4.0, 1.0]},
        {"lengths": "abc"},
        {"mask": [[1, 1, 0, 1, 1, 1, 1]] * 3},
        {"mask": [[0] * 7] * 3},
        {"mask": [[1, 1]] * 3},
        {"mask": [[0, 1, 1, 1, 1, 1, 0]] * 3},
        {"lengths": LENGTHS, "mask": [[1] * 7] * 3},
    ],
)
def test_lengths_and_masks_that_fit_no_padding_are_refused(said: dict[str, Any]) -> None:
    with pytest.raises(ShapeMismatch):
        gf.run(subject("gpt2").model, drawn(subject("gpt2").model), **said)
