"""What heads do, read off their patterns: previous-token, induction, duplicate-token, first-token, current-token.

Each role is a 0/1 mask M over (query, key); a head's score at a query is the attention it puts where the mask is set,
and the role's score is the mean over the queries that have such a key (the first position, which can only see itself,
is left out).

    previous_token    key = query - 1
    induction         token[key - 1] = token[query], key - 1 < query: what followed this token before
    duplicate_token   token[key] = token[query], key < query
    first_token       key = 0
    current_token     key = query

Rows that are non-negative and sum to one give scores in [0, 1]. Other patterns are read as signed mass: the sum of
A M over the sum of abs(A), in [-1, 1]. Heads with several values at each position have a pattern for each of them, and
are scored once for each: `L0H1/0`.

Source: Olsson et al. 2022, "In-context Learning and Induction Heads", with the offset as used there in code: the
sentences of its appendix, taken literally, describe attention to the earlier copy itself.
"""

import dataclasses
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from glassformer.analysis._run import run
from glassformer.analysis.components import head_labels
from glassformer.analysis.question import question
from glassformer.arguments import Count
from glassformer.attention import AttentionLayer
from glassformer.errors import AnalysisUnavailable, NoPattern
from glassformer.labelled import Labelled, Result
from glassformer.models import Model, ModelLike, SubLayer, require_model
from glassformer.numerics.precision import wide
from glassformer.provenance import about
from glassformer.words import Sentence, sentence

ROLES = ("previous_token", "induction", "duplicate_token", "first_token", "current_token")
Reading = Literal["mass", "signed"]
NAMED = 0.4  # a head is called by a role from this score on repeated random tokens on; below, it resembles one
# positions from which random tokens are repeated more than once: copies that are short look alike one and two back
_ROOM = 40


@dataclasses.dataclass(frozen=True)
class Head:
    """One attention head of a model, by name.

    Args:
        label: `L3H5`.
        path: Sub-layer it belongs to, `blocks.3.attn`; its sites lie below.
        stack: Empty for a decoder, else `encoder` or `decoder`.
        part: `attn` or `cross`.
        layer: Index of the block.
        head: Index in the layer.
        mechanism: Kind of the mixer.
        reading: `mass` if rows of the pattern sum to one, else `signed`; None if there is no pattern, or no single one.
        crosses: Whether its keys are those of another stack.
        row: Its pattern among those of its layer, as `rows_of` has them; the head itself where each has one.
    """

    label: str
    path: str
    stack: str
    part: str
    layer: int
    head: int
    mechanism: str
    reading: Reading | None
    crosses: bool = False
    row: int = 0


@dataclasses.dataclass(frozen=True, eq=False)
class HeadScores(Result):
    """How much each head plays each role.

    Args:
        scores: `head role`; NaN where the role is defined nowhere.
        positions: Number of queries each score is a mean over, `role`.
        readings: For each head, `mass` (share of attention, in [0, 1]) or `signed` (signed over absolute, in [-1, 1]).
    """

    HEADLINE = ("scores",)

    scores: Labelled
    positions: Labelled
    readings: tuple[Reading, ...]

    def best(self, role: str) -> tuple[str, float]:
        """The head with the highest score, and the score."""
        (label, *_), score = self.scores.select(role=role).top(1)[0]
        return str(label), score


def heads(model: ModelLike) -> list[Head]:
    """Every attention head: by stack, layer, sub-layer, head."""
    if not isinstance(model, Model):
        raise AnalysisUnavailable(
            "heads are known by name in a Decoder, an Encoder or an EncoderDecoder; "
            f"{type(model).__name__} is none of them.\n"
            "    Of a module whose spec says what it is made of, give model.parts()."
        )
    return [head for stack in model.stacks for layer in model.sub_layers(stack) for head in _heads_of(layer)]


def _heads_of(layer: SubLayer) -> list[Head]:
    if (part := layer.attention) is None:
        return []
    traits, kind = part.traits, part.config.mixer.kind or ""
    reading: Reading | None = "mass" if traits.rows_sum_to_one else "signed"
    reading = reading if traits.one_pattern else None
    return [
        Head(
            label=label,
            path=part.path,
            stack=layer.stack,
            part=layer.name,
            layer=layer.layer,
            head=h,
            mechanism=kind,
            reading=reading,
            crosses=layer.crosses,
            row=h,
        )
        for h, label in enumerate(head_labels(layer))
    ]


def patterned(model: ModelLike) -> list[Head]:
    """Every head that has a pattern; of several values each has one of its own, and the head is there once for each.

    Labels end in the number of the value, `L0H1/0`; rows, which need not sum to one, are read as signed.
    """
    found = list[Head]()
    for head in heads(model):
        traits = layer_of(model, head).traits
        if head.reading is not None:
            found.append(head)
        elif traits.shows_patterns:
            n = traits.value_streams
            each = (
                dataclasses.replace(head, label=f"{head.label}/{i}", reading="signed", row=head.head * n + i)
                for i in range(n)
            )
            found += each
    return found


