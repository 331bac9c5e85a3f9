"""Features of a position: which entries of a dictionary fire there and along the text, and which tokens each moves."""

from pathlib import Path

import torch

from glassformer.analysis.dictionaries import DictionaryFolder, dictionaries_in, feature_tokens, load_dictionary
from glassformer.analysis.places import text_positions
from glassformer.errors import AnalysisUnavailable, nearest
from glassformer.labelled import Labelled
from glassformer.models.readable import readable_outputs
from glassformer.serve import api
from glassformer.serve.answers import Answer
from glassformer.serve.runs import ServedModel, ServedRun

_TRAINED = Path("runs/features")  # where the command that trains dictionaries puts them


def features(run: ServedRun, view: api.FeaturesView) -> Answer:
    """Return the features of a dictionary that fire at a position, strongest first, and tokens that they move."""
    (position,) = text_positions([view.position], run.inputs.output.counts[0])
    known = _dictionaries(run.served)
    if not known:
        raise AnalysisUnavailable(
            f'features of a position: there is no dictionary of the stream of "{run.served.id}".\n'
            f"    Train one where the server runs: glassformer features train {run.served.source or run.served.id}"
        )
    name = view.dictionary or next(iter(known))
    if name not in known:
        raise AnalysisUnavailable(
            f'no dictionary "{name}" of this model.{nearest(name, known)}\n    There are: {", ".join(known)}.'
        )
    site = str(known[name].facts["site"])
    dictionary = run.served.remembered(f"dictionary {name}", lambda: load_dictionary(name))
    read = run.read([site])[site]
    rows = read.values[0]
    run.served.limits.require("memory", 4 * len(rows) * dictionary.config.n_features, "bytes of features of this text")
    dictionary = dictionary.to(rows.device)
    with torch.no_grad():
        along, row = dictionary.encode(rows), rows[position]
        rest = float((row - dictionary(row)).norm() / row.norm())
    fired = along[position]
    count = int((fired > 0).sum())
    chosen = fired.topk(min(view.k, count)).indices.tolist()
    coords = {"feature": chosen, "pos": read.labels("pos")}
    arrays = {
        "activations": Labelled(fired[chosen], ("feature",), {"feature": chosen}),
        "along": Labelled(along[:, chosen].mT.contiguous(), ("feature", "pos"), coords),
    }
    facts = {
        "dictionary": name, "dictionaries": list(known), "site": site, "position": position, "fired": count,
        "n_features": len(fired), "rest": rest,
    }  # fmt: skip
    lines = [
        *run.code.lines("run", [repr(site)]),
        f"dictionary = gf.analysis.dictionaries.load_dictionary({name!r})",
        f"along = dictionary.encode(run[{site!r}].values[0])[:, {chosen}]",
        "found = {",
        f"    'activations': gf.Labelled(along[{position}], ('feature',)),",
        "    'along': gf.Labelled(along.mT, ('feature', 'pos')),",
        "}",
    ]
    if chosen:
        moved = feature_tokens(run.model, dictionary, chosen, k=view.tokens)
        arrays |= {one: getattr(moved, one) for one in ("raised", "lowered", "chance")}
        ends = {"raised_tokens": moved.raised_tokens, "lowered_tokens": moved.lowered_tokens}
        facts |= {end: readable_outputs(run.model, ids.values) for end, ids in ends.items()}
        lines += [
            f"moved = gf.analysis.dictionaries.feature_tokens(model, dictionary, {chosen}, k={view.tokens})",
            "found |= {name: getattr(moved, name) for name in ('raised', 'lowered', 'chance')}",
        ]
    return Answer("features", arrays, facts, "\n".join(lines))


def _dictionaries(served: ServedModel) -> dict[str, DictionaryFolder]:
    """Return the dictionaries of the stream that ends in the logits: those that ship, and those trained here."""
    model, found = served.model, list[DictionaryFolder]()
    if served.source:
        found += dictionaries_in(served.source, model)
    named = Path(served.source or model.name).name
    found += dictionaries_in(_TRAINED / named, model) if named else []
    sites = model.sites()
    return {
        one.name: one
        for one in found
        if (site := sites.get(str(one.facts.get("site")))) is not None
        and site.axes == ("batch", "pos", "d_model")
        and site.path.startswith(model.prefix)
    }
