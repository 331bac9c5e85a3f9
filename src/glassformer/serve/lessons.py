"""Chapters of a tour through a forward pass: where each looks in a run, by the run's numbers, and what it says of it.

A chapter is a state of the page. Its sentences are the page's; every number, token and head in them is from here, and
which wording holds, as `claims`: of a head that does not do what the chapter is about, the page says so.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from glassformer import analysis
from glassformer.analysis.cards import card_of
from glassformer.analysis.components import Component
from glassformer.analysis.heads import roles
from glassformer.errors import AnalysisUnavailable, ConfigError
from glassformer.labelled import Labelled
from glassformer.models import Sampling, stream
from glassformer.models.readable import readable_outputs
from glassformer.numerics.precision import wide
from glassformer.serve import api, formulas
from glassformer.serve.answers import Answer
from glassformer.serve.api import Change
from glassformer.serve.lesson import Lesson, any_head
from glassformer.serve.lessons_of_heads import induction, one_head
from glassformer.serve.looking import Looking
from glassformer.serve.programs import RunCode
from glassformer.serve.runs import ServedRun, token_cards
from glassformer.trace import Scale

_ATTRIBUTION = "gf.analysis.attribution.direct_logit_attribution"
_NEAR = 1e-4  # relative to the largest: what float32 leaves of two ways to one number
_TOLD = 5e-3  # logits: what two decimals tell apart


def lesson(run: ServedRun, view: api.LessonView) -> Answer:
    """Return what a chapter says of a run; raises `AnalysisUnavailable` where the model has nothing it is about."""
    if view.chapter > len(_CHAPTERS):
        raise ConfigError(f"chapter={view.chapter}: there are {len(_CHAPTERS)} chapters, from 1 on.")
    run.inputs.require_ids("the tour")
    found = Lesson(run)
    _CHAPTERS[view.chapter - 1](found)
    return found.answer(view.chapter)


def _ids(found: Lesson) -> None:
    """1: a text becomes ids."""
    run = found.run
    source = run.model.source if run.inputs.source is not None else None
    side, of_source = run.inputs.source or run.inputs.output, source is not None
    cards, ids = token_cards(run.model, side, of_source), side.rows[0]
    vocab = run.model.embeddings[source or run.model.output].vocab_size
    inside = [i for i, card in enumerate(cards) if card.span is not None] or list(range(len(cards)))
    found.query, first = _again(ids, [card.text for card in cards], inside)
    found.key = found.query if first is None else first
    found.head = next((head.label for head in roles.heads(run.model) if head.stack == "encoder"), None)
    here, text = cards[found.query], side.text
    occurs = sum(id == ids[found.query] for id in ids)
    found.numbers |= {
        "tokens": len(cards), "vocab": vocab, "position": found.query, "id": ids[found.query],
        "bytes": len(here.bytes) // 2, "occurs": occurs, "cut": len(inside), "added": len(cards) - len(inside),
        "characters": len(text or ""),
    }  # fmt: skip
    found.claims |= {
        "is_text": text is not None, "adds": len(cards) > len(inside), "has_bytes": here.bytes != "",
        "repeats": first is not None,
    }  # fmt: skip
    code = "run.source_ids[0]" if of_source else "run.ids[0]"
    found.add("ids", Labelled(torch.tensor(ids), ("pos",)), f'gf.Labelled({code}, ("pos",))')
    found.formula = formulas.tokens(vocab, len(cards))


def _embedding(found: Lesson) -> None:
    """2: an id picks a vector, and something tells where it stands."""
    run, model = found.run, found.run.model
    ids, texts = run.inputs.output.rows[0], run.inputs.output.tokens[0]
    found.query, first = _again(ids, texts, range(len(ids)))
    found.key = found.query if first is None else first
    table, prefix = model.sites(), model.prefix
    layers = [layer.attention for layer in model.sub_layers() if layer.self_attention is not None]
    entry = f"{prefix}blocks.0.resid_pre"
    here = found.site("entry", entry, pos=found.query)
    found.head = any_head(found.run)
    found.numbers |= {
        "d_model": model.config.d_model, "vocab": model.output_embed.vocab_size, "position": found.query,
        "size": float(here.norm()),
    }  # fmt: skip
    token = found.site("token", f"{prefix}embed.token", pos=found.query)
    found.numbers["token_size"] = float(token.norm())
    added = f"{prefix}embed.position"
    if added in table:
        vector = found.site("added", added, pos=found.query)
        found.numbers["position_size"] = float(vector.norm())
    if first is not None:
        earlier = found.site("earlier", entry, pos=first)
        found.numbers |= {"first": first, "apart": float((here - earlier).norm())}
    found.words["positions"] = [
        {"kind": layer.config.positions.kind, "layers": [layer.dims.layer], "mechanism": layer.config.mixer.kind}
        for layer in layers
        if layer is not None
    ]
    found.claims |= {
        "adds_positions": added in table, "repeats": first is not None,
        "same": found.numbers.get("apart", 1.0) <= _NEAR * found.numbers["size"],
    }  # fmt: skip
    found.formula = formulas.embedding(added in table, [layer for layer in layers if layer is not None])


def _again(ids: Sequence[int], texts: Sequence[str], among: Iterable[int]) -> tuple[int, int | None]:
    """Return the last place of a token that stood before, and where it did first; else the longest token's, and None.

    What is more than spaces goes before what is not.
    """
    among = list(among)
    counts = Counter(ids[i] for i in among)
    again = [i for i in among if counts[ids[i]] > 1 and ids.index(ids[i]) < i]
    if again:
        place = max(again, key=lambda i: (texts[i].strip() != "", len(texts[i].strip()) > 1, i))
        return place, next(i for i in among if ids[i] == ids[place])
    return max(among, key=lambda i: (len(texts[i].strip()), i)), None


def _split(found: Lesson) -> tuple[int, list[Component], Tensor]:
    """Split the logit of the likeliest answer at the last position; return the answer, and what each component adds."""
    run = found.run
    if not run.model.predicts:
        raise AnalysisUnavailable("this chapter is about a logit, and the model has none.")
    found.query = run.inputs.output.counts[0] - 1
    answer = run.likeliest(found.query)
    call = analysis.attribution.direct_logit_attribution
    split = call(run.read([*card_of(call).reads(run.model), *run.ends]), answer=answer, position=found.query)
    found.reads.append(_ATTRIBUTION)
    found.lines.append(f"split = {_ATTRIBUTION}(run, answer={answer}, position={found.query})")
    parts = found.add("contributions", split.contributions, "split.contributions")
    total = found.add("total", split.total, "split.total")
    found.tokens["answer"] = readable_outputs(run.model, torch.tensor([[answer]]))[0][0]
    found.numbers |= {"position": found.query, "total": float(total)}
    return answer, list(split.components), parts


def _many_heads(found: Lesson) -> None:
    """4: heads side by side, and what each adds to one logit."""
    _, components, parts = _split(found)
    heads = {c.label: float(parts[i]) for i, c in enumerate(components) if c.kind in ("head", "cross_head")}
    if not heads:
        raise AnalysisUnavailable("this chapter is about what heads write, and the model has no heads.")
    most, least = max(heads, key=heads.__getitem__), min(heads, key=heads.__getitem__)
    found.head = found.heads["most"] = most
    found.heads["least"] = least
    looking = Looking(found.run, most)
    written = found.site("written", f"{most}.head_out", pos=found.query)
    found.numbers |= {
        "layer": looking.part.dims.layer, "width": looking.part.dims.d_z, "beside": looking.part.dims.n_heads,
        "written": float(written.norm()), "heads": len(heads), "most": heads[most], "least": heads[least],
        "adding": sum(x > 0 for x in heads.values()), "taking": sum(x < 0 for x in heads.values()),
        "sum": sum(heads.values()),
    }  # fmt: skip
    found.claims |= {"some_add": heads[most] > 0, "some_take": heads[least] < 0}
    found.formula = formulas.heads(looking.part)


def _stream(found: Lesson) -> None:
    """5: everything is added to one stream, MLPs too where there are any, and a norm stands before the logits."""
    model = found.run.model
    _, components, parts = _split(found)
    groups = Counter[str]()
    for i, component in enumerate(components):
        groups[_GROUPS.get(component.kind, "rest")] += float(parts[i])  # type: ignore[arg-type]
    layers, sites = model.sub_layers(), model.sites().values()
    others = [layer for layer in layers if layer.attention is None]
    end = found.site("end", layers[-1].at_behind, pos=found.query)
    begin = found.site("begin", f"{model.prefix}blocks.0.resid_pre", pos=found.query)
    final = model.output_stack.final
    found.head = any_head(found.run)
    found.numbers |= {name: groups[name] for name in ("embedding", "heads", "mlps", "rest")}
    found.numbers |= {"layers": len(model.output_stack.blocks), "begin": float(begin.norm()), "end": float(end.norm())}
    hidden = next((one.sizes["neuron"] for one in sites if one.quantity == "hidden" and "neuron" in one.sizes), None)
    if hidden is not None:
        found.numbers["neurons"] = hidden
    if not final.identity:
        found.numbers["normed"] = float(found.site("normed", final.at_out, pos=found.query).norm())
    found.words["norm"] = final.config.kind
    found.claims |= {
        "has_mlps": bool(others), "has_neurons": hidden is not None, "has_norm": not final.identity,
        "norms_stream": any(layer.stream_norm is not None for layer in layers),
    }  # fmt: skip
    found.formula = formulas.stream([block.config for block in model.output_stack.blocks])


_GROUPS = {
    "token": "embedding", "position": "embedding", "head": "heads", "cross_head": "heads",
    "mlp": "mlps", "part": "mlps",
}  # fmt: skip


def _draw(found: Lesson) -> None:
    """7: from logits to a draw."""
    run, n = found.run, found.run.inputs.output.counts[0]
    if not run.model.predicts:
        raise AnalysisUnavailable("this chapter is about a draw from logits, and the model has none.")
    found.query, found.head = n - 1, any_head(found.run)
    values = wide(run.cached.logits([n - 1])[0, 0]).cpu()
    top = values.topk(2)
    shares, colder = values.softmax(-1), (values / 0.5).softmax(-1)
    source = None if run.inputs.source is None else [run.inputs.source.rows[0]]
    row = run.inputs.output.rows[0]
    step = next(stream(run.model, [row], Sampling(seed=0), max_new_tokens=1, source=source, edit=run.edits))
    assert step.draw is not None and step.draw.uniform is not None, "one row, drawn at random"
    drawn = int(step.draw.tokens[0])
    first, second = top.indices.tolist()
    names = readable_outputs(run.model, torch.tensor([[first, second, drawn]]))[0]
    found.tokens |= dict(zip(("answer", "second", "drawn"), names))
    found.numbers |= {
        "position": n - 1, "outputs": values.shape[0], "logit": float(top.values[0]), "share": float(shares[first]),
        "second_share": float(shares[second]), "colder": float(colder[first]), "uniform": float(step.draw.uniform[0]),
        "drawn_share": float(shares[drawn]), "rank": int((values > values[drawn]).sum()) + 1, "seed": 0,
    }  # fmt: skip
    found.claims["is_likeliest"] = drawn == first
    found.add(
        "logits", Labelled(top.values.float(), ("k",)), f'gf.Labelled(run.logits[0, {n - 1}].topk(2).values, ("k",))'
    )
    found.formula = formulas.logits(run.model)


def _ablation(found: Lesson) -> None:
    """8: what changes when the head that adds most is switched off."""
    run = found.run
    answer, components, parts = _split(found)
    heads = {c.label: float(parts[i]) for i, c in enumerate(components) if c.kind in ("head", "cross_head")}
    if not heads:
        raise AnalysisUnavailable("this chapter switches a head off, and the model has no heads.")
    head = max(heads, key=heads.__getitem__)
    found.head = found.heads["head"] = head
    edits = [*(edit for _, edit in run.cached.edits), Scale(f"{head}.z", 0.0)]
    before, after = (
        wide(one.logits([found.query])[0, 0]).cpu() for one in (run.cached, run.cached.under(edits))
    )  # fmt: skip
    spec = replace(run.spec, changes=(*run.spec.changes, Change("scale", f"{head}.z", 0.0)))
    found.runs.append(("without", RunCode(run.code.source, spec, run.code.inputs, run.code.lenders)))
    for name, values, made in (("before", before, "run"), ("after", after, "without")):
        one = Labelled(values[answer].float(), ())
        found.add(name, one, f"gf.Labelled({made}.logits[0, {found.query}, {answer}], ())")
        found.numbers |= {name: float(values[answer]), f"{name}_share": float(values.softmax(-1)[answer])}
    drop = found.numbers["before"] - found.numbers["after"]
    found.numbers |= {"direct": heads[head], "drop": drop, "rest": drop - heads[head]}
    other = int(after.argmax())
    found.tokens["other"] = readable_outputs(run.model, torch.tensor([[other]]))[0][0]
    found.numbers["other_share"] = float(after.softmax(-1)[other])
    found.claims |= {
        "adds": heads[head] > 0, "stays": other == answer, "falls": drop > 0, "more": found.numbers["rest"] > 0,
        "as_said": abs(found.numbers["rest"]) < _TOLD,
    }  # fmt: skip
    found.formula = formulas.ablation(head)


_CHAPTERS: tuple[Callable[[Lesson], None], ...] = (
    _ids, _embedding, one_head, _many_heads, _stream, induction, _draw, _ablation,
)  # fmt: skip
