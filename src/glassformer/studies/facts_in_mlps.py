"""Do facts lie in the MLPs? Planted facts, traced and rewritten: MLPs against attention.

A fact joins a subject and a relation to an object, drawn once for all: no row holds the answer, so that it has to be in
the weights. Rows are `<bos> filler subject filler relation` -> object; with other filler they ask for the same fact.

    trace     the subject is exchanged for another one, and what parts of one kind wrote at its place is put back
    rewrite   one matrix is changed towards another object, by as little as makes that the likeliest answer
"""

from collections.abc import Iterator

import torch
from torch import Tensor

import glassformer as gf
from glassformer.analysis.gradients import WeightEdit, edit_fact, linear_gradients
from glassformer.errors import AnalysisUnavailable
from glassformer.models import Decoder, DecoderConfig, Learned, Mlp, block, repeat
from glassformer.study import (
    MAJORITY,
    Case,
    Claim,
    Condition,
    Measure,
    Measures,
    Quantity,
    Scale,
    Study,
    above,
    below,
    counted,
    value,
)

SUBJECTS, RELATIONS, OBJECTS, FILLERS = 48, 4, 24, 16
FIRST_RELATION = 1 + SUBJECTS
FIRST_OBJECT = FIRST_RELATION + RELATIONS
FIRST_FILLER = FIRST_OBJECT + OBJECTS
VOCAB, LENGTH, SUBJECT_AT = FIRST_FILLER + FILLERS, 5, 2
WIDTH, LAYERS, ROWS = 48, 2, 64
BOTH, ATTENTION = "attention and MLPs", "attention alone"
# sizes of a change that are tried, the smallest first, as shares of the matrix's own size
SIZES = tuple(0.02 * 1.3**i for i in range(18))
# how a fact is rewritten: by the forward pass alone, or by a gradient step on what MLPs or attention write by
FORWARD, MLP_STEP, ATTENTION_STEP = "forward", "MLP step", "attention step"


