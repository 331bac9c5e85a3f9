"""One next token explained from one forward pass: every question names its sites, their union is read once.

One backward pass through it says what the tokens' vectors do for the answer.
"""

import dataclasses
import math

import torch
from torch import Tensor

from glassformer.analysis._run import Run, TextOrIds, run
from glassformer.analysis.attribution import DirectLogitAttribution, direct_logit_attribution
from glassformer.analysis.attribution.target import aim_sites, read_by_unembedding
from glassformer.analysis.cards import card_of
from glassformer.analysis.frozen.addends import source_sites
from glassformer.analysis.heads import roles
from glassformer.analysis.lens import lens_grid, logit_lens
from glassformer.analysis.places import position_in
from glassformer.analysis.prepare import answer_id, require_one_prompt
from glassformer.analysis.question import question
from glassformer.analysis.reports import _stages as pipeline
from glassformer.analysis.reports._head_facts import Aimed, head_facts, patterns, top_heads
from glassformer.analysis.reports._memory_use import memory_sites, memory_use
from glassformer.analysis.reports.explanation import (
    Candidate,
    Contribution,
    Contributions,
    Distribution,
    Explanation,
    InputAttribution,
    LensMap,
    LensRow,
    Outcome,
    SamplingStep,
    SamplingTrace,
    Token,
    Translation,
    TranslationStep,
)  # fmt: skip
from glassformer.analysis.reports.model_facts import model_facts
from glassformer.data import Marks
from glassformer.data.tokenizer import Specials
from glassformer.models import ModelLike, Sampling, require_model, sampling_steps
from glassformer.models.evaluation import require_gradients
from glassformer.models.passes import generable
from glassformer.models.readable import decoded
from glassformer.numerics.distributions import entropy_bits, rank
from glassformer.provenance import Note
from glassformer.words import listed, sentence

N_CANDIDATES, N_LENS, N_MAP = 10, 5, 3
# multiplications that unembedding at all positions may take: about a second of one core
MAP_WORK = 10_000_000_000


def explained_sites(model: ModelLike) -> list[str]:
    """Return the sites that `explain` reads: the union of what its questions need, every pattern and head's write.

    Contributions are of the writes that were added to the stream, so they sum to its logit to the last digits.
    """
    looks = [f"{h.path}.pattern" for h in roles.heads(model) if h.reading is not None]
    looks += [layer.attention.at.head_out for layer in model.sub_layers() if layer.attention is not None]
    # a slope is taken, and its parts are, at what the unembedding reads
    looks += [] if model.unembed.has_directions else aim_sites(model, directed=True)
    questions = direct_logit_attribution, logit_lens, roles.head_roles
    asked = [site for one in questions for site in card_of(one).reads(model)]
    sites = [*looks, *pipeline.stage_sites(model), *asked, *source_sites(model), *_map_sites(model)]
    sites += memory_sites(model)
    return list(dict.fromkeys(sites))


@question(
    "Why this next token?",
    of="texts",
    reads=explained_sites,
    judge="direct paths by derivatives, later blocks left out, finite differences, one key's values alone",
)
def explain(
    model: ModelLike,
    text: TextOrIds,
    *,
    target: TextOrIds | None = None,
    answer: str | int | None = None,
    against: str | int | None = None,
    position: int | None = None,
    sampling: Sampling | None = None,
    specials: Specials = None,
    allow_unknown: bool = False,
) -> Explanation:
    """Explain one next token of a text: the way there in numbers, what each part adds, which heads matter and why.

    Of an encoder it is the token at a position, usually a masked one; of a model that tells classes, the class of the
    text or of the token at a position.

    The model runs once, forwards and backwards. Contributions are direct effects with norm scales frozen, what tokens'
    vectors do for the answer is a gradient with everything live; roles are scored on this text. Where a factored output
    layer makes log-probabilities, no logit is a sum: contributions are then to the slope of the answer's, the change of
    it to first order.

    Args:
        model: A decoder, an encoder or an encoder-decoder.
        text: A text or token ids, or an image; what the encoder reads, if there is one.
        target: The decoder's text, for an encoder-decoder; generated greedily by default.
        answer: Token (text or id) to explain; the likeliest by default.
        against: Token to compare it with: contributions are then those to the difference of the two logits.
        position: Position whose next token is explained; the last by default. For a translation that is complete, the
            one before, where the last word is written rather than the end token; for an encoder the first masked one.
        sampling: How the next token would be drawn.
        specials: Put special tokens around the text always or never, or take those that it names, as in `run`.
        allow_unknown: Read a text of which more than half is outside the vocabulary or unlearnt bytes, as in `run`.

    Raises:
        TextError: The text is empty, too long or mostly unknown, or answer or against is not one token.
        TokenOutOfRange: An id is outside the vocabulary.
        AnalysisUnavailable: The model is none of ours.
    """
    require_gradients(require_model(model, "explain"), "explain")
    graph = _run_with_graph(model, text, target, explained_sites(model), specials, allow_unknown)
    passed = _without_graph(graph)
    require_one_prompt(passed.inputs.shape[0], "explain")
    at = position_in(passed, position)
    logits = passed.predictions()[0, at]
    chosen = int(logits.argmax()) if answer is None else answer_id(model, answer)
    other = None if against is None else answer_id(model, against)
    inputs = _inputs(graph, chosen, other, at)
    aimed = _aimed(graph, chosen, other, at)
    del graph  # what only the backward pass needed
    log_probs = logits.double().log_softmax(-1)
    split = direct_logit_attribution(passed, position=at, **aimed)
    facts, without_roles = head_facts(passed, split)
    lens_map, left_out = _lens_map(passed, at)
    return Explanation(
        model=model_facts(model),
        text=passed.text,
        tokens=_tokens(passed.ids, passed.tokens, passed.marks),
        grid=None if model.patches is None else (*model.patches.grid, model.patches.outside),
        source_tokens=_source_tokens(passed),
        position=at,
        answer=_outcome(model, logits, chosen),
        against=None if other is None else _outcome(model, logits, other),
        pipeline=pipeline.stages(passed, at, log_probs),
        next_token=Distribution(float(entropy_bits(log_probs)), _candidates(model, logits, N_CANDIDATES)),
        sampling=_sampling(passed, at, sampling or Sampling()),
        lens=_lens(passed, chosen, other, at),
        lens_map=lens_map,
        attribution=_contributions(split),
        inputs=inputs,
        heads=facts,
        top_heads=top_heads(passed, split, facts, aimed),
        patterns=patterns(passed),
        translation=_translation(passed),
        memories=memory_use(passed, at),
    ).noted(*passed.notes, *without_roles, *_notes(passed, split), *left_out)


