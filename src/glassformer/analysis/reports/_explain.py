"""One next token explained from one forward pass: every question names its sites, their union is read once.

One backward pass through it says what the tokens' vectors do for the answer.
"""

import math
from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor

from glassformer.analysis._run import Run, TextOrIds
from glassformer.analysis.attribution._direct_logit_attribution import (
    DirectLogitAttribution,
    aim,
    direct_logit_attribution,
)
from glassformer.analysis.attribution._parts_of_effects import SourceEffects, by_key
from glassformer.analysis.components import head_labels
from glassformer.analysis.frozen._pull_back import pull_back
from glassformer.analysis.frozen._writes import source_sites
from glassformer.analysis.heads import _roles as roles
from glassformer.analysis.lens._grid import lens_grid
from glassformer.analysis.lens._logit_lens import entropy_bits, logit_lens, rank
from glassformer.analysis.places import places
from glassformer.analysis.prepare import asked_position, decoded, token_id
from glassformer.analysis.question import card_of, question
from glassformer.analysis.reports import _stages as pipeline
from glassformer.analysis.reports._explain_inputs import input_attribution, run_for_gradients, without_graph
from glassformer.analysis.reports._explanation import (
    Candidate,
    Contribution,
    Contributions,
    Distribution,
    Explanation,
    HeadFacts,
    LensMap,
    LensRow,
    ModelFacts,
    Outcome,
    Pattern,
    RoleScore,
    SamplingStep,
    SamplingTrace,
    Sink,
    Token,
    TopHead,
    Translation,
    TranslationStep,
)  # fmt: skip
from glassformer.attention import per_query_head
from glassformer.errors import NoPattern, ShapeMismatch
from glassformer.models import Encoder, EncoderDecoder, ModelLike, Sampling, sampling_steps
from glassformer.models.generate import generable

N_CANDIDATES, N_LENS, N_TOP_HEADS = 10, 5, 6
# a head belongs among the top heads for its role, whatever it adds itself, from this score on
TELLING_SCORE = 0.3
N_MAP = 3
# multiplications that unembedding at all positions may take: about a second of one core
MAP_WORK = 10_000_000_000


def explained_sites(model: ModelLike) -> list[str]:
    """Return the sites that `explain` reads: the union of what its questions need, and every pattern."""
    patterns = [f"{h.path}.pattern" for h in roles.heads(model) if h.reading is not None]
    questions = direct_logit_attribution, logit_lens, roles.head_roles
    asked = [site for one in questions for site in card_of(one).reads(model)]
    sites = [*patterns, *pipeline.stage_sites(model), *asked, *source_sites(model), *_map_sites(model)]
    return list(dict.fromkeys(sites))


@question("Why this next token?", of="texts", reads=explained_sites)
def explain(
    model: ModelLike,
    text: TextOrIds,
    *,
    target: TextOrIds | None = None,
    answer: str | int | None = None,
    against: str | int | None = None,
    position: int | None = None,
    sampling: Sampling | None = None,
    specials: bool | None = None,
) -> Explanation:
    """Explain one next token of a text: the way there in numbers, what each part adds, which heads matter and why.

    Of an encoder it is the token at a position, usually a masked one.

    The model runs once, forwards and backwards. Contributions are direct effects with norm scales frozen, what tokens'
    vectors do for the answer is a gradient with everything live; roles are scored on this text.

    Args:
        model: A decoder, an encoder or an encoder-decoder.
        text: A text or token ids; what the encoder reads, if there is one.
        target: The decoder's text, for an encoder-decoder; generated greedily by default.
        answer: Token (text or id) to explain; the likeliest by default.
        against: Token to compare it with: contributions are then those to the difference of the two logits.
        position: Position whose next token is explained; the last by default. For a translation that is complete, the
            one before, where the last word is written rather than the end token; for an encoder the first masked one.
        sampling: How the next token would be drawn.
        specials: Put special tokens around the text always or never, as in `run`.

    Raises:
        TextError: The text is empty or too long, or answer or against is not one token.
        TokenOutOfRange: An id is outside the vocabulary.
        AnalysisUnavailable: The model is none of ours.
    """
    graph = run_for_gradients(model, text, target, explained_sites(model), specials)
    passed = without_graph(graph)
    if passed.ids is None or len(passed.ids) != 1:
        raise ShapeMismatch("explain takes one text at a time.")
    at = position_in(passed, position)
    logits = passed.predictions()[0, at]
    chosen = int(logits.argmax()) if answer is None else token_id(model, answer)
    other = None if against is None else token_id(model, against)
    inputs = input_attribution(graph, chosen, other, at)
    del graph  # what only the backward pass needed
    log_probs = logits.double().log_softmax(-1)
    split = direct_logit_attribution(passed, answer=chosen, against=other, position=at)
    facts, notes = _heads(passed, split)
    notes = [passed.added, *notes] if passed.added else notes
    if split.cap is not None:
        notes.append(f"Logits are capped at {split.cap:g}; contributions are to the raw logit, before the cap.")
    if isinstance(model, Encoder):
        notes.append(
            "The model reads both ways: its logits at a position are of the token that stands there, not of the next."
        )
    if model.unembed.readout is not None:
        notes.append("Contributions pass the readout with its norm's scale and its activation's slopes frozen.")
    grid, left_out = _lens_map(passed, at)
    notes += left_out
    return Explanation(
        model=model_facts(model),
        text=passed.text,
        tokens=_tokens(passed.ids, passed.tokens),
        source_tokens=None if passed.source_ids is None else _tokens(passed.source_ids, passed.source_tokens),
        position=at,
        answer=_outcome(model, logits, chosen),
        against=None if other is None else _outcome(model, logits, other),
        pipeline=pipeline.stages(passed, at, log_probs),
        next_token=Distribution(float(entropy_bits(log_probs)), _candidates(model, logits, N_CANDIDATES)),
        sampling=_sampling(passed, at, sampling or Sampling()),
        lens=_lens(passed, chosen, other, at),
        lens_map=grid,
        attribution=_contributions(split),
        inputs=inputs,
        heads=facts,
        top_heads=_top_heads(passed, split, facts),
        patterns=_patterns(passed),
        translation=_translation(passed),
        notes=tuple(notes),
    )


