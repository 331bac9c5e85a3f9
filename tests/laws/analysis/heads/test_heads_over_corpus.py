"""Heads over a corpus: shares of heads whose patterns are known, sums of a stream, and sentences that can be false."""

import dataclasses
import json
import signal
from pathlib import Path

import pytest
import torch
from torch import Tensor

from glassformer.analysis import run
from glassformer.analysis.heads import HeadsOverCorpus, head_roles, heads_over_corpus
from glassformer.analysis.heads._claims import NONE, claims_of, divergence, sentences_of, thresholds
from glassformer.analysis.heads._passages import CutCorpus, Passage
from glassformer.analysis.heads._tally import EVENLY, PERCENTS, BatchMeter, Tally
from glassformer.analysis.heads._targets import CLASSES, FROM, TokenKinds, class_of, looks_of, targets_of
from glassformer.analysis.heads.roles import ROLES, Head
from glassformer.data import TextConfig, bytes_tokenizer
from glassformer.errors import AnalysisUnavailable, CheckpointError, NoPattern, ShapeMismatch, TextError
from glassformer.handmade import induction_model, repeated
from glassformer.models import Decoder, DecoderConfig, Mlp, block, repeat
from glassformer.models.block import BlockConfig
from glassformer.testing import close
from glassformer.testing.models import subject

BRACKETS = "def f(x, [y]):\n    return (x + f(y))\n\nz = 12\n"


def tiny(max_len: int = 24) -> Decoder:
    torch.manual_seed(0)
    tokenizer = bytes_tokenizer()
    model = DecoderConfig(tokenizer.vocab_size, 8, repeat(block(n_heads=2), 2), max_len=max_len).build()
    model.tokenizer = tokenizer
    return model.double()


def notes(n: int = 24) -> list[str]:
    return [f"note {i}: " + "some words, and (more) words.\n" * (1 + i % 3) for i in range(n)]


def share(found: HeadsOverCorpus, head: str, target: str) -> float:
    return float(found.scores.select(head=head, target=target).values)


def a_head(row: int = 0, n: int = 1) -> list[Head]:
    return [Head(f"L0H{i}", "blocks.0.attn", "", "attn", 0, i, "softmax", "mass", row=i) for i in range(row, row + n)]


def tallied(patterns: Tensor, ids: Tensor, held_out: bool = False, kinds: TokenKinds | None = None) -> Tally:
    """Return the sums over passages whose patterns are given, `batch head query key`."""
    tally = Tally(a_head(n=patterns.shape[1]), targets_of(kinds is not None, False), ids.shape[1])
    add(tally, patterns, ids, held_out, kinds)
    return tally


def add(tally: Tally, patterns: Tensor, ids: Tensor, held_out: bool, kinds: TokenKinds | None = None) -> None:
    passages = [Passage(i, 0, tuple(row), held_out) for i, row in enumerate(ids.tolist())]
    lengths = torch.full((len(ids),), ids.shape[1])
    BatchMeter(tally, passages, looks_of(ids, lengths, kinds, False)).add("blocks.0.attn", patterns)


def test_heads_that_were_built_in_have_their_shares() -> None:
    model, ids = induction_model(vocab=26, max_len=101), repeated(26, 4, batch=3)
    found = heads_over_corpus(model, ids, length=101, heldout=0.0)
    assert share(found, "L0H0", "previous_token") == pytest.approx(1)
    roles = head_roles(run(model, ids, read=[head_roles])).scores
    for role in ROLES:
        close(found.scores.select(target=role).values, roles.select(role=role).values)