def _run_with_graph(
    model: ModelLike,
    text: TextOrIds,
    target: TextOrIds | None,
    read: list[str],
    specials: Specials,
    allow_unknown: bool,
) -> Run:
    """Run a model once, keeping the graph from its token vectors on."""
    vectors = _token_vectors(model)
    sites = list(dict.fromkeys([*read, *vectors]))
    leaves = [(site, _leaf) for site in vectors]
    return run(model, text, target, read=sites, edit=leaves, specials=specials, allow_unknown=allow_unknown, grad=True)


def _without_graph(run: Run) -> Run:
    """Return the run with plain numbers."""
    sites = {name: dataclasses.replace(site, values=site.values.detach()) for name, site in run.sites.items()}
    return dataclasses.replace(run, sites=sites, logits=None if run.logits is None else run.logits.detach())


@torch.enable_grad()
def _inputs(run: Run, answer: int, against: int | None, at: int) -> InputAttribution:
    """Say what each token's vector does for the answer: gradient times input; the run is one of `_run_with_graph`.

        value[t] = x_t . d m / d x_t         x_t the token's vector, m the answer's logit or a difference of two

    Norms and patterns are live, so the numbers are local slopes and do not sum to the logit. The graph is kept.
    Source: Shrikumar et al. 2016 (gradient times input).
    """
    assert run.logits is not None
    logits = run.logits[0, at]
    metric = logits[answer] if against is None else logits[answer] - logits[against]
    vectors = [run[site].values for site in _token_vectors(run.model)]
    gradients = torch.autograd.grad(metric, vectors, retain_graph=True)
    *source, own = [(g * x.detach()).sum(-1)[0].tolist() for g, x in zip(gradients, vectors)]
    return InputAttribution(
        method="gradient_x_input",
        target="logit" if against is None else "difference",
        values=tuple(own),
        source_values=tuple(source[0]) if source else None,
    )


@torch.enable_grad()
def _aimed(run: Run, answer: int, against: int | None, at: int) -> Aimed:
    """Return what contributions are to: a token, or the slope of its log-probability if it has no direction."""
    if run.model.unembed.has_directions:
        return {"answer": answer, "against": against}
    assert run.logits is not None
    logits, read = run.logits[0, at], run[read_by_unembedding(run.model)].values
    metric = logits[answer] if against is None else logits[answer] - logits[against]
    return {"direction": torch.autograd.grad(metric, read, retain_graph=True)[0][0, at]}


def _token_vectors(model: ModelLike) -> list[str]:
    return [embed.at_token for embed in model.embeddings.values()]


def _leaf(x: Tensor) -> Tensor:
    return x.detach().requires_grad_()


