"""Chapters of the tour that follow heads: one by hand, and two that together continue what stood in the text before."""

import torch
from torch import Tensor

from glassformer import analysis
from glassformer.analysis.heads import roles
from glassformer.analysis.heads.roles import NAMED
from glassformer.errors import AnalysisUnavailable
from glassformer.numerics.precision import wide
from glassformer.serve import formulas
from glassformer.serve.lesson import Lesson, own_heads
from glassformer.serve.looking import STAGES, Looking

_NEAR = 1e-4  # relative to the largest: what float32 leaves of two ways to one number


def one_head(found: Lesson) -> None:
    """3: one query of one head, by hand."""
    run = found.run
    label, found.query, found.key = _sharpest(found)
    found.head = found.heads["head"] = label
    looking = Looking(run, label)
    rows = dict[str, Tensor]()
    for stage in STAGES[:3]:
        try:
            sites = looking.sites(stage)
        except AnalysisUnavailable:
            continue
        row = looking.stage(stage, query=[found.query]).select(query=0)
        found.reads += [repr(site) for site in sites]
        values = found.add(stage, row, f"{looking.code(stage)}.select(query={found.query})")
        if values.ndim == 1:
            rows[stage] = values
    products, scores, weights = (rows.get(stage) for stage in STAGES[:3])
    layer, n = looking.part, run.inputs.output.counts[0]
    found.claims |= {
        "has_products": products is not None, "has_scores": scores is not None, "has_weights": weights is not None,
        "is_mass": layer.traits.rows_sum_to_one, "is_scaled": False, "by_softmax": False,
    }  # fmt: skip
    found.numbers |= {"query": found.query, "key": found.key, "keys": n}
    found.words["mechanism"] = layer.config.mixer.kind
    if products is not None:
        found.numbers["product"] = float(products[found.key])
    if weights is not None:
        seen = weights[-n:].nan_to_num()
        found.numbers |= {"weight": float(weights[found.key]), "sum": float(weights.nansum())}
        found.numbers["share"] = float(seen[found.key].abs() / seen.abs().sum())
    if scores is not None:
        _of_scores(found, products, scores, weights)
    found.formula = formulas.mixer(layer)


def _of_scores(found: Lesson, products: Tensor | None, scores: Tensor, weights: Tensor | None) -> None:
    """Say how a score comes of a product, and a weight of scores, as far as both can be done by hand."""
    there = scores.isfinite()
    shares = scores.masked_fill(~there, -torch.inf).softmax(-1)
    found.numbers |= {"score": float(scores[found.key]), "seen": int(there.sum())}
    if products is not None:
        factor = float((scores[there] * products[there]).sum() / products[there].square().sum())
        off = (scores[there] - factor * products[there]).abs().max()
        found.claims["is_scaled"] = bool(off <= 10 * _NEAR * scores[there].abs().max())
        found.numbers["factor"] = factor
    if weights is not None and weights.shape == shares.shape:
        found.claims["by_softmax"] = bool((weights[there] - shares[there]).abs().max() <= _NEAR)


def _sharpest(found: Lesson) -> tuple[str, int, int]:
    """Return head, query and key of the largest share of a row, not of the first token nor of one within two places."""
    best: tuple[int, float, str, int, int] | None = None
    for path in dict.fromkeys(head.path for head in own_heads(found.run)):
        shares = wide(Looking(found.run, path).stage("weights").values).nan_to_num().abs()
        shares = shares.flatten(0, -4)[0] if shares.ndim > 3 else shares
        n = found.run.inputs.output.counts[0]
        shares = (shares / shares.sum(-1, keepdim=True).clamp_min(1e-30))[..., -n:]
        query, key = torch.arange(n)[:, None], torch.arange(n)[None]
        for rank, allowed in enumerate(((key > 0) & (key < query - 1), key < query, key <= query)):
            if not bool(allowed.any()):
                continue
            kept = shares.cpu().masked_fill(~allowed, -1.0)
            head, q, k = (int(i) for i in torch.unravel_index(kept.argmax(), kept.shape))
            label = [one.label for one in own_heads(found.run) if one.path == path][head]
            now = (-rank, float(kept[head, q, k]), label, q, k)
            best = now if best is None or now[:2] > best[:2] else best
            break
    if best is None:
        kinds = ", ".join(sorted({head.mechanism for head in roles.heads(found.run.model)})) or "no attention"
        raise AnalysisUnavailable(f"this chapter follows the weights of one head, and no head has any ({kinds}).")
    return best[2:]