def position_in(run: Run, position: int | None) -> int:
    """Return the position asked for.

    By default it is the last; of a complete translation the one before its end, for an encoder the first masked one.
    """
    if position is not None:
        return run.place(position)
    assert run.ids is not None, "a run of one of our models has ids"
    last = run.place(asked_position(run.model, run.ids[0]))
    if run.source_ids is not None and last > 0 and run.logits is not None:
        tokenizer = run.model.tokenizer
        ended = tokenizer is not None and int(run.logits[0, last].argmax()) in tokenizer.roles.stops
        return last - 1 if ended else last
    return last


def model_facts(model: ModelLike) -> ModelFacts:
    kind, blocks = model.config.kind, [b for stack in model.stacks.values() for b in stack.blocks]
    heads = roles.heads(model)
    most = max((h.head + 1 for h in heads), default=0)
    parameters = sum(p.numel() for p in model.parameters())
    mechanisms = tuple(dict.fromkeys(h.mechanism for h in heads))
    config = model.config
    return ModelFacts(
        model.name, kind, parameters, len(blocks), most, config.d_model, config.vocab_size, config.max_len, mechanisms
    )


def _tokens(ids: Tensor, texts: list[str]) -> tuple[Token, ...]:
    return tuple(Token(i, int(id), text) for i, (id, text) in enumerate(zip(ids[0], texts)))


def _text(model: ModelLike, id: int) -> str:
    tokenizer = model.tokenizer
    return tokenizer.token(id) if tokenizer is not None and id < tokenizer.vocab_size else f"<{id}>"


def _candidates(model: ModelLike, logits: Tensor, k: int) -> tuple[Candidate, ...]:
    """Return the k likeliest tokens that can still be drawn."""
    probabilities = logits.double().softmax(-1)
    # a stable sort: tokens of equal logits come in the order of their ids, on every machine
    values, ids = logits.sort(descending=True, stable=True)
    pairs = [(float(v), int(i)) for v, i in zip(values[:k], ids[:k]) if v > -math.inf]
    return tuple(Candidate(i, _text(model, i), v, float(probabilities[i])) for v, i in pairs)


def _outcome(model: ModelLike, logits: Tensor, id: int) -> Outcome:
    probability = float(logits.double().softmax(-1)[id])
    return Outcome(id, _text(model, id), float(logits[id]), probability, int(rank(logits, id)))


