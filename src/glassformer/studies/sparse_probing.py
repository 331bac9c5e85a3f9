"""Sparse probing of shipped models: how many neurons tell what a text is, in which layers, and whether one is enough.

    contexts    what a stretch of Python is: docstring or code, comment or code, licence or other comment, and of which
                package; neurons are averaged over the stretch
    pairs       a token behind one certain token, or behind others

Probes are tried on files that they were not fitted to. Who knows nothing has an F1 of 1 / 2, or of 2 / 3 by saying
always yes, since every other example has the property.
"""

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Literal, NamedTuple

import torch
from torch import Tensor

import glassformer as gf
from glassformer.analysis.activations import stored
from glassformer.analysis.probes import SparseProbes, sparse_probe
from glassformer.data.tokenizer import Tokenizer
from glassformer.models import Decoder, DecoderConfig, ModelLike
from glassformer.studies.sparse_probing_texts import CONTEXTS, Examples, Texts, drawn
from glassformer.study import Case, Claim, Condition, Measure, Measures, Quantity, Scale, Study, above, below, value

Select = Literal["grown", "mean_difference", "random"]
ONE, FEW = 1, 8  # neurons
COUNTS = (ONE, 2, 3, FEW)
GROWN: Select = "grown"
RANKED: Select = "mean_difference"
RANDOM: Select = "random"
GPT, HYBRID, UNTRAINED = "gpt-4l", "hybrid-4l", "untrained"
CONTEXT, PAIR = "context", "pair"


class Told(NamedTuple):
    """What neurons of one layer tell of a property, and of the same labels shuffled."""

    found: SparseProbes
    shuffled: SparseProbes

    def f1(self, k: int, select: str = GROWN) -> float:
        return float(self.found.f1.select(select=select).values[COUNTS.index(k)])

    @property
    def by_chance(self) -> float:
        """F1 of few neurons that are chosen for shuffled labels."""
        return float(self.shuffled.f1.values)

    def gap(self, select: str) -> float:
        """How much more the best of all neurons, pairs or triples explains than those chosen, at most, as R^2."""
        return float(self.found.gap.select(select=select).values[: COUNTS.index(FEW)].max())

    @property
    def dropped(self) -> float:
        """How much more the best neuron tells than the one that is best without it, as F1."""
        first, second = self.found.pruned.values[:2].tolist()
        return first - second


def run(case: Case) -> Measures:
    model = gf.load(GPT if case["model"] == UNTRAINED else case["model"])
    assert isinstance(model, Decoder), "the models that are probed are decoders"
    assert isinstance(model.tokenizer, Tokenizer), "a shipped model brings its tokenizer"
    texts = drawn(model.tokenizer, case["files"], case["pairs"], case.seed)
    # weights of this seed in place of those that were learned
    return dict(measured(Decoder(model.config) if case["model"] == UNTRAINED else model, texts, case))


def measured(model: ModelLike, texts: Texts, case: Case) -> Iterator[tuple[str, float]]:
    """Yield what few neurons tell, means over the properties of a kind: by depth, and beside what it is held to."""
    told = probed(model, texts, case)
    for kind in (CONTEXT, PAIR):
        of_kind = [layers for name, layers in told.items() if (name in CONTEXTS) == (kind == CONTEXT)]
        for depth, layers in depths(len(of_kind[0])).items():
            here = [of_property[layer] for of_property in of_kind for layer in layers]
            yield f"{kind} one {depth}", fmean(one.f1(ONE) for one in here)
            yield f"{kind} few {depth}", fmean(one.f1(FEW) for one in here)
        # of a property the layer that tells it best, and of properties the one that is told worst
        yield f"{kind} least", min(max(one.f1(FEW) - one.by_chance for one in layers) for layers in of_kind)
        every = [one for layers in of_kind for one in layers]
        yield f"{kind} one", fmean(one.f1(ONE) for one in every)
        yield f"{kind} few", fmean(one.f1(FEW) for one in every)
        yield f"{kind} at random", fmean(one.f1(FEW, RANDOM) for one in every)
        yield f"{kind} ranked", fmean(one.f1(FEW, RANKED) for one in every)
        yield f"{kind} gap", fmean(one.gap(GROWN) for one in every)
        yield f"{kind} dropped", fmean(one.dropped for one in every)