def test_a_pattern_that_is_drawn_by_hand_has_the_shares_that_loops_give() -> None:
    tokenizer = bytes_tokenizer()
    kinds = TokenKinds.of(tokenizer, tokenizer.vocab_size)
    ids = torch.tensor([tokenizer.encode(BRACKETS)])
    n = ids.shape[1]
    patterns = torch.rand(1, 2, n, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64).tril()
    patterns /= patterns.sum(-1, keepdim=True)
    tally = tallied(patterns, ids, kinds=kinds)
    text = BRACKETS
    # which keys each target is, from each query, as a reader of the text would say it
    said = {
        "previous_token": lambda q: [q - 1],
        "two_back": lambda q: [q - 2] if q > 1 else [],
        "recent": lambda q: list(range(max(0, q - 8), q)),
        "last_line_break": lambda q: [text.rindex("\n", 0, q)] if "\n" in text[:q] else [],
        "opening_bracket": lambda q: [k for k in range(q) if text[k] in "(["],
        "word_start": lambda q: _word_start(text, q),
        "open_bracket": lambda q: _open(text, q),
        "duplicate_token": lambda q: [k for k in range(q) if text[k] == text[q]],
    }
    for target, keys in said.items():
        counted = [q for q in range(1, n) if keys(q)]
        at = tally.targets.index(target)
        assert int(tally.counts[0, 0, at]) == len(counted)
        expected = sum(patterns[0, :, q, keys(q)].sum(-1) for q in counted)
        close(tally.sums[0, :, 0, at], torch.as_tensor(expected))
        # masks are in single precision
        close(tally.even[0, 0, at].float(), torch.tensor(sum(len(keys(q)) / (q + 1) for q in counted)))
    rows = -(patterns * patterns.clamp_min(1e-300).log2()).sum(-1)[0, :, 1:]
    close(tally.measures[0, :, 0], rows.sum(-1))
    distance = torch.arange(n)[:, None] - torch.arange(n)
    close(tally.measures[0, :, 1], (patterns * distance).sum(-1)[0, :, 1:].sum(-1))
    evenness = rows / torch.arange(2, n + 1, dtype=torch.float64).log2()
    close(tally.sums[0, :, 0, tally.targets.index(EVENLY)], evenness.sum(-1))


def _word_start(text: str, q: int) -> list[int]:
    begun = q
    while begun and (text[q].isalpha()) and text[begun - 1].isalpha():
        begun -= 1
    return [begun] if begun < q else []


def _open(text: str, q: int) -> list[int]:
    held = list[int]()
    for k in range(q):
        if text[k] in "([":
            held.append(k)
        elif text[k] in ")]":
            held.pop()
    return held[-1:]


def test_queries_are_of_the_classes_that_their_tokens_say() -> None:
    tokenizer = bytes_tokenizer()
    kinds = TokenKinds.of(tokenizer, tokenizer.vocab_size)
    ids = torch.tensor([tokenizer.encode(BRACKETS)])
    looks = looks_of(ids, torch.tensor([ids.shape[1]]), kinds, False)
    there = {name: "".join(BRACKETS[q] for q in one[0].nonzero()[:, 0]) for name, one in zip(FROM, looks.queries)}
    assert there["line_first"] == "rz" and there["number"] == "12" and there["closing_bracket"] == "])))"
    assert there["inside_word"] == "efeturn" and there["every_token"] == BRACKETS[1:]
    each = [class_of(text) for text in ("\n  ", "  ", " the", "_x", "42", "((", ")]", '"', " :", "", ">", ">=")]
    expected = ["line_break", "blank", "word", "word", "number", "opening_bracket", "closing_bracket", "quote"]
    assert each == [*expected, "punctuation", "", "closing_bracket", "punctuation"]
    assert set(each) - {""} == set(CLASSES)


def test_passages_are_whole_documents_cut_and_held_out_by_their_text() -> None:
    model, texts = tiny(), notes()
    tokenizer = model.tokenizer
    assert tokenizer is not None
    corpus = CutCorpus(model, texts, 24, 10**6, 0.5, 0)
    passages = list(corpus.passages())
    for number, text in enumerate(texts):
        own = [one for one in passages if one.document == number]
        assert len({one.held_out for one in own}) == 1
        begin = len(tokenizer.around()[0])
        joined = [i for one in own for i in one.ids[begin:]]
        # but for a last passage that is short
        whole = tokenizer.encode(text)
        assert joined == whole[: len(joined)] and len(whole) - len(joined) < 12
    moved = CutCorpus(model, texts[::-1], 24, 10**6, 0.5, 0).passages()
    assert {one.ids for one in moved if one.held_out} == {one.ids for one in passages if one.held_out}
    assert sum(len(one.ids) for one in CutCorpus(model, texts, 24, 100, 0.5, 0).passages()) in range(100, 125)


