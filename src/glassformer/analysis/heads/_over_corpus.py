"""Heads over a corpus: shares of their weight by target, the passages they look most sharply in, and a sentence each.

    heads_over_corpus(model, TextConfig(sources=("notes",)))                    a folder, read document by document
    heads_over_corpus(model, texts, save_to="heads.safetensors")                goes on where it was stopped

Passages are read in batches; a layer's pattern is summed as it arises, so that neither patterns nor passages are held,
and memory does not grow with the corpus. Sums are saved between two batches: what was stopped and went on has the same
numbers to the bit as what was not.

Source: Clark et al. 2019, "What Does BERT Look At?" (heads by the kinds of tokens they look at, over a corpus).
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from glassformer.analysis.heads._claims import HeadClaim, claims_of, sentences_of
from glassformer.analysis.heads._passages import FEW, CorpusExtent, CutCorpus, Passage, require_texts
from glassformer.analysis.heads._tally import MEASURES, TOP, BatchMeter, Tally
from glassformer.analysis.heads._targets import EVERY, FROM, TokenKinds, looks_of, targets_of
from glassformer.analysis.heads.roles import Head, Reading, heads, no_patterns, patterned
from glassformer.analysis.question import question
from glassformer.analysis.saved import SavedWork
from glassformer.arguments import Count, PositiveShare, Rate
from glassformer.errors import AnalysisUnavailable, WrongArgument
from glassformer.fitting.interrupts import Interrupts
from glassformer.labelled import Labelled, Result
from glassformer.models import Model, ModelLike, require_model
from glassformer.models.evaluation import evaluating
from glassformer.numerics.placement import place_of
from glassformer.provenance import Binding, Note, length_note, tell
from glassformer.provenance.digest import digest
from glassformer.trace import Read, Tape
from glassformer.words import Sentence, sentence

FORMAT = 1  # of the file of sums
TOKENS = 2048  # in one pass; masks take length times as much


@dataclasses.dataclass(frozen=True)
class LookedAt:
    """A query and a key of a passage with much weight between them.

    Args:
        query: Place of the query in the passage, from 0.
        key: Place of the key.
        weight: Its share of the query's row.
    """

    query: int
    key: int
    weight: float


@dataclasses.dataclass(frozen=True)
class TopPassage:
    """A passage in which a head looks sharply.

    Args:
        score: Mean over queries of the largest weight on a key that is neither the first token nor the query itself.
        document: Which of the corpus it is of, from 0.
        start: Where in the document it begins, in tokens.
        tokens: Its tokens.
        pairs: The pairs with most weight, of those that count for the score, largest first.
    """

    score: float
    document: int
    start: int
    tokens: tuple[str, ...]
    pairs: tuple[LookedAt, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class HeadsOverCorpus(Result):
    """What each head looks at over a corpus, and a sentence about each, tested on held-out text.

    Args:
        sentences: A claim about each head that holds on held-out text, or that none was found.
        claims: The claims that were made, of at most one for each head, with what became of them.
        shares: Mean share of a head's weight on each target, by the class of the query, over the whole corpus,
            `head queries target`; NaN where no query has such a key.
        even: The same of a row that is even over all keys, `queries target`.
        measures: Means over all queries of the whole corpus, `head measure`: entropy of the row in bits, distance of
            the keys in tokens.
        sequences: For each head the passages in which it looks most sharply, one of each document.
        false: Share of held-out passages on which a claim is false, over all claims and passages; NaN without a claim.
        allowed: Share of held-out passages up to which a claim that is false on them holds.
        documents: Documents that were read.
        passages: Passages that claims were made from, and those held out.
        tokens: Tokens of each.
        length: Tokens of a passage, at most.
        corpus: Digest of all that was read.
        readings: For each head, `mass` (share of its weight) or `signed` (signed over absolute).
        left_out: Heads without a pattern, and why.
    """

    HEADLINE = ("scores",)

    sentences: Mapping[str, Sentence]
    claims: tuple[HeadClaim, ...]
    shares: Labelled
    even: Labelled
    measures: Labelled
    sequences: Mapping[str, tuple[TopPassage, ...]]
    false: float
    allowed: float
    documents: int
    passages: tuple[int, int]
    tokens: tuple[int, int]
    length: int
    corpus: str
    readings: tuple[Reading, ...]
    left_out: Mapping[str, Sentence]

    @property
    def scores(self) -> Labelled:
        """Mean share of a head's weight on each target over all queries, `head target`."""
        return self.shares.select(queries=EVERY)

    @property
    def refuted(self) -> tuple[HeadClaim, ...]:
        """Claims that do not hold on held-out text."""
        return tuple(claim for claim in self.claims if not claim.holds)