def _notes(run: Run, split: DirectLogitAttribution) -> list[Note]:
    """Return what has to be known of this model to read the explanation right."""
    notes: list[Note] = []
    if split.cap is not None:
        notes.append(
            Note(
                sentence("Logits are capped at {cap:g}.", cap=split.cap),
                sentence("Contributions are to the raw logit, before the cap."),
            )
        )
    if not run.model.unembed.has_directions:
        notes.append(
            Note(
                sentence("Logits are log-probabilities that a factored output layer makes; none is a sum of writes."),
                sentence("Contributions are to the slope of the answer's: its change, to first order."),
            )
        )
    classes = run.model.config.classifies
    if classes is not None:
        n = run.model.config.n_outputs
        told = {
            "text": sentence("Logits are of {n} classes of the whole image, read at the class token.", n=n)
            if run.model.patches is not None
            else sentence("Logits are of {n} classes of the whole text, read at the position that is explained.", n=n),
            "tokens": sentence("Logits are of {n} classes of the token at each position.", n=n),
            "mean": sentence(
                "Logits are of {n} classes of the whole image, as one patch says it; the image's are their mean.", n=n
            ),
        }
        notes.append(Note(told[classes]))
    elif run.model.logits_of == "token":
        notes.append(
            Note(
                sentence("The model reads both ways."),
                sentence("Its logits at a position are of the token that stands there, not of the next."),
            )
        )
    if departures := run.model.config.departures():
        path, words = next(iter(departures.items()))
        layers = sentence("{path} (and {n} more layers)", path=path, n=len(departures) - 1)
        which, differs = (layers if len(departures) > 1 else path), listed(words)
        notes.append(
            Note(
                sentence("{layer} is not the layer of its mechanism's paper: {words}.", layer=which, words=differs),
                sentence("What is said of it is of the layer as it is."),
                sentence("models.published_block builds the paper's."),
            )
        )
    if classes is None and not run.model.one_vocabulary():
        read, predicted = run.model.config.vocab_size, run.model.config.n_outputs
        notes.append(
            Note(
                sentence(
                    "The {predicted} tokens that are predicted are not the {read} that are read.",
                    predicted=predicted,
                    read=read,
                ),
                sentence("What is predicted here does not go on with the text."),
            )
        )
    if run.model.unembed.readout is not None:
        notes.append(
            Note(
                sentence("Between the last norm and the unembedding stands one more layer."),
                sentence("Contributions pass it with its norm's scale and its activation's slopes frozen."),
            )
        )
    return notes


def _tokens(ids: Tensor | None, texts: list[str], odd: Marks) -> tuple[Token, ...]:
    """Return tokens with their ids; patches of an image, which have none, with their numbers in order."""
    numbers = range(len(texts)) if ids is None else ids[0].tolist()
    return tuple(Token(i, id, text, **odd.of(i)) for i, (id, text) in enumerate(zip(numbers, texts)))


def _source_tokens(run: Run) -> tuple[Token, ...] | None:
    return None if run.source_ids is None else _tokens(run.source_ids, run.source_tokens, run.source_marks)


def _text(model: ModelLike, id: int) -> str:
    tokenizer = model.output_tokenizer
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
    assert run.logits is not None
    logits = run.logits[0, at]
    # a penalty on what was there before is one on tokens that can be said again
    own = run.model.one_vocabulary() and run.ids is not None
    before = run.ids[0, : at + 1] if own and run.ids is not None else torch.zeros(0, dtype=torch.long)
    seen = torch.zeros_like(logits, dtype=torch.bool).index_fill(0, before, True)
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


def _lens_map(run: Run, at: int) -> tuple[LensMap | None, list[Note]]:
    """Return the lens at every position, or at as many up to the explained one as can be read in about a second."""
    sites, config, length = _map_sites(run.model), run.model.config, len(run.tokens)
    if not sites:
        return None, []
    most = max(1, MAP_WORK // (len(sites) * config.n_outputs * config.d_model))
    chosen = tuple(range(length)) if length <= most else tuple(range(max(0, at + 1 - most), at + 1))
    grid = lens_grid(run, sites=sites, positions=chosen, measures=("top", "entropy", "kl"), k=N_MAP)
    top, probability, entropy, kl = (
        found.values[:, 0]
        for found in (grid.top, grid.top_probability, grid.entropy_bits, grid.kl_bits)
        if found is not None
    )
    labels = ("embed", *(f"block {i}" for i in range(len(sites) - 1)))
    short = Note(
        sentence("The lens over positions shows {n} of {all}, up to the explained one.", n=len(chosen), all=length)
    )
    found = LensMap(
        labels=labels,
        positions=chosen,
        top=top,
        probability=probability,
        entropy_bits=entropy,
        kl_bits=kl,
        words=grid.words,
    )
    return found, [] if len(chosen) == length else [short]


def _contributions(split: DirectLogitAttribution) -> Contributions:
    values = split.contributions.values.tolist()
    parts = [Contribution(c.label, c.kind, c.layer, c.part, c.head, v) for c, v in zip(split.components, values)]
    if split.answer is None:
        return Contributions("slope", float(split.total), float(split.sum), tuple(parts))
    raw, difference = split.cap is not None, split.against is not None
    target = ("raw difference" if difference else "raw logit") if raw else "difference" if difference else "logit"
    return Contributions(target, float(split.total), float(split.sum), tuple(parts))


def _translation(run: Run) -> Translation | None:
    if not run.source_rows or run.logits is None or run.ids is None:
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