def test_a_stream_of_files_has_the_numbers_of_the_whole_and_batches_change_none(tmp_path: Path) -> None:
    model, texts = tiny(), notes()
    for i, text in enumerate(texts):
        (tmp_path / f"{i:02}.txt").write_text(text)
    whole = heads_over_corpus(model, texts)
    streamed = heads_over_corpus(model, TextConfig(sources=(str(tmp_path),), streaming=True))
    one, other = (json.loads(found.to_json()) | {"provenance": None} for found in (streamed, whole))
    assert one == other
    single = heads_over_corpus(model, texts, rows=5)
    close(single.shares.values.nan_to_num(), whole.shares.values.nan_to_num())
    assert single.passages == whole.passages and single.corpus == whole.corpus


def test_what_was_stopped_and_went_on_has_the_same_numbers_to_the_bit(tmp_path: Path) -> None:
    model, texts, path = tiny(), notes(), tmp_path / "heads.safetensors"
    told = list[int]()

    def interrupted(done: int, total: int) -> None:
        told.append(done)
        if done == 3:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        heads_over_corpus(model, texts, rows=4, save_to=path, report=interrupted)
    assert told == [1, 2, 3] and path.exists()
    again = list[int]()
    found = heads_over_corpus(model, texts, rows=4, save_to=path, report=lambda done, total: again.append(done))
    assert again[0] == 4
    assert found.to_json() == heads_over_corpus(model, texts, rows=4).to_json()
    # all done: nothing is read
    assert heads_over_corpus(model, texts, rows=4, save_to=path, report=lambda *_: pytest.fail()).to_json() == (
        found.to_json()
    )
    with pytest.raises(CheckpointError, match="over another corpus"):
        heads_over_corpus(model, texts[1:], rows=4, save_to=path)