def induction(found: Lesson) -> None:
    """6: a head that finds what followed before, and the one that tells it where."""
    run = found.run
    scored = analysis.heads.head_roles(run.read(roles.pattern_sites(run.model)))
    found.reads.append("gf.analysis.heads.head_roles")
    found.lines.append("scored = gf.analysis.heads.head_roles(run)")
    scores = found.add("scores", scored.scores, "scored.scores")
    labels, names = scored.scores.labels("head"), scored.scores.labels("role")
    places = int(scored.positions.select(role="induction").values)
    column = {role: scores[:, names.index(role)] for role in ("induction", "previous_token")}
    at = {head.label: head for head in roles.patterned(run.model)}
    best = str(labels[int(column["induction"].nan_to_num(-2.0).argmax())])
    found.claims |= {"repeats": places > 0, "induces": False, "has_lower": False, "previous": False, "composes": False}
    found.numbers |= {"heads": len(labels), "places": places, "named": NAMED}
    lower = [i for i, label in enumerate(labels) if places == 0 or at[str(label)].layer < at[best].layer]
    if places > 0:
        _of_copies(found, at[best], float(column["induction"][labels.index(best)]))
    if lower:
        i = max(lower, key=lambda i: float(column["previous_token"][i].nan_to_num(-2.0)))
        found.heads["previous"] = str(labels[i])
        found.numbers["previous"] = float(column["previous_token"][i])
        found.claims |= {"has_lower": True, "previous": found.numbers["previous"] >= NAMED}
    if places > 0 and lower:
        _composed(found)
    if places == 0:
        found.head, found.query = found.heads["previous"].partition("/")[0], run.inputs.output.counts[0] - 1
        found.key = max(0, found.query - 1)
    found.formula = formulas.induction()


def _of_copies(found: Lesson, head: roles.Head, score: float) -> None:
    """Say how much a head looks at what followed earlier copies, and where it does most."""
    run = found.run
    mask = roles.role_masks(torch.tensor([run.inputs.output.rows[0]]))[roles.ROLES.index("induction"), 0]
    label = head.label.partition("/")[0]
    pattern = run.read([f"{head.path}.pattern"])[f"{head.path}.pattern"]
    rows = wide(roles.rows_of(pattern.values)[0, head.row]).cpu()[:, -mask.shape[0] :]
    kept = rows.masked_fill(~mask, -torch.inf)
    found.query, found.key = (int(i) for i in torch.unravel_index(kept.argmax(), kept.shape))
    found.head = found.heads["induction"] = label
    found.numbers |= {"induction": score, "query": found.query, "key": found.key, "copy": found.key - 1}
    found.numbers["weight"] = float(rows[found.query, found.key])
    found.claims |= {"induces": score >= NAMED, "is_mass": head.reading == "mass"}


def _composed(found: Lesson) -> None:
    """Say how strongly keys of the one head read what the other writes, if weights alone say so."""
    served, earlier, later = found.run.served, found.heads["previous"], found.heads["induction"]
    call = analysis.from_weights.composition
    try:
        # the same as the question about composition has it
        known = served.remembered(
            "from_weights.composition, draws=16, seed=0", lambda: call(served.model, draws=16, seed=0)
        )
        where = {"kind": "K", "earlier": earlier, "later": later}
        score, null = known.scores.select(**where), known.null_mean.select(**where)
    except (AnalysisUnavailable, KeyError, ValueError) as error:
        found.words["no_composition"] = str(error)
        return
    said = "".join(f", {axis}={label!r}" for axis, label in where.items())
    found.lines.append("composed = gf.analysis.from_weights.composition(model, draws=16, seed=0)")
    ours = found.add("composed", score, f"composed.scores.select({said[2:]})")
    random = found.add("random", null, f"composed.null_mean.select({said[2:]})")
    if bool(ours.isfinite()) and bool(random.isfinite()):
        found.numbers |= {"composition": float(ours), "times": float(ours / random)}
        found.claims |= {"composes": True, "reads": found.numbers["times"] > 1}
