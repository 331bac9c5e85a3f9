"""Where a model that completes what comes again keeps which token stood before: interchange interventions on one.

    base      <bos> … A B … C D … A    -> B
    source    <bos> … C B … A D … A    -> D        the same tokens, but A and C have changed places
    taken     what the base has at B and D is taken from the source, so that B stood behind C there and D behind A

Both have the same tokens at B, at D and at the end, so that all they differ by there is what stood before. If that is a
variable of the model, the base answers D. A search for the subspace that holds it is tried on pairs of other tokens,
beside the whole place, subspaces at random, and the one that a previous-token head writes to, which weights give.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

import glassformer as gf
from glassformer.analysis.causal import Interchanged, alignment_search, interchange
from glassformer.analysis.heads import head_scores
from glassformer.data import Counterfactuals
from glassformer.models import Decoder
from glassformer.numerics import decompositions
from glassformer.study import Case, Claim, Condition, Measure, Measures, Quantity, Scale, Study, above, below, value

MODEL, LENGTH = "attn-only-2l", 16  # different tokens behind <bos>
FIRST, SECOND = 4, 10  # where A and C stand in the base
BEHIND = [FIRST + 1, SECOND + 1]
DIMENSIONS = (1, 32)  # of the subspace that is searched for; a head writes to 32
COPIED, SPENT = "layer 0, at the tokens behind", "layer 1, at the tokens behind"
ASKING, ANSWER = "layer 0, at the end", "layer 1, at the end"


class Place(NamedTuple):
    """A site, and positions in it."""

    site: str
    positions: list[int]


PLACES = {
    COPIED: Place("blocks.0.resid_post", BEHIND),
    SPENT: Place("blocks.1.resid_post", BEHIND),
    ASKING: Place("blocks.0.resid_post", [-1]),
    ANSWER: Place("blocks.1.resid_post", [-1]),
}


def run(case: Case) -> Measures:
    model = gf.load(MODEL)
    assert isinstance(model, Decoder), "the models with attention only are decoders"
    return dict(measured(model, pairs_of_prompts(model, case["rows"], case.seed), case))


def pairs_of_prompts(model: Decoder, n: int, seed: int) -> Counterfactuals:
    """Return pairs of random prompts with A and C exchanged, and the answers of the base before and after."""
    random = torch.Generator().manual_seed(seed)
    # the first id is that of <bos>
    drawn = 1 + torch.rand(n, model.config.vocab_size - 1, generator=random).topk(LENGTH).indices
    base = torch.cat((torch.zeros(n, 1, dtype=torch.long), drawn, drawn[:, FIRST - 1 : FIRST]), 1)
    source = base.clone()
    source[:, [FIRST, SECOND]] = base[:, [SECOND, FIRST]]
    return Counterfactuals(base, source, answer=base[:, SECOND + 1], before=base[:, FIRST + 1])


def measured(model: Decoder, pairs: Counterfactuals, case: Case) -> Iterator[tuple[str, float]]:
    """Yield what exchanging a place does, and where the variable should lie what subspaces of it do."""
    site, at = PLACES[case["place"]].site, gf.At(pos=PLACES[case["place"]].positions)
    with torch.no_grad():
        before, after = (model(ids)[:, -1].argmax(-1) for ids in (pairs.base, pairs.source))
    yield "done", float(((before == pairs.before) & (after == pairs.answer)).double().mean())
    if case["place"] != COPIED:
        yield "whole", share(interchange(model, pairs, site, at=at), "whole place")
        return
    head = written_by_head(model)
    found = interchange(model, pairs, site, head, at=at, draws=case["draws"], seed=case.seed)
    yield "whole", share(found, "whole place")
    yield "head", share(found, "subspace")
    for k in DIMENSIONS:
        search = alignment_search(
            model, pairs, site, k, at=at, steps=case["steps"], draws=case["draws"], seed=case.seed, report=case.report
        )
        yield f"searched {k}", share(search.held_out, "subspace")
        yield f"random {k}", share(search.held_out, "random subspace")
        yield f"overlap {k}", float(search.cosines(head).square().mean())
        # of a subspace without an effect there is none
        if math.isfinite(search.illusion):
            yield f"illusion {k}", search.illusion


def share(found: Interchanged, exchanged: str) -> float:
    """Return the share of prompts that answer as the counterfactual asks."""
    return float(found.accuracy.select(exchanged=exchanged).values)


def written_by_head(model: Decoder) -> Tensor:
    """Return a basis of what the first layer's head that looks at the token before writes, by its weights, as rows."""
    scores = head_scores(model).scores.select(role="previous_token")
    first = {
        str(head): score for head, score in zip(scores.labels("head"), scores.values.tolist()) if "L0" in str(head)
    }
    written = gf.weights.of(model)[max(first, key=first.__getitem__)].written()[0].detach()
    _, size, basis = decompositions.svd(written)
    return basis[size > 1e-3 * size[0]]