def test_what_is_saved_does_not_grow_with_the_corpus(tmp_path: Path) -> None:
    sizes = set[int]()
    for n in (2, 24):
        heads_over_corpus(tiny(), notes(n), save_to=tmp_path / f"{n}")
        sizes.add((tmp_path / f"{n}").stat().st_size // 1000)
    assert len(sizes) == 1


def test_the_passage_on_top_is_that_with_the_sharpest_rows_away_from_where_heads_rest() -> None:
    ids = torch.arange(20).view(4, 5)
    patterns = torch.full((4, 1, 5, 5), 0.1, dtype=torch.float64).tril()
    patterns[..., 0] += 0.3
    patterns[2, 0, 3, 1] = 0.55
    patterns[1, 0, 4, 4] = 0.9
    top = tallied(patterns, ids).top
    best = int(top.scores[0].argmax())
    assert int(top.places[0, best, 0]) == 2
    assert top.pairs[0, best, 0].tolist() == [3, 1] and float(top.weights[0, best, 0]) == pytest.approx(0.55)
    # the second query sees the first token and itself alone
    assert float(top.scores[0, best]) == pytest.approx((0 + 0.1 + 0.55 + 0.1) / 4)


def test_a_threshold_is_the_largest_that_so_few_fall_short_of() -> None:
    drawn = torch.Generator().manual_seed(0)
    histogram = torch.randint(0, 6, (50, PERCENTS), generator=drawn)
    rate = 0.04
    least = thresholds(histogram, rate)
    total = histogram.sum(-1)
    for row, percent, n in zip(histogram, least.tolist(), total.tolist()):
        assert int(row[:percent].sum()) + 1 <= rate * (n + 1)
        assert percent == PERCENTS - 1 or int(row[: percent + 1].sum()) + 1 > rate * (n + 1)
    # so few that none can be said to be rare
    assert thresholds(torch.eye(PERCENTS, dtype=torch.int)[90] * 20, rate) == 0
    assert thresholds(torch.eye(PERCENTS, dtype=torch.int)[90] * 25, rate) == 90


def test_divergence_is_that_of_two_coins_and_nothing_where_there_is_no_more_than_even() -> None:
    share, even = (
        torch.tensor(values, dtype=torch.float64) for values in ([0.5, 1.0, 0.1, 0.2], [0.25, 0.5, 0.1, 0.9])
    )
    between = 0.5 * torch.tensor(2.0).log2() + 0.5 * torch.tensor(0.5 / 0.75).log2()
    close(divergence(share, even), torch.tensor([float(between), 1.0, 0.0, 0.0], dtype=torch.float64), 1e-6)


def _of_noise(seed: int, heads: int = 40, made: int = 150, held: int = 150) -> Tally:
    """Return sums of heads whose shares of each passage are noise around a mean of the head's own."""
    drawn = torch.Generator().manual_seed(seed)
    tally = Tally(a_head(n=heads), targets_of(False, False), 8)
    tally.counts[:, 0] = 1000.0
    tally.even[:, 0] = 50.0
    tally.sums[:] = 500.0
    n_targets = len(tally.targets)
    mean, spread = (torch.rand(heads, n_targets, 1, generator=drawn) for _ in range(2))
    for part, n in enumerate((made, held)):
        shares = (mean + spread * 0.3 * torch.randn(heads, n_targets, n, generator=drawn)).clamp(0, 1)
        percent = (100 * shares).long()
        tally.histogram[part, :, 0].scatter_add_(-1, percent, torch.ones_like(percent, dtype=torch.int32))
    return tally


def test_sentences_about_noise_are_false_no_more_often_than_is_allowed() -> None:
    allowed, false, tested = 0.06, 0, 0
    for seed in range(4):
        claims = claims_of(_of_noise(seed), allowed)
        assert len(claims) > 20
        false += sum(claim.false for claim in claims)
        tested += sum(claim.passages for claim in claims)
    assert false / tested <= allowed


def test_a_claim_that_held_out_text_refutes_is_not_said() -> None:
    ids = repeated(26, 2, batch=80)
    n = ids.shape[1]
    before = torch.ones(n - 1, dtype=torch.float64).diag(-1)
    before[0, 0] = 1
    patterns = before[None, None].expand(80, 1, n, n)
    tally = tallied(patterns, ids)
    add(tally, patterns, ids, True)
    (claim,) = claims_of(tally, 0.03)
    assert (claim.target, claim.least, claim.false, claim.holds) == ("previous_token", 1.0, 0, True)
    assert claim.text == "attends to the previous token: 100% of its weight, at least 100% in a passage"
    # of other text the head rests
    other = tallied(patterns, ids)
    resting = torch.zeros_like(patterns)
    resting[..., 0] = 1
    add(other, resting, ids, True)
    (claim,) = claims_of(other, 0.03)
    assert claim.false == claim.passages == 80 and not claim.holds
    assert sentences_of(["L0H0", "L0H1"], [claim]) == {"L0H0": NONE, "L0H1": NONE}
    # and with fewer passages than a threshold takes nothing is claimed
    few = tallied(patterns[:60], ids[:60])
    assert claims_of(few, 0.03) == []


def test_few_documents_are_noted_and_few_passages_too() -> None:
    found = heads_over_corpus(tiny(), notes(3))
    assert found.notes[0].seen.startswith("There are fewer than 20 documents")
    assert any("too few for any claim" in note.meaning for note in found.notes)
    assert found.claims == () and set(found.sentences.values()) == {NONE} and found.false != found.false
    full = heads_over_corpus(tiny(), notes(24))
    assert not any("documents" in note.seen for note in full.notes)


def test_an_encoder_is_scored_both_ways_and_has_no_induction() -> None:
    one = subject("masked_post")
    found = heads_over_corpus(one.model, one.inputs[0])
    assert "next_token" in found.scores.labels("target") and "induction" not in found.scores.labels("target")
    assert found.scores.values.nan_to_num().isfinite().all()


def test_what_cannot_be_read_is_refused() -> None:
    model = tiny()
    for texts in (iter(["a b"]), "a b", [], [1, 2], [3.0]):
        with pytest.raises(ShapeMismatch, match="texts= takes"):
            heads_over_corpus(model, texts)
    with pytest.raises(AnalysisUnavailable, match="no passage"):
        heads_over_corpus(model, ["", ""])
    with pytest.raises(TextError, match="no tokenizer"):
        heads_over_corpus(subject("gpt2").model, ["a b c"])
    pairs = subject("translator_pre").model
    with pytest.raises(AnalysisUnavailable, match="pairs of texts"):
        heads_over_corpus(pairs, ["a"])
    without = DecoderConfig(7, 8, (BlockConfig((Mlp(8),)),), max_len=32).build()
    with pytest.raises(NoPattern, match="no attention"):
        heads_over_corpus(without, [[1, 2, 3]])


def test_a_result_is_frozen_and_says_its_sentences() -> None:
    found = heads_over_corpus(tiny(), notes(2))
    assert list(found.sentences) == found.scores.labels("head") == list(found.sequences)
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.false = 0.0  # type: ignore[misc]
