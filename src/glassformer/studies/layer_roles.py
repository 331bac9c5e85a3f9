"""Which layers know what: phrases the lower ones, syntax those in the middle, meaning the upper ones?

Functions in Python are the texts, one of a file, and what Python's own parser says of them the answers; shipped models
are asked.

    surface      the kind of a token: name, keyword, number, string, …
    phrases      whether constituents of one kind lie together (NMI of clusters and kinds)
    syntax       the parser's name of what stands around the part that holds a token; and the whole tree, as distances
    meaning      the type of a literal

Each is asked of the stream at every depth, of an untrained model of the same shape, of a random vector for each token,
and of chance. Seeds draw other functions.
"""

import ast
import math
from collections.abc import Iterator
from itertools import islice
from random import Random
from typing import Any

import torch
from torch import Tensor

import glassformer as gf
from glassformer.analysis.probes import phrase_clusters, probe, structural_probe
from glassformer.data.labels import LabelledDocument, LabelledText, python_labels
from glassformer.data.text.sources import STANDARD_LIBRARY, read_source
from glassformer.data.tokenizer import Tokenizer
from glassformer.errors import DataError
from glassformer.labelled import Labelled
from glassformer.models import ModelLike
from glassformer.study import Case, Claim, Measure, Measures, Quantity, Scale, Study, above, value

ENCODER, DECODER = "encoder-4l", "gpt-4l"
# layer 0 is what the first block reads
DEPTH = ("blocks.0.resid_pre", "resid_post")
# a property of labelled Python for each role
ROLES = {"surface": "kind", "syntax": "parent", "meaning": "literal"}
SITE, OTHER_TASK, TREE = "the site", "control task", "edges"
BEYOND = 0.02  # share of tokens that a probe has to tell more than any control


def run(case: Case) -> Measures:
    model: Any = gf.load(case["model"])
    untrained = model.config.build(1 + case.seed)
    texts = LabelledText(islice(functions(model.tokenizer, case.seed), case["files"])).cut(case["tokens"])
    steps = len(ROLES) + 2
    found: dict[str, float] = {}
    for done, (role, label) in enumerate(ROLES.items()):
        case.report(done, steps)
        found |= dict(probed(role, label, model, untrained, texts, case.seed))
    case.report(steps - 2, steps)
    found |= dict(clustered(model, untrained, texts, case))
    case.report(steps - 1, steps)
    return found | dict(parsed(model, untrained, texts, case))


def functions(tokenizer: Tokenizer, seed: int) -> Iterator[LabelledDocument]:
    """Yield a function of each file of the standard library that has one without a docstring, in random order."""
    random, files = Random(seed), list(read_source(STANDARD_LIBRARY))
    random.shuffle(files)
    for file in files:
        try:
            written = [node for node in ast.parse(file.text).body if isinstance(node, ast.FunctionDef)]
            codes = [ast.get_source_segment(file.text, node) for node in written if not ast.get_docstring(node)]
            if codes:
                yield from python_labels([random.choice(codes) or ""], tokenizer)
        except (SyntaxError, ValueError, DataError):
            # tests of the parser are files that it cannot read
            continue


def probed(
    role: str, label: str, model: ModelLike, untrained: ModelLike, texts: LabelledText, seed: int
) -> Iterator[tuple[str, float]]:
    """Yield what probes of a property tell, how much more than any control, and at which layers."""
    found = probe(model, texts, label, sites=DEPTH, untrained=untrained, seed=seed)
    yield f"{role} told", best(found.accuracy)
    yield f"{role} above", beyond(found.accuracy)
    # neither is a number where no layer tells more than the first, or than the commonest class
    expected, centre = found.layers.select(told_by=SITE).values.tolist()
    yield from ((f"{role} {name}", at) for name, at in (("layer", expected), ("centre", centre)) if math.isfinite(at))


def clustered(model: ModelLike, untrained: ModelLike, texts: LabelledText, case: Case) -> Iterator[tuple[str, float]]:
    """Yield how far clusters of phrases agree with their kinds, more than any control, and more at the first layer."""
    found = phrase_clusters(
        model, texts, untrained=untrained, spans=case["phrases"], restarts=case["restarts"], seed=case.seed
    )
    told = found.agreement.select(told_by=SITE).values
    yield "phrases told", best(found.agreement)
    yield "phrases above", beyond(found.agreement)
    yield "phrases fall", float(told[0] - told[-1])


def parsed(model: ModelLike, untrained: ModelLike, texts: LabelledText, case: Case) -> Iterator[tuple[str, float]]:
    """Yield how many edges of parse trees a structural probe finds, more than any control, and more in the middle."""
    found = structural_probe(
        model, texts.cut(case["tree_tokens"]), sites=DEPTH, untrained=untrained, steps=case["steps"], seed=case.seed
    )
    edges = found.found.select(measure=TREE)
    told = edges.select(told_by=SITE).values
    yield "tree told", best(edges)
    yield "tree above", beyond(edges)
    yield "tree middle", float(told[1:-1].max() - torch.stack((told[0], told[-1])).max())