def of(measure: str, place: str = COPIED) -> Quantity:
    return value(measure, place=place)


WIDE = DIMENSIONS[-1]
DONE = Condition("The model completes what comes again, in base and source", of("done"), above(0.8))

STUDY = Study(
    "induction-variable",
    paper='Geiger et al. 2023, "Finding Alignments Between Interpretable Causal Variables and Distributed Neural '
    'Representations", arXiv 2303.02536; the variable: Elhage et al. 2021, "A Mathematical Framework for Transformer '
    'Circuits", induction heads',
    question="Where does a model that completes what comes again keep what stood before, and in how many dimensions?",
    run=run,
    grid={"place": tuple(PLACES)},
    scales={
        "smoke": Scale(1, {"rows": 12, "steps": 2, "draws": 1}),
        "small": Scale(3, {"rows": 128, "steps": 100, "draws": 8}),
    },
    measures={
        "done": Measure("Share of pairs whose base and source are both gone on with rightly"),
        "whole": Measure("Share that answer as the source asks when the whole place is taken", analysis=interchange),
        "head": Measure("The same of what the previous-token head writes to, by its weights", analysis=interchange),
        **{
            f"{name} {k}": Measure(said, analysis=alignment_search)
            for k in DIMENSIONS
            for name, said in (
                ("searched", f"The same of the subspace that was searched for, of {k} dimensions, on other prompts"),
                ("random", f"The same of {k} dimensions at random"),
                ("overlap", "Mean squared cosine between what was found and what the head writes to"),
                ("illusion", "Share of the effect that neither the part that is read nor the rest has alone"),
            )
        },
    },
    claims=(
        Claim("carried", "Behind the first layer the tokens behind A and C hold which of them they follow",
              of("whole"), above(0.8), (DONE,)),
        Claim("not-at-the-end", "The last token does not hold it there", of("whole", ASKING), below(0.1), (DONE,)),
        Claim("spent", "and behind the second layer it is used up", of("whole", SPENT), below(0.1), (DONE,)),
        Claim("answered", "where the last token holds the answer", of("whole", ANSWER), above(0.8), (DONE,)),
        Claim("searched", f"A subspace of {WIDE} dimensions that is searched for holds it, for tokens it was not "
              "fitted to", of(f"searched {WIDE}"), above(0.8), (DONE,)),
        Claim("beyond-random", "as subspaces at random do not", of(f"searched {WIDE}") - of(f"random {WIDE}"),
              above(0.5), (DONE,)),
        Claim("not-one", "One direction does not tell one token of a thousand", of("searched 1"), below(0.2), (DONE,)),
        Claim("by-the-head", "It is what the previous-token head writes", of("head"), above(0.5), (DONE,)),
        Claim("found-the-head", "and what is found lies along that, twice as much as by chance",
              of(f"overlap {WIDE}"), above(0.25), (DONE,)),
        Claim("no-illusion", "What is found is no illusion", of(f"illusion {WIDE}"), below(0.5), (DONE,)),
    ),
    differs=(
        "The paper aligns variables of logic and arithmetic with Alpaca; here the variable is of a circuit whose parts "
        "are known.",
        "Which token stood before is exchanged between two tokens at once, by one subspace for both.",
        f"A head of {MODEL} writes to 32 of 256 dimensions, so that a subspace at random overlaps by one eighth.",
    ),
    mechanisms=("softmax",),
    references={"place": (COPIED,)},
)  # fmt: skip