def probed(model: ModelLike, texts: Texts, case: Case) -> dict[str, list[Told]]:
    """Return what neurons of each layer tell of each property."""
    random, found = case.generator(), dict[str, list[Told]]()
    with stored(model, texts.rows, "mlp.hidden") as (store, sites):
        layers = [torch.cat([batch.values for batch in store.site(site).batches(2**14)]) for site in sites]
    for done, (name, examples) in enumerate(texts.examples.items()):
        found[name] = [told(averaged(neurons, examples), examples, random, case.seed) for neurons in layers]
        case.report(done + 1, len(texts.examples))
    return found


def averaged(neurons: Tensor, examples: Examples) -> Tensor:
    """Return the mean of neurons over the tokens of each example, `example neuron`."""
    tokens = examples.firsts[:, None] + torch.arange(examples.size)
    return neurons[tokens].mean(1)


def told(neurons: Tensor, examples: Examples, random: torch.Generator, seed: int) -> Told:
    labels = examples.labels
    by_chance = labels[torch.randperm(len(labels), generator=random)]
    return Told(
        found=few_tell(neurons, examples.rows, labels, COUNTS, (GROWN, RANKED, RANDOM), seed),
        shuffled=few_tell(neurons, examples.rows, by_chance, (FEW,), (GROWN,), seed),
    )


def few_tell(
    neurons: Tensor, documents: Tensor, labels: Tensor, counts: Sequence[int], select: Sequence[Select], seed: int
) -> SparseProbes:
    """Return sparse probes of vectors, fitted to half of the documents and tried on the other half.

    Args:
        neurons: A vector for each example, `example neuron`.
        documents: Document of each, in ascending order.
        labels: 1 or 0 of each.
        counts: As for `sparse_probe`, and so are all others.
        select: See there.
        seed: See there.
    """
    # a model whose tokens are the examples, and whose embedding is what neurons make of them
    model = DecoderConfig(len(neurons), neurons.shape[1], (), max_len=len(labels)).build()
    assert model.embed.matrix is not None, "an embedding is one matrix unless it is asked for otherwise"
    model.embed.matrix.data.copy_(neurons)
    sizes = documents.unique(return_counts=True)[1].tolist()
    rows = [one.tolist() for one in torch.arange(len(labels)).split(sizes)]
    return sparse_probe(
        model, rows, list(labels.split(sizes)), "embed.token", counts=counts, select=select, folds=2, seed=seed
    )