@question("What does each head look at over a corpus, and which sentence about it holds on other text?", of="texts")
@torch.no_grad()
def heads_over_corpus(
    model: ModelLike,
    texts: Any,
    *,
    tokens: Count = 1_000_000,
    length: Count | None = None,
    heldout: Rate = 0.25,
    allowed: PositiveShare = 0.03,
    rows: Count | None = None,
    seed: int = 0,
    save_to: str | Path | None = None,
    report: Callable[[int, int], None] | None = None,
) -> HeadsOverCorpus:
    """Read a corpus, score every self-attention head with a pattern, and say a sentence of each that can be false.

    Each sentence claims that a head has at least so much of its weight somewhere, in a passage. The threshold is set on
    one part of the documents and tested on the others, which are told by a hash of their text; of fewer than twenty
    documents, passages are held out in their place. With n passages to make claims from, thresholds exist from n >
    2 / allowed on.

    Args:
        model: A decoder or an encoder.
        texts: A `TextConfig`, whose documents are read one by one and never held together; or a list of texts or rows
            of ids, each a document.
        tokens: Tokens that are read, at most: the first of the corpus.
        length: Tokens of a passage, at most; by default as many as training prepared the model for, up to 256.
        heldout: Share of documents on which sentences are tested, and from which none is made.
        allowed: Share of held-out passages on which a sentence may be false.
        rows: Passages in one pass; by default as many as hold 2,048 tokens.
        seed: Of what is held out.
        save_to: File for the sums. What was interrupted goes on from it, to the same numbers; the file of another
            corpus or model is refused.

    Raises:
        AnalysisUnavailable: The model is none of ours, reads pairs or images, or the texts hold nothing to read.
        NoPattern: No head has a pattern.
        ShapeMismatch: Texts are none, or can be gone through only once.
        TextError: The model has no tokenizer, and these are texts.
        WrongArgument: Passages have no room for two tokens.
        CheckpointError: The file is damaged, or of other work.
    """
    model = require_model(model, "heads_over_corpus")
    known = _known(model)
    longest = min(length or min(256, model.familiar_length), model.config.max_len)
    corpus = CutCorpus(model, require_texts(texts), longest, tokens, heldout, seed)
    if corpus.room < 2:
        raise WrongArgument(
            f"heads_over_corpus: length= takes room for two tokens and for the specials around a text; found {longest}."
        )
    corpus, extent = corpus.measured()
    _say(corpus, extent, allowed)
    rows = max(1, TOKENS // longest) if rows is None else rows
    tally = Tally(known, targets_of(model.tokenizer is not None, model.reads_ahead()), longest)
    work = _work(model, corpus, extent, rows, save_to)
    done = 0
    if work.tensors:
        done = int(work.tensors["batches"])
        tally.restore(work.tensors)
    _read(corpus, tally, work, done, -(-sum(extent.passages) // rows), rows, report)
    return _result(model, tally, corpus, extent, allowed)


def _known(model: Model) -> list[Head]:
    """Return the heads that are scored; raises where there are none, or what they read is no one text."""
    if model.reads_pairs or model.patches is not None:
        what = "images" if model.patches is not None else "pairs of texts"
        raise AnalysisUnavailable(
            f"heads_over_corpus reads documents, and this model reads {what}.\n"
            "    Of one input: analysis.heads.find_pattern(run, mask=…), and run[…] has every pattern."
        )
    known = [head for head in patterned(model) if not head.crosses]
    if not known:
        raise no_patterns(
            "heads_over_corpus", ", ".join(sorted({head.mechanism for head in heads(model)})) or "no attention"
        )
    return known


def _say(corpus: CutCorpus, extent: CorpusExtent, allowed: float) -> None:
    """Tell the analysis at work what must be known of passages and of the parts of the corpus."""
    tell(length_note(corpus.length, corpus.model.trained_length))
    if corpus.by_passage:
        tell([
            Note(
                sentence("There are fewer than {n} documents: passages are held out, and no documents.", n=FEW),
                sentence("Claims are tested on text of the documents they were made from."),
            )
        ])  # fmt: skip
    made, held = extent.passages
    if made + 1 < 2 / allowed or not held:
        tell([
            Note(
                sentence("{made} passages to make claims from, {held} to test them on.", made=made, held=held),
                sentence("That is too few for any claim."),
                sentence("Give more text."),
            )
        ])  # fmt: skip


def _work(model: Model, corpus: CutCorpus, extent: CorpusExtent, rows: int, save_to: str | Path | None) -> SavedWork:
    """Return the file of sums; raises `CheckpointError` if it is of other work."""
    # a file that is not asked for takes no digest of the weights
    told = "" if save_to is None else repr((FORMAT, digest(model), extent, corpus.length, rows, model.reads_ahead()))
    other = "the heads of another model, or over another corpus, or cut or held out otherwise"
    bound = Binding("heads_over_corpus", model, [], corpus.seed)
    return SavedWork(None if save_to is None else Path(save_to), "heads", told.encode(), other, bound)


def _read(
    corpus: CutCorpus,
    tally: Tally,
    work: SavedWork,
    done: int,
    total: int,
    rows: int,
    report: Callable[[int, int], None] | None,
) -> None:
    """Read the batches that are missing; what was read is saved before an interruption is obeyed."""
    model = corpus.model
    vocabulary = TokenKinds.of(model.tokenizer, model.config.vocab_size)

    def save() -> None:
        work.save({**tally.tensors(), "batches": torch.tensor(done)})

    with evaluating(model), Interrupts() as interrupts:
        for number, batch in enumerate(corpus.batches(rows) if done < total else ()):
            if number < done:
                continue
            _add(model, tally, batch, vocabulary)
            done += 1
            if report is not None:
                report(done, total)
            if work.is_due() or interrupts.asked or done == total:
                save()
            interrupts.check()


def _add(model: Model, tally: Tally, batch: list[Passage], vocabulary: TokenKinds | None) -> None:
    """Read a batch of passages, and add what heads look at in it."""
    inputs = model.read([list(one.ids) for one in batch])
    ids = inputs.require_ids("heads_over_corpus")
    lengths = torch.tensor([len(one.ids) for one in batch], device=place_of(model))
    meter = BatchMeter(tally, batch, looks_of(ids, lengths, vocabulary, model.reads_ahead()))
    paths = dict.fromkeys(head.path for head in tally.heads)
    read = [Read(f"{path}.pattern", reduce=functools.partial(meter.add, path)) for path in paths]
    # nothing looks at the logits, which would be most of what is held
    model(*inputs.args, **inputs.kwargs, tape=Tape(model, read, logits=False))


def _result(model: Model, tally: Tally, corpus: CutCorpus, extent: CorpusExtent, allowed: float) -> HeadsOverCorpus:
    labels = [head.label for head in tally.heads]
    claims = claims_of(tally, allowed)
    tested, false = (sum(getattr(claim, name) for claim in claims) for name in ("passages", "false"))
    n_from = len(FROM) if model.tokenizer is not None else 1
    coords = {"head": labels, "queries": FROM[:n_from], "target": tally.targets}
    counts = tally.counts.sum(0)[:n_from]
    # 0 / 0 where a target is defined nowhere: NaN says so
    shares, even = tally.sums.sum(0)[:, :n_from] / counts, tally.even.sum(0)[:n_from] / counts
    measures = tally.measures.sum(0) / tally.counts[:, 0, -1].sum()
    return HeadsOverCorpus(
        sentences=sentences_of(labels, claims),
        claims=tuple(claims),
        shares=Labelled(shares, ("head", "queries", "target"), coords),
        even=Labelled(even, ("queries", "target"), {name: coords[name] for name in ("queries", "target")}),
        measures=Labelled(measures, ("head", "measure"), {"head": labels, "measure": MEASURES}),
        sequences={label: _sequences(model, tally, i) for i, label in enumerate(labels)},
        false=false / tested if tested else float("nan"),
        allowed=allowed,
        documents=extent.documents,
        passages=extent.passages,
        tokens=extent.tokens,
        length=corpus.length,
        corpus=extent.digest,
        readings=tuple(head.reading for head in tally.heads if head.reading is not None),
        left_out=_left_out(model),
    )


def _left_out(model: Model) -> dict[str, Sentence]:
    """Return the heads that have no pattern, and why."""
    known = {head.label.partition("/")[0] for head in patterned(model)}
    return {
        head.label: sentence('"{kind}" has no pattern', kind=head.mechanism)
        for head in heads(model)
        if head.label not in known
    }


def _sequences(model: Model, tally: Tally, head: int) -> tuple[TopPassage, ...]:
    """Return the passages kept for a head, those with the largest score first."""
    top, found = tally.top, list[TopPassage]()
    for at in top.scores[head].argsort(descending=True, stable=True).tolist()[:TOP]:
        document, start, size = top.places[head, at].tolist()
        if document < 0:
            continue
        ids = top.ids[head, at, :size].tolist()
        tokens = [str(i) for i in ids] if model.tokenizer is None else model.tokenizer.tokens(ids)
        pairs = zip(top.pairs[head, at].tolist(), top.weights[head, at].tolist())
        looked = tuple(LookedAt(query, key, weight) for (query, key), weight in pairs if weight > 0)
        found.append(TopPassage(float(top.scores[head, at]), document, start, tuple(tokens), looked))
    return tuple(found)