def best(told: Labelled) -> float:
    """Return the most that the model tells at any layer; `site told_by`."""
    return float(told.select(told_by=SITE).values.max())


def beyond(told: Labelled) -> float:
    """Return how much more that is than any control tells at any layer; what is told of other labels is none."""
    others = [name for name in told.labels("told_by") if name not in (SITE, OTHER_TASK)]
    controls: list[Tensor] = [told.select(told_by=name).values.max() for name in others]
    return best(told) - float(torch.stack(controls).max())


def of(measure: str, model: str) -> Quantity:
    return value(measure, model=model)


def claims(model: str, said: str) -> tuple[Claim, ...]:
    """Return what is claimed of each model; names end in what it is."""
    return (
        Claim(f"told-{said}", f"Probes of the {said} tell syntax that no control tells",
              of("syntax above", model), above(BEYOND)),
        Claim(f"meaning-told-{said}", f"Probes of the {said} tell meaning that no control tells",
              of("meaning above", model), above(BEYOND)),
        Claim(f"phrases-{said}", f"In the {said} phrases of one kind lie together more than by any control",
              of("phrases above", model), above(0)),
        Claim(f"phrases-low-{said}", f"and more so behind the first layer of the {said} than behind the last",
              of("phrases fall", model), above(0)),
        Claim(f"surface-first-{said}", f"In the {said} the centre of syntax lies above that of surface",
              of("syntax centre", model) - of("surface centre", model), above(0)),
        Claim(f"meaning-last-{said}", f"In the {said} the centre of meaning lies above that of syntax",
              of("meaning centre", model) - of("syntax centre", model), above(0)),
        Claim(f"tree-{said}", f"Structural probes of the {said} find more edges of parse trees than any control",
              of("tree above", model), above(0)),
        Claim(f"tree-middle-{said}", f"and in the {said} most of them at a layer in the middle",
              of("tree middle", model), above(0)),
    )  # fmt: skip


STUDY = Study(
    "layer-roles",
    paper='Jawahar, Sagot and Seddah 2019, "What Does BERT Learn about the Structure of Language?" (P19-1356); Tenney, '
    'Das and Pavlick 2019, "BERT Rediscovers the Classical NLP Pipeline" (P19-1452)',
    question="Do lower layers know phrases, middle ones syntax and upper ones meaning?",
    run=run,
    grid={"model": (ENCODER, DECODER)},
    scales={
        "smoke": Scale(
            1,
            {"files": 24, "tokens": 40, "tree_tokens": 16, "phrases": 60, "restarts": 1, "steps": 2},
            {"model": (DECODER,)},
        ),
        "small": Scale(
            8,
            {"files": 64, "tokens": 96, "tree_tokens": 48, "phrases": 1500, "restarts": 5, "steps": 150},
        ),
    },
    measures={
        **{
            f"{role} {measure}": Measure(f"{about} ({role}: {name} of Python)", analysis=probe)
            for role, name in ROLES.items()
            for measure, about in (
                ("told", "Share of tokens that probes tell at the best layer"),
                ("above", "That share less the most that any control tells at any layer"),
                ("layer", "Mean layer of what is told more than at any layer before"),
                ("centre", "Mean layer of what is told more than by the commonest class"),
            )
        },
        **{
            f"phrases {measure}": Measure(about, "NMI", phrase_clusters)
            for measure, about in (
                ("told", "Agreement of clusters of phrases with kinds at the best layer"),
                ("above", "That agreement less the most of any control at any layer"),
                ("fall", "Agreement behind the first layer less behind the last"),
            )
        },
        **{
            f"tree {measure}": Measure(about, analysis=structural_probe)
            for measure, about in (
                ("told", "Share of edges of parse trees that structural probes find at the best layer"),
                ("above", "That share less the most that any control finds"),
                ("middle", "The share at the best layer in the middle less that at the first or last"),
            )
        },
    },
    claims=(*claims(ENCODER, "encoder"), *claims(DECODER, "decoder")),
    differs=(
        "Models of four layers that read Python; the papers ask BERT, of 12 and 24 layers, about English.",
        "Each layer has probes of its own, by ridge; the second paper's are of a learned mix of layers, whose weights "
        "its centres are of. Centres of scores lie nearer to the middle, and only their order is claimed.",
        "Kinds of token stand for surface, what Python's parser says for syntax and phrases, types of literals for "
        "meaning. A literal's spelling says much of its type, so that little is left to tell by context.",
        "Functions without a docstring, one of a file of the standard library; models were trained on most of them.",
        "Controls of phrases include clusters of their lengths alone, which the first paper leaves out.",
    ),
    mechanisms=("softmax",),
)  # fmt: skip