def layer_of(model: ModelLike, head: Head) -> AttentionLayer:
    """The attention layer that a head is of."""
    layer = model.sub_layer(head.path).attention
    assert layer is not None, "the path of a head is that of an attention layer"
    return layer


def rows_of(pattern: Float[Tensor, "batch *value_stream head query key"]) -> Float[Tensor, "batch row query key"]:
    """Return the patterns of a layer in a row, those of several values of one head beside each other: `Head.row`."""
    return pattern if pattern.ndim == 4 else pattern.transpose(1, 2).flatten(1, 2)


def pattern_sites(model: ModelLike) -> list[str]:
    """Return the sites that `head_roles` reads: the self-attention patterns, where there are any."""
    return list(dict.fromkeys(f"{h.path}.pattern" for h in patterned(model) if not h.crosses))


@question(
    "Which known role does each head play on this text?",
    reads=pattern_sites,
    traits=("shows_patterns",),
    judge="loops over queries and keys, patterns found by marking one key's values",
)
def head_roles(
    run: Any,
    text: Any = None,
    target: Any = None,
    *,
    stack: str | None = None,
) -> HeadScores:
    """Score the self-attention heads of a stack on the text that was run.

    In natural text few tokens occurred before, and what follows them is often predictable anyway: look at `positions`,
    and see `head_scores` for the standard test on random tokens.

    Raises:
        SiteNotRead: The run lacks a pattern.
        NoPattern: No head of this stack has a pattern.
    """
    stack = require_model(run.model, "head_roles").stack_name(stack)
    ids = run.source_ids if stack == "encoder" else run.inputs.require_ids("head_roles")
    assert ids is not None, "what has an encoder read a source"
    known = [h for h in patterned(run.model) if h.stack == stack and not h.crosses]
    if not known:
        chosen = [h for h in heads(run.model) if h.stack == stack and not h.crosses]
        mechanisms = ", ".join(sorted({h.mechanism for h in chosen})) or "no attention"
        raise no_patterns("head_roles", mechanisms)
    run.require(dict.fromkeys(f"{h.path}.pattern" for h in known), "head_roles")
    return _score(
        known,
        {h.path: rows_of(run[f"{h.path}.pattern"].values) for h in known},
        ids,
        run.inputs.real_lengths(stack == "encoder"),
    )


@question(
    "Which heads are induction, previous-token or duplicate-token heads?",
    of="texts",
    judge="loops over queries and keys, patterns found by marking one key's values",
)
def head_scores(
    model: ModelLike, *, seed: int = 0, n_sequences: Count = 10, unit: Count = 25, repeats: Count = 4
) -> HeadScores:
    """Score every self-attention head on random tokens repeated: `<bos>`, then a unit of them, several times over.

    Random tokens leave nothing but position and repetition to go by. Induction and duplicate-token scores are means
    over the repetitions, the others over all positions. Without a `<bos>`, heads that find nothing have no resting
    place and score lower. An encoder-decoder reads such rows on both sides. In a stack that reads both ways nothing is
    foretold from what followed: its heads have no induction score (NaN), and the other roles as they are.

    Args:
        model: A decoder, an encoder or an encoder-decoder.
        n_sequences: Sequences in the one batch that is run.
        unit: Length of the unit; shorter if the training, the context or the vocabulary has no room.
        repeats: How often it occurs.

    Raises:
        AnalysisUnavailable: The model is none of ours, or too small for any repetition.
        NoPattern: No head has a pattern.

    Source: Olsson et al. 2022, appendix on data collection (25 tokens, 4 times, 10 sequences).
    """
    model = require_model(model, "head_scores")
    if not pattern_sites(model):
        raise no_patterns("head_scores", ", ".join(sorted({h.mechanism for h in heads(model)})) or "no attention")
    inputs = repeated_inputs(model, seed=seed, n_sequences=n_sequences, unit=unit, repeats=repeats)
    with about(of_random_tokens):
        done = run(model, *inputs, read=pattern_sites(model))
    stacks = {h.stack for h in patterned(model) if not h.crosses}
    found = [(name, head_roles(done, stack=name or None)) for name in model.stacks if name in stacks]
    scores = [_unforetold(one.scores) if model.reads_ahead(name) else one.scores for name, one in found]
    labels = [label for one in scores for label in one.labels("head")]
    return HeadScores(
        Labelled(torch.cat([one.values for one in scores]), scores[0].axes, {**scores[0].coords, "head": labels}),
        found[-1][1].positions,
        tuple(reading for _, one in found for reading in one.readings),
    )


def repeats_for(model: ModelLike) -> int:
    """Return how often random tokens are repeated in rows that training prepared a model for."""
    return 4 if model.familiar_length >= _ROOM else 2


def of_random_tokens(seen: str) -> Sentence:
    """Return what is said of repeated random tokens, as said of them."""
    return sentence("Repeated random tokens, on which heads are scored: {seen}", seen=seen)


def _unforetold(scores: Labelled) -> Labelled:
    """Return scores without the role that foretells what comes next."""
    values = scores.values.clone()
    values[:, ROLES.index("induction")] = torch.nan
    return dataclasses.replace(scores, values=values)