def depths(n: int) -> dict[str, Sequence[int]]:
    """Return which of so many layers are the first quarter, the last one, and those between."""
    quarter = max(1, n // 4)
    return {"first": range(quarter), "middle": range(quarter, n - quarter), "last": range(n - quarter, n)}


def of(measure: str, model: str = GPT) -> Quantity:
    return value(measure, model=model)


TOLD = {
    kind: Condition(f"Every {kind} can be told by few neurons of some layer", of(f"{kind} least"), above(0.1))
    for kind in (CONTEXT, PAIR)
}
BOTH = tuple(TOLD.values())

STUDY = Study(
    "sparse-probing",
    paper='Gurnee et al. 2023, "Finding Neurons in a Haystack: Case Studies with Sparse Probing", arXiv 2305.01610',
    question="How few neurons tell what a text is, in which layers, and is one enough?",
    run=run,
    grid={"model": (GPT, HYBRID, UNTRAINED)},
    scales={
        "smoke": Scale(1, {"files": 8, "pairs": 1}, {"model": (UNTRAINED,)}),
        "small": Scale(3, {"files": 48, "pairs": 6}),
    },
    measures={
        f"{kind} {name}": Measure(f"{said}; {kind}s", analysis=sparse_probe)
        for kind in (CONTEXT, PAIR)
        for name, said in (
            *((f"one {depth}", f"F1 of the best neuron, {layers}") for depth, layers in (
                ("first", "in the first layer"), ("middle", "in the layers between"), ("last", "in the last layer"))),
            *((f"few {depth}", f"F1 of {FEW} neurons, {layers}") for depth, layers in (
                ("first", "in the first layer"), ("middle", "in the layers between"), ("last", "in the last layer"))),
            ("least", f"What {FEW} neurons tell more than those for shuffled labels: of the property told worst, F1"),
            ("one", "F1 of the best neuron, all layers"),
            ("few", f"F1 of {FEW} neurons, all layers"),
            ("at random", f"F1 of {FEW} neurons at random"),
            ("ranked", f"F1 of the {FEW} neurons whose means differ most"),
            ("gap", "What the best of all neurons, pairs or triples explain more than those chosen, R^2"),
            ("dropped", "What the best neuron tells more than the next best, F1"),
        )
    },
    claims=(
        *(Claim(f"{kind}s-told", f"Few neurons tell every {kind}, better than where labels are shuffled",
                of(f"{kind} least"), above(0.1)) for kind in (CONTEXT, PAIR)),
        *(Claim(f"{kind}s-{name}", f"{said} ({kind}s)", quantity, expected, (TOLD[kind],))
          for kind in (CONTEXT, PAIR)
          for name, said, quantity, expected in (
              ("chosen", "They tell more than as many neurons at random", of(f"{kind} few") - of(f"{kind} at random"),
               above(0.1)),
              ("learned", "and more than as many of a model that was not trained",
               of(f"{kind} few") - of(f"{kind} few", UNTRAINED), above(0.05)),
              ("ranked", "Ranking neurons by how their means differ does nearly as well as a search",
               of(f"{kind} ranked") / of(f"{kind} few"), above(0.95)),
              ("optimal", "The search is near what the best of all subsets explain", of(f"{kind} gap"), below(0.01)),
          )),
        *(Claim(f"pairs-several-{name}", f"In the first layer pairs take several neurons, more than in those between "
                f"({model})", (of("pair few first", model) - of("pair one first", model))
                - (of("pair few middle", model) - of("pair one middle", model)), above(0), (TOLD[PAIR],))
          for name, model in (("gpt", GPT), ("hybrid", HYBRID))),
        *(Claim(f"contexts-{name}-{short}", f"{said} ({model})", quantity, expected, (TOLD[CONTEXT],))
          for short, model in (("gpt", GPT), ("hybrid", HYBRID))
          for name, said, quantity, expected in (
              ("single", "One neuron tells contexts nearly as well as few, in the layers between",
               of("context one middle", model) / of("context few middle", model), above(0.9)),
              ("later", "It tells more there than in the first layer",
               of("context one middle", model) - of("context one first", model), above(0)),
              ("not-last", "and more than in the last",
               of("context one middle", model) - of("context one last", model), above(0)),
          )),
        Claim("contexts-dedicated", "Without that neuron the next best tells less", of("context dropped"),
              above(0.05), (TOLD[CONTEXT],)),
        Claim("contexts-more-single", "One neuron of few is worth more for contexts than for pairs",
              of("context one") / of("context few") - of("pair one") / of("pair few"), above(0), BOTH),
    ),
    differs=(
        "Decoders of four layers of width 256 that know Python alone, and ten properties of Python; the paper probes "
        "models of 70 million to seven billion parameters for more than a hundred properties of ten kinds.",
        "Neurons are products of a gate and a linear branch, without biases, so that the paper's sign of superposition "
        "in weights (large norms beside negative biases) does not exist. That early neurons are shared is asked of "
        "pairs of tokens alone.",
        "Least squares in place of the optimal hinge loss, the best of all subsets up to three neurons of fifty.",
        "How many files are read, and that contexts are averaged over eight tokens, was set on one seed; thresholds "
        "before.",
        "The fourth finding, sparser with size, is asked by sparse-probing-widths; neurons that are known to be shared "
        "by sparse-probing-toys.",
    ),
    references={"model": (GPT,)},
)  # fmt: skip