class World:
    """The facts of one seed, and rows that ask for them."""

    def __init__(self, seed: int) -> None:
        drawn = torch.Generator().manual_seed(seed)
        self.objects = FIRST_OBJECT + torch.randint(OBJECTS, (SUBJECTS, RELATIONS), generator=drawn)

    def ask(self, subject: Tensor, relation: Tensor, random: torch.Generator) -> Tensor:
        """Return rows that ask for some facts, with filler drawn anew."""
        fillers = FIRST_FILLER + torch.randint(FILLERS, (2, len(subject)), generator=random)
        bos = torch.zeros_like(subject)
        return torch.stack((bos, fillers[0], 1 + subject, fillers[1], FIRST_RELATION + relation), 1)

    def draw(self, n: int, random: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Return subjects, relations and objects of some facts."""
        subject, relation = (torch.randint(size, (n,), generator=random) for size in (SUBJECTS, RELATIONS))
        return subject, relation, self.objects[subject, relation]


def run(case: Case) -> Measures:
    world = World(case.seed)
    model = trained(case, world)
    random = torch.Generator().manual_seed(1000 + case.seed)
    subject, relation, objects = world.draw(case["facts"], random)
    likeliest = answers(model, world.ask(subject, relation, random))
    found: Measures = {"known": float((likeliest == objects).double().mean())}
    found |= dict(traced(model, world, case["facts"], random))
    return found | dict(rewritten(model, world, case["facts"], random))


def trained(case: Case, world: World) -> Decoder:
    """Return a decoder that has learned the facts by heart, with MLPs or without."""
    layer = block(n_heads=4, mlp=Mlp(4 * WIDTH) if case["parts"] == BOTH else None)
    config = DecoderConfig(VOCAB, WIDTH, repeat(layer, LAYERS), max_len=LENGTH, positions=Learned(), tied=False)
    model, steps = config.build(case.seed), case["steps"]
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 3e-3, total_steps=steps, pct_start=0.1)
    random = torch.Generator().manual_seed(case.seed)
    for step in range(steps):
        subject, relation, objects = world.draw(ROWS, random)
        optimiser.zero_grad()
        logits = model(world.ask(subject, relation, random))[:, -1]
        torch.nn.functional.cross_entropy(logits, objects).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        case.report(step + 1, steps)
    return model.eval()


def answers(model: Decoder, rows: Tensor) -> Tensor:
    with torch.no_grad():
        return model(rows)[:, -1].argmax(-1)


def traced(model: Decoder, world: World, n: int, random: torch.Generator) -> Iterator[tuple[str, float]]:
    """Yield how much of the answer comes back when what one kind of part wrote at the subject is put back."""
    subject, relation, objects = world.draw(n, random)
    rows = world.ask(subject, relation, random)
    others = rows.clone()
    others[:, SUBJECT_AT] = 1 + (subject + 1 + torch.randint(SUBJECTS - 1, (n,), generator=random)) % SUBJECTS
    clean, corrupt = (gf.run(model, ids, read="blocks.*.out") for ids in (rows, others))

    def says(logits: Tensor) -> float:
        return float(logits[:, -1].log_softmax(-1).gather(1, objects[:, None]).mean())

    most, least = says(clean.predictions()), says(corrupt.predictions())
    for name, part in (("trace_mlp", "mlp"), ("trace_attention", "attn")):
        sites = [name for name, site in model.sites().items() if (site.part, site.quantity) == (part, "out")]
        put = [gf.Set(site, clean[site].values[:, SUBJECT_AT], at=gf.At(pos=SUBJECT_AT)) for site in sites]
        if put and most > least:
            yield name, (says(gf.run(model, others, edit=put).predictions()) - least) / (most - least)


def rewritten(model: Decoder, world: World, n: int, random: torch.Generator) -> Iterator[tuple[str, float]]:
    """Yield how far rewritten facts go with other filler, and what is left of other facts, by the way of rewriting."""
    scores: dict[str, list[tuple[float, float, float]]] = {}
    for _ in range(n):
        subject, relation, objects = world.draw(1, random)
        asked = world.ask(subject, relation, random)
        apart = 1 + torch.randint(OBJECTS - 1, (1,), generator=random)
        wanted = FIRST_OBJECT + int((objects - FIRST_OBJECT + apart) % OBJECTS)
        same = world.ask(subject.expand(16), relation.expand(16), random)
        others = world.ask(*world.draw(32, random)[:2], random)
        others = others[(others[:, SUBJECT_AT] != asked[0, SUBJECT_AT]) | (others[:, -1] != asked[0, -1])]
        for way, change in changes(model, asked, wanted):
            scores.setdefault(way, []).append(least_change(model, change, asked, wanted, same, others))
    for way, found in scores.items():
        for measure, numbers in zip(("efficacy", "paraphrase", "neighbourhood"), zip(*found)):
            yield f"{way} {measure}", sum(numbers) / len(numbers)


def changes(model: Decoder, asked: Tensor, wanted: int) -> Iterator[tuple[str, WeightEdit]]:
    """Yield each way to rewrite a fact; of each kind of matrix the gradient step is in the one of largest gradient."""
    gradient = linear_gradients(model, asked, wanted)
    for way, kind in ((MLP_STEP, "mlp out"), (ATTENTION_STEP, "attn O")):
        norms = {label: float(gradient.norm.select(map=label).values) for label in gradient.inputs if kind in label}
        if norms:
            label = max(norms, key=norms.__getitem__)
            yield way, WeightEdit(label, -gradient.inputs[label].values, gradient.vjps[label].values)
    try:
        yield FORWARD, edit_fact(model, asked, wanted, layer=LAYERS - 1, size=1.0).edit
    except AnalysisUnavailable:
        # without MLPs there is none to write into
        return


def least_change(
    model: Decoder, change: WeightEdit, asked: Tensor, wanted: int, same: Tensor, others: Tensor
) -> tuple[float, float, float]:
    """Return whether a change makes the answer the likeliest, and for the smallest that does, how many rows with other
    filler follow and how many other facts stay."""
    rows, unit = torch.cat((asked, same, others)), change.matrix_norm(model)
    before = answers(model, rows)
    for size in SIZES:
        with change.scaled(size * unit).applied(model):
            after = answers(model, rows)
        if int(after[0]) == wanted:
            first, rest = after[1 : 1 + len(same)], slice(1 + len(same), None)
            return 1.0, float((first == wanted).double().mean()), float((after[rest] == before[rest]).double().mean())
    return 0.0, 0.0, 1.0


def of(measure: str, way: str | None = None, parts: str = BOTH) -> Quantity:
    return value(measure if way is None else f"{way} {measure}", parts=parts)


LEARNED = Condition("With MLPs the facts are known", of("known"), above(0.9))
WRITTEN = Condition(
    "A gradient step on attention rewrites facts, so that the two can be compared",
    of("efficacy", ATTENTION_STEP),
    above(0.5),
)

STUDY = Study(
    "facts-in-mlps",
    paper='Katz et al. 2024, "Backward Lens: Projecting Language Model Gradients into the Vocabulary Space", '
    'section 6; Meng et al. 2022, "Locating and Editing Factual Associations in GPT"',
    question="Do facts lie in the MLPs, and can one be rewritten there by a forward pass alone?",
    run=run,
    grid={"parts": (BOTH, ATTENTION)},
    scales={"smoke": Scale(1, {"steps": 3, "facts": 2}), "small": Scale(8, {"steps": 2500, "facts": 24})},
    measures={
        "known": Measure("Share of facts that are known", learned=True),
        "trace_mlp": Measure("Share of the answer that MLPs' writes at the subject bring back"),
        "trace_attention": Measure("Share of the answer that attention's writes at the subject bring back"),
        **{
            f"{way} {measure}": Measure(f"{said}, by {how}")
            for way, how in (
                (FORWARD, "the forward pass alone, in the last MLP"),
                (MLP_STEP, "a gradient step on an MLP's output matrix"),
                (ATTENTION_STEP, "a gradient step on an attention's output matrix"),
            )
            for measure, said in (
                ("efficacy", "Share of facts that can be rewritten"),
                ("paraphrase", "Share of rows with other filler that follow"),
                ("neighbourhood", "Share of other facts that stay"),
            )
        },
    },
    claims=(
        Claim("trace", "What MLPs write at the subject brings more of the answer back than what attention writes there",
              of("trace_mlp") - of("trace_attention"), above(0), (LEARNED,)),
        Claim("attention-alone", "Attention alone learns fewer of the facts",
              counted(of("known", parts=ATTENTION) - of("known"), below(-0.05)), MAJORITY, (LEARNED,)),
        Claim("keeps-others", "Rewritten in an MLP a fact leaves more others alone than rewritten in attention",
              of("neighbourhood", MLP_STEP) - of("neighbourhood", ATTENTION_STEP), above(0), (LEARNED, WRITTEN)),
        Claim("forward-writes", "The forward pass alone rewrites nearly every fact", of("efficacy", FORWARD),
              above(0.9), (LEARNED,)),
        Claim("forward-follows", "With other words a fact so rewritten follows in a third of cases and more",
              of("paraphrase", FORWARD), above(1 / 3), (LEARNED,)),
        Claim("forward-spoils", "It leaves fewer others alone than a gradient step on an MLP does",
              of("neighbourhood", FORWARD) - of("neighbourhood", MLP_STEP), below(0), (LEARNED,)),
    ),
    differs=(
        "Decoders of two layers that know 192 facts of one token each, and nothing else; the papers edit GPT-2 XL, on "
        "CounterFact.",
        "Each way changes by the least of a row of sizes that makes the answer the likeliest; the paper fixes a rate.",
        "Other filler stands for paraphrases, and facts of other subjects or relations for the neighbourhood.",
    ),
    mechanisms=("softmax",),
    references={"parts": (BOTH,)},
)  # fmt: skip