def repeated_inputs(model: Model, **kwargs: Any) -> tuple[Int[Tensor, "batch pos"], ...]:
    """Return what a model reads where `repeated_tokens` are all it reads: rows for each side of an encoder-decoder."""
    rows = repeated_tokens(model, **kwargs)
    return (rows,) if model.source is None else (repeated_tokens(model, of_source=True, **kwargs), rows)


def repeated_tokens(
    model: ModelLike,
    *,
    seed: int = 0,
    n_sequences: Count = 10,
    unit: Count = 25,
    repeats: Count = 4,
    of_source: bool = False,
) -> Int[Tensor, "batch pos"]:
    """Return `<bos>` (if the tokenizer has one) and a random unit repeated; specials are not drawn.

    Rows are no longer than training prepared the model for, unless that leaves no unit.
    """
    bos, free = drawable(model, of_source)
    trained, most = ((n - (bos is not None)) // repeats for n in (model.familiar_length, model.config.max_len))
    unit = min(unit, max(trained, 2), most, len(free))
    if unit < 2:
        raise AnalysisUnavailable(
            f"repeated random tokens need a unit of at least 2; max_len={model.config.max_len} and "
            f"vocab_size={model.config.vocab_size} leave {unit}."
        )
    generator = torch.Generator().manual_seed(seed)
    units = torch.stack([free[torch.randperm(len(free), generator=generator)[:unit]] for _ in range(n_sequences)])
    rows = units.repeat(1, repeats)
    return rows if bos is None else torch.cat((torch.full((n_sequences, 1), bos), rows), 1)


def drawable(model: Any, of_source: bool = False) -> tuple[int | None, Int[Tensor, " token"]]:
    """Return the beginning token, if there is one, and the tokens that may be drawn at random: no special ones.

    `of_source`: of what the encoder of an encoder-decoder reads.
    """
    tokenizer = model.source_tokenizer if of_source else model.tokenizer
    specials = set() if tokenizer is None else set(tokenizer.specials)
    if model.patches is not None:
        raise AnalysisUnavailable("random tokens are drawn from a vocabulary, and this model reads images.")
    size = model.embeddings[model.source].vocab_size if of_source else model.config.vocab_size
    size = size if tokenizer is None else min(size, tokenizer.vocab_size)
    free = torch.tensor([id for id in range(size) if id not in specials], dtype=torch.long)
    return None if tokenizer is None else tokenizer.bos, free


def role_masks(ids: Int[Tensor, "batch pos"]) -> Bool[Tensor, "role batch query key"]:
    """Return where each of `ROLES` would look."""
    batch, n = ids.shape
    q, k = torch.arange(n, device=ids.device)[:, None], torch.arange(n, device=ids.device)[None]
    same = ids[:, :, None] == ids[:, None, :]
    followed = torch.zeros_like(same)
    # the key after an earlier copy: shift the copies one to the right
    followed[:, :, 1:] = (same & (k < q))[:, :, :-1]
    everywhere = torch.ones(batch, 1, 1, dtype=torch.bool, device=ids.device)
    masks = [
        (k == q - 1) & everywhere,
        followed,
        same & (k < q),
        (k == 0) & (q >= k) & everywhere,
        (k == q) & everywhere,
    ]
    # the first position can only look at itself, whatever the head does
    return torch.stack(masks) & (q > 0)


def _score(
    known: list[Head], patterns: dict[str, Float[Tensor, "batch row query key"]], ids: Tensor, lengths: Tensor | None
) -> HeadScores:
    masks = role_masks(ids)
    if lengths is not None:
        masks = masks & (torch.arange(ids.shape[1], device=ids.device) < lengths[:, None])[..., None]
    defined = masks.any(-1)
    columns: dict[str, Tensor] = {}
    for path, stored in patterns.items():
        pattern = wide(stored)
        # keys beyond the text (sinks, persistent memory) take part in the total, not in any role
        total = pattern.abs().sum(-1).clamp_min(torch.finfo(pattern.dtype).tiny)
        mass = torch.einsum("bhqk,rbqk->rbhq", pattern[..., -ids.shape[1] :], masks.to(pattern.dtype)) / total
        counted = defined[:, :, None].to(pattern.dtype)
        # 0 / 0 where a role is defined nowhere: NaN says so
        columns[path] = (mass * counted).sum((1, 3)) / counted.sum((1, 3))
    scores = torch.stack([columns[h.path][:, h.row] for h in known])
    return HeadScores(
        Labelled(scores, ("head", "role"), {"head": [h.label for h in known], "role": ROLES}),
        Labelled(defined.sum((1, 2)), ("role",), {"role": ROLES}),
        tuple(h.reading for h in known if h.reading is not None),
    )


def no_patterns(analysis: str, mechanisms: str) -> NoPattern:
    return NoPattern(
        f"{analysis} reads attention patterns, and this model has none ({mechanisms}).\n"
        "    Direct logit attribution needs none: analysis.attribution.direct_logit_attribution(run)."
    )