def _sampling(run: Run, at: int, sampling: Sampling) -> SamplingTrace:
    """Trace the steps that `generate` takes, with the same settings and the same draw."""
    assert run.logits is not None and run.ids is not None
    logits = run.logits[0, at]
    seen = torch.zeros_like(logits, dtype=torch.bool).index_fill(0, run.ids[0, : at + 1], True)
    drawn = sampling_steps(generable(run.model, logits[None]), sampling, seen=seen[None])
    steps = tuple(
        SamplingStep(
            name=stage.name,
            setting=stage.setting,
            kept=int(stage.kept),
            entropy_bits=float(entropy_bits(stage.logits[0].double().log_softmax(-1))),
            candidates=_candidates(run.model, stage.logits[0], N_CANDIDATES),
        )
        for stage in drawn.stages
    )
    id = int(drawn.tokens)
    probability = 1.0 if sampling.greedy else float(drawn.stages[-1].probabilities[0, id])
    penalty = None if sampling.repetition_penalty == 1 else sampling.repetition_penalty
    settings = {"temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p}
    settings |= {"min_p": sampling.min_p, "repetition_penalty": penalty, "seed": sampling.seed}
    draw = Candidate(id, _text(run.model, id), float(logits[id]), probability)
    return SamplingTrace(settings, steps, None if drawn.uniform is None else float(drawn.uniform), draw)


def _lens(run: Run, answer: int, against: int | None, at: int) -> tuple[LensRow, ...]:
    found = logit_lens(run, answer=answer, position=at)
    rows = []
    for i, label in enumerate(found.logits.labels("row")):
        logits = found.logits.values[i]
        rows.append(
            LensRow(
                label=str(label),
                layer=i - 1 if i else None,
                candidates=_candidates(run.model, logits, N_LENS),
                answer=_outcome(run.model, logits, answer),
                against=None if against is None else _outcome(run.model, logits, against),
                entropy_bits=float(found.entropy_bits.values[i]),
                kl_bits=float(found.kl_bits.values[i]),
            )
        )
    return tuple(rows)


def _map_sites(model: ModelLike) -> list[str]:
    blocks = model.output_stack.blocks
    return [blocks[0].at_resid[0], *(block.at_resid[-1] for block in blocks)] if blocks else []


def _lens_map(run: Run, at: int) -> tuple[LensMap | None, list[str]]:
    """Return the lens at every position, or at as many up to the explained one as can be read in about a second."""
    sites, config, length = _map_sites(run.model), run.model.config, len(run.tokens)
    if not sites:
        return None, []
    most = max(1, MAP_WORK // (len(sites) * config.vocab_size * config.d_model))
    chosen = tuple(range(length)) if length <= most else tuple(range(max(0, at + 1 - most), at + 1))
    grid = lens_grid(run, sites=sites, positions=chosen, measures=("top", "entropy", "kl"), k=N_MAP)
    top, probability, entropy, kl = (
        found.values[:, 0]
        for found in (grid.top, grid.top_probability, grid.entropy_bits, grid.kl_bits)
        if found is not None
    )
    labels = ("embed", *(f"block {i}" for i in range(len(sites) - 1)))
    short = f"The lens over positions shows {len(chosen)} of {length}, up to the explained one."
    found = LensMap(labels, chosen, top, probability, entropy, kl, grid.words)
    return found, [] if len(chosen) == length else [short]


def _contributions(split: DirectLogitAttribution) -> Contributions:
    values = split.contributions.values.tolist()
    parts = [Contribution(c.label, c.kind, c.layer, c.part, c.head, v) for c, v in zip(split.components, values)]
    raw, difference = split.cap is not None, split.against is not None
    target = ("raw difference" if difference else "raw logit") if raw else "difference" if difference else "logit"
    return Contributions(target, float(split.total), float(split.sum), tuple(parts))


def _heads(run: Run, split: DirectLogitAttribution) -> tuple[tuple[HeadFacts, ...], list[str]]:
    """Return every head with its roles, and what could not be said about some."""
    scores: dict[str, tuple[RoleScore, ...]] = {}
    notes: list[str] = []
    for stack in run.model.stacks:
        try:
            found = roles.head_roles(run, stack=stack)
        except NoPattern as error:
            notes.append(str(error).split("\n")[0])
            continue
        counts = found.positions.values.tolist()
        for label, values in zip(found.scores.labels("head"), found.scores.values.tolist()):
            scores[str(label)] = tuple(
                RoleScore(role, None if math.isnan(v) else v, n) for role, v, n in zip(roles.ROLES, values, counts)
            )
    added = dict(zip((c.label for c in split.components), split.contributions.values.tolist()))
    facts = tuple(
        HeadFacts(
            h.label,
            h.stack,
            h.part,
            h.layer,
            h.head,
            h.mechanism,
            added.get(h.label),
            h.reading,
            scores.get(h.label, ()),
            _sink(run, h),
        )
        for h in roles.heads(run.model)
    )
    without = sorted({h.mechanism for h in facts if h.reading is None})
    notes += [f'Heads of "{kind}" have no pattern: no roles, no picture.' for kind in without]
    signed = sorted({h.mechanism for h in facts if h.reading == "signed"})
    notes += [
        f'Rows of "{kind}" patterns do not sum to one: role scores are signed mass over absolute mass.'
        for kind in signed
    ]
    return facts, notes


def _sink(run: Run, head: roles.Head) -> Sink | None:
    """Return how far a head rests on the first token, where rows of its pattern are mixtures of tokens."""
    if head.reading != "mass" or head.crosses or f"{head.path}.value" not in run:
        return None
    pattern = run[f"{head.path}.pattern"].values
    value = per_query_head(run[f"{head.path}.value"].values, pattern)[0, head.head]
    weights = pattern[0, head.head, 1:].double()
    if not len(weights) or weights.shape[-1] != len(weights) + 1:
        return None
    moved = weights * value.double().norm(dim=-1)
    whole = float(moved.sum())
    return Sink(float(weights[:, 0].mean()), float(moved[:, 0].sum()) / whole if whole > 0 else 0.0)


def _top_heads(run: Run, split: DirectLogitAttribution, facts: Iterable[HeadFacts]) -> tuple[TopHead, ...]:
    """Choose the heads that add most either way, then the best head of each role that any head plays well."""
    candidates = [h for h in facts if h.contribution is not None and h.reading is not None]
    by_size = sorted(candidates, key=lambda h: -abs(h.contribution or 0.0))
    chosen = {h.label: (h, "contribution") for h in by_size[:N_TOP_HEADS]}
    for i, role in enumerate(roles.ROLES[:3]):
        scored = [(h.roles[i].score or 0.0, h) for h in candidates if h.roles]
        score, head = max(scored, key=lambda pair: pair[0], default=(0.0, None))
        if head is not None and score >= TELLING_SCORE:
            chosen.setdefault(head.label, (head, role))
    taken = _taken(run, split, list(chosen))
    return tuple(_top_head(run, int(split.position), taken, head, because) for head, because in chosen.values())


def _taken(run: Run, split: DirectLogitAttribution, labels: Iterable[str]) -> SourceEffects:
    """Return what some heads, all with patterns, take from each token: `source_effects` refuses layers without one."""
    at = places(run, int(split.position), row=0)
    against = None if split.against is None else int(split.against)
    assert split.answer is not None, "a token is explained"
    path = pull_back(run, aim(run, int(split.answer), against, None, at, "explain").directions, at)
    wanted = set(labels)
    return by_key(run, path, at, [layer for layer in run.model.sub_layers() if wanted & set(head_labels(layer))])


def _top_head(run: Run, position: int, taken: SourceEffects, head: HeadFacts, because: str) -> TopHead:
    path = next(h.path for h in roles.heads(run.model) if h.label == head.label)
    row = run[f"{path}.pattern"].values[0, head.head, position].double()
    basis: Literal["pattern", "norm"] = "pattern" if head.reading == "mass" else "norm"
    if basis == "norm":
        value = per_query_head(run[f"{path}.value"].values, run[f"{path}.pattern"].values)[0, head.head]
        row = row.abs() * value.double().norm(dim=-1)
    total = float(row.sum())
    weights = (row / total if total > 0 else row).tolist()
    crossed = head.crosses
    key: Literal["tokens", "source_tokens"] = "source_tokens" if crossed else "tokens"
    by_token = tuple(taken[head.label].values.tolist())
    return TopHead(head.label, because, head.contribution or 0.0, basis, tuple(weights), by_token, key)


def _patterns(run: Run) -> tuple[Pattern, ...]:
    found = []
    for h in roles.heads(run.model):
        if h.reading is None:
            continue
        query: Literal["tokens", "source_tokens"] = "source_tokens" if h.stack == "encoder" else "tokens"
        key: Literal["tokens", "source_tokens"] = "source_tokens" if h.crosses else query
        weights = run[f"{h.path}.pattern"].values[0, h.head]
        found.append(Pattern(h.label, h.stack, h.part, h.layer, h.head, query, key, weights))
    return tuple(found)


def _translation(run: Run) -> Translation | None:
    if not isinstance(run.model, EncoderDecoder) or run.logits is None or run.ids is None:
        return None
    probabilities = run.logits[0].double().softmax(-1)
    best, ids = probabilities.max(-1)
    steps = tuple(
        TranslationStep(i, read, _text(run.model, int(id)), float(p))
        for i, (read, id, p) in enumerate(zip(run.tokens, ids, best))
    )
    tokenizer = run.model.tokenizer
    text = " ".join(run.tokens) if tokenizer is None else decoded(tokenizer, run.ids[0].tolist())
    return Translation(text, run.generated, steps)
