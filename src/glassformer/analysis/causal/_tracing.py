"""Causal tracing: which hidden state, restored, rescues the answer after the subject is corrupted?

    corrupt     noise on the token vectors of the subject, the same for every state
    total effect     p(clean) - p(corrupt)
    indirect effect  p(corrupt, one state restored) - p(corrupt)

Restored is the stream after a layer at one position, or the outputs of a window of MLPs or attentions there. Severed:
the state is restored, and every later MLP (or attention) output at that position stays as corrupted, so that what the
state does through them is lost. Norms are live.

Probabilities saturate, so the logit difference stands beside them. A window restores many outputs and looks more local
than it is; how much noise is a choice: look at p(corrupt).

Source: Meng et al. 2022, "Locating and Editing Factual Associations in GPT", section 2 and appendix B.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.analysis._run import run
from glassformer.analysis.contrasts import Prompts, prompts
from glassformer.analysis.guard import answer_notes, beyond_spread, task_notes
from glassformer.analysis.prepare import answer_id, asked_position
from glassformer.analysis.question import question
from glassformer.analysis.sweep import sweep
from glassformer.analysis.sweep.metrics import logit_difference, probability
from glassformer.analysis.sweep.plan import Donor, EditLike, grid
from glassformer.analysis.uncertainty import mean, standard_error
from glassformer.arguments import Amount, Count, Several, checked
from glassformer.attention import AttentionLayer
from glassformer.errors import AnalysisUnavailable, ShapeMismatch, TextError
from glassformer.labelled import Labelled, Result
from glassformer.models import Block, Model, ModuleLike, Stack, require_model
from glassformer.models.embedding import require_ids
from glassformer.models.readable import readable_outputs
from glassformer.provenance import Note, distinct, of_several
from glassformer.trace import Add, At, Set, parts_of
from glassformer.words import Sentence, sentence

_ANSWERS = "logit difference"
Kind = Literal["state", "mlp", "attn", "state_without_mlp", "state_without_attn"]
KINDS: tuple[Kind, ...] = ("state", "mlp", "attn", "state_without_mlp", "state_without_attn")
# what a token is to the subject
ROLES = ("before", "first subject", "middle subject", "last subject", "next", "further", "last")


@dataclasses.dataclass(frozen=True, eq=False)
class CausalTrace(Result):
    """What restoring each state does for the answer, sample by sample of noise.

    Args:
        values: With the state restored, `metric kind pos layer sample`; metrics are `probability` of the answer and
            `logit difference` between it and `wrong`.
        clean: Of the clean run, `metric`.
        corrupt: Of the corrupted run, `metric sample`.
        subject: Positions that got noise.
        answer: The token asked about.
        wrong: The token it is compared with.
        noise: Standard deviation of the noise.
        window: How many layers of MLP or attention outputs are restored together.
        seed: Source of the noise.
    """

    HEADLINE = ("share",)
    SIGNED = ("values", "clean", "corrupt", "total_effect", "indirect_effect", "share")

    values: Labelled
    clean: Labelled
    corrupt: Labelled
    subject: tuple[int, ...]
    answer: str
    wrong: str
    noise: float
    window: int
    seed: int

    @property
    def total_effect(self) -> Labelled:
        """Clean less corrupt, mean over samples, `metric`."""
        return dataclasses.replace(self.clean, values=self.clean.values - self.corrupt.values.mean(-1))

    @property
    def indirect_effect(self) -> Labelled:
        """Restored less corrupt, mean over samples, `metric kind pos layer`."""
        return mean(self._change)

    @property
    def error(self) -> Labelled:
        """Standard error of the indirect effect over samples of noise, `metric kind pos layer`."""
        return standard_error(self._change)

    @property
    def total_error(self) -> Labelled:
        """Standard error of the total effect over samples of noise, `metric`; NaN for one sample."""
        return standard_error(self.corrupt)

    @property
    def share(self) -> Labelled:
        """Share of what the noise takes that restoring brings back, sample by sample, `metric kind pos layer sample`.

        0: as corrupt, 1: as clean. NaN where the noise does not lower the metric by more than that varies: there is
        nothing to bring back.
        """
        return _share(self._change, self.clean.values[:, None] - self.corrupt.values)

    @property
    def notes(self) -> tuple[Note, ...]:
        """What must be known to read the numbers right, such as that the noise takes nothing."""
        task = (
            ()
            if _ANSWERS not in (names := self.clean.labels("metric"))
            else task_notes(self.clean.values[names.index(_ANSWERS), None])
        )
        return distinct(task, super().notes, _share_notes(self.share, sentence("draw of noise")))

    def _title(self) -> str:
        return f"Causal trace of {self.answer!r}"

    @property
    def _change(self) -> Labelled:
        corrupt = self.corrupt.values[:, None, None, None]
        return dataclasses.replace(self.values, values=self.values.values - corrupt)


@dataclasses.dataclass(frozen=True, eq=False)
class TracesByRole(Result):
    """Indirect effects of many prompts by what a token is to the subject.

    Args:
        values: Indirect effect, mean over the tokens of a role, `metric kind role layer prompt`; NaN where a prompt has
            no such token. A subject of one token is all `last subject`.
        total: Total effect, `metric prompt`.
    """

    HEADLINE = ("share",)
    SIGNED = ("values", "total", "mean", "average_total", "share")

    values: Labelled
    total: Labelled

    @property
    def notes(self) -> tuple[Note, ...]:
        """What must be known to read the numbers right, such as that the noise takes nothing."""
        return distinct(super().notes, _share_notes(self.share, sentence("prompt")))

    def _title(self) -> str:
        return "Average indirect effect"

    @property
    def mean(self) -> Labelled:
        """Average indirect effect, `metric kind role layer`."""
        return mean(self.values)

    @property
    def error(self) -> Labelled:
        """Its standard error over prompts."""
        return standard_error(self.values)

    @property
    def average_total(self) -> Labelled:
        """Average total effect, `metric`."""
        return mean(self.total)

    @property
    def share(self) -> Labelled:
        """Share of the average total effect that restoring brings back, `metric kind role layer prompt`.

        NaN where the noise does not lower the metric by more than that varies.
        """
        return _share(self.values, self.total.values)


@question("Which states bring a corrupted subject's answer back?", of="texts")
def causal_trace(
    model: ModuleLike,
    inputs: Any,
    subject: str | Sequence[int],
    answer: str | int | None = None,
    wrong: str | int | None = None,
    *,
    kinds: Sequence[Kind] | None = None,
    window: Count = 10,
    samples: Count = 10,
    noise: Amount = 3.0,
    deviation: float | None = None,
    seed: int = 0,
    stack: str | None = None,
    target: Any = None,
    rows: Count | None = None,
    memory: int | None = None,
    report: Callable[[int, int], None] | None = None,
    save_to: str | Path | None = None,
) -> CausalTrace:
    """Trace one prompt: corrupt its subject, restore each state, watch the answer.

    Args:
        model: A decoder, an encoder-decoder, or a module whose spec says what it is made of.
        inputs: One prompt: text or ids.
        subject: A part of the text (its first occurrence), or positions.
        wrong: The token the logit difference compares with; by default the likeliest other one when corrupted.
        kinds: What to restore: `state`, `mlp`, `attn`, and the severed `state_without_mlp`, `state_without_attn`. By
            default the first three, as far as the model has them.
        window: Layers of `mlp` and `attn` outputs restored together, around each layer.
        samples: Draws of noise.
        noise: Its standard deviation, in units of the deviation of the subject's token vectors.
        deviation: That unit, for prompts that are to share one (`subject_deviation`); the prompt's own by default.
        seed: Source of the noise; it is the same for every state.
        stack: In an encoder-decoder, where the subject lies: `encoder` (default) or `decoder`.

    Raises:
        TextError: The subject is not in the text.
        ShapeMismatch: There is more than one prompt, or a position is out of range.
        AnalysisUnavailable: The model is none of ours, or has nothing of a kind.

    Example:
        >>> found = causal_trace(model, "The Space Needle is in the city of", "Space Needle", " Seattle")
        >>> found.indirect_effect.select(metric="probability", kind="state").top(3)

    Source: Meng et al. 2022, section 2; severed variants: section 2.2.
    """
    traced = _traced(model, stack)
    asked = prompts(model, inputs, target, "causal_trace")
    if asked.rows != 1:
        raise ShapeMismatch(
            f"causal_trace is of one prompt at a time, and was given {asked.rows}.\n"
            "    Of several: average_traces([causal_trace(model, one, subject) for one, subject in prompts])."
        )
    built = parts_of(model)
    name = stack or next(iter(built.stacks))
    chosen = tuple(kinds) if kinds is not None else _available(traced)
    _check_kinds(chosen, traced)
    if asked.given.kwargs.get("documents") is not None:
        raise ShapeMismatch("causal_trace: the prompt is a row of packed documents; give one of them.")
    ids = _copies(asked, 1)[0 if name != "decoder" else 1]
    places = _positions(model, ids[0], subject)
    embed = built.embeddings[name]
    unit = subject_deviation(model, [ids[0, list(places)]]) if deviation is None else deviation
    edit = _noise(
        embed.at_token, places, (samples, len(places), built.config.d_model), unit * noise, seed, embed.weight
    )
    many = _copies(asked, samples)
    at = asked_position(model, ids[0])
    right, other = _tokens(model, asked, many, edit, answer, wrong, at)
    metrics = [probability(right, pos=at), logit_difference(right, other, pos=at)]
    donors = Donor(*_copies(asked, 1)), Donor(*many, edit=edit)
    plan = grid(
        lambda kind, pos, layer: list(_restored(traced, kind, pos, layer, window, *donors)),
        kind=chosen, pos=range(ids.shape[1]), layer=range(len(traced.blocks)),
    )  # fmt: skip
    found = sweep(
        model, many[0], plan, metrics, target=many[1], base_edit=edit, rows=rows, memory=memory, report=report,
        save_to=save_to,
    )  # fmt: skip
    clean = sweep(model, donors[0].inputs, [[]], metrics, target=donors[0].target).base
    tokens = [f"{i}:{token}" for i, token in enumerate(asked.tokens(name)[0])]
    names = clean.labels("metric")
    coords = {"metric": names, "kind": list(chosen), "pos": tokens, "layer": range(len(traced.blocks))}
    read = readable_outputs(model, torch.tensor([[right], [other]]))
    return CausalTrace(
        values=Labelled(found.values.values, ("metric", "kind", "pos", "layer", "sample"), coords),
        clean=Labelled(clean.values[:, 0], ("metric",), {"metric": names}),
        corrupt=Labelled(found.base.values, ("metric", "sample"), {"metric": names}),
        subject=places,
        answer=read[0][0],
        wrong=read[1][0],
        noise=float(unit * noise),
        window=window,
        seed=seed,
    ).noted(*answer_notes(float(clean.values[0, 0]), built.config.n_outputs))


@checked
def subject_deviation(
    model: ModuleLike, subjects: Several[Int[Tensor, " pos"] | Sequence[int]], stack: str | None = None
) -> float:
    """The standard deviation of all numbers in the token vectors of some subjects.

    Args:
        model: One of ours, or a module whose spec says what it is made of.
        subjects: Ids of each subject.
        stack: `encoder` or `decoder`, whose tokens these are; by default the first that the model has.
    """
    built = require_model(parts_of(model), "subject_deviation")
    ids = torch.cat([torch.as_tensor(subject).flatten() for subject in subjects])
    embed = built.embeddings[next(iter(built.stacks)) if stack is None else built.stack_name(stack)]
    (ids,) = require_ids(ids[None], embed.vocab_size)
    return float((embed.weight.detach()[ids.to(embed.weight.device)] * embed.factor).double().std())


@checked
def average_traces(traces: Sequence[CausalTrace]) -> TracesByRole:
    """Average the traces of several prompts by role: before, first, middle and last subject token, next, further, last.

    Args:
        traces: Of one model, with the same kinds and window.

    Raises:
        ShapeMismatch: There are none, or they differ in kinds, layers or window.
    """
    if not traces:
        raise ShapeMismatch("average_traces: give at least one trace.")
    first = traces[0]
    for trace in traces:
        same = trace.values.labels("kind") == first.values.labels("kind") and trace.window == first.window
        if not same or trace.values.size("layer") != first.values.size("layer"):
            raise ShapeMismatch("average_traces: the traces differ in kinds, window or layers; trace them alike.")
    found = [_by_role(trace) for trace in traces]
    coords = {"metric": first.values.labels("metric"), "kind": first.values.labels("kind"), "role": list(ROLES)}
    averaged = TracesByRole(
        Labelled(torch.stack(found, -1), ("metric", "kind", "role", "layer", "prompt"), coords),
        Labelled(
            torch.stack([trace.total_effect.values for trace in traces], -1), ("metric", "prompt"),
            {"metric": first.values.labels("metric")},
        ),
    )  # fmt: skip
    names = first.clean.labels("metric")
    answers = (
        torch.stack([trace.clean.values[names.index(_ANSWERS)] for trace in traces]) if _ANSWERS in names else None
    )
    task = () if answers is None else task_notes(answers)
    told = distinct(task, *(trace._notes for trace in traces))
    seed = first.seed if all(trace.seed == first.seed for trace in traces) else None
    return averaged.noted(*told).bound(of_several("average_traces", [trace.binding for trace in traces], seed))


def token_roles(subject: Sequence[int], length: int) -> list[str]:
    """Return what each position is to the subject."""
    first, last = min(subject), max(subject)

    def role(pos: int) -> str:
        if pos in subject:
            return "last subject" if pos == last else "first subject" if pos == first else "middle subject"
        if pos < first:
            return "before"
        if pos == length - 1:
            return "last"
        return "next" if pos == last + 1 else "further"

    return [role(pos) for pos in range(length)]


def _share(change: Labelled, totals: Float[Tensor, "metric sample"]) -> Labelled:
    """Return changes as shares of the mean total of each metric; NaN where that is none, or no more than it varies."""
    total = totals.mean(-1)
    whole = total.masked_fill(~(beyond_spread(totals) & (total > 0)), torch.nan)
    beside = whole.reshape(-1, *(1,) * (change.values.ndim - 1))
    return dataclasses.replace(change, values=change.values / beside)


def _share_notes(share: Labelled, drawn: Sentence) -> tuple[Note, ...]:
    """Return what must be known of shares, `metric … sample`: that there are none, or that nothing says how sure."""
    metrics = share.labels("metric")
    lost = [sentence(str(name)) for name, one in zip(metrics, share.values) if not bool(one.isfinite().any())]
    notes: list[Note] = []
    if lost:
        notes.append(
            Note(
                sentence(
                    "The noise does not lower the {metrics} by more than that varies.",
                    metrics=functools.reduce(_or_the, lost),
                ),
                sentence("There is nothing to bring back, and no share of it."),
                sentence("Try more noise, more samples or another subject."),
                denies=len(lost) == len(metrics),
            )
        )
    if len(lost) < len(metrics) and share.shape[-1] == 1:
        notes.append(
            Note(
                sentence("There is one {drawn}, and so no standard error.", drawn=drawn),
                sentence("Nothing tells what restoring brings back from chance, and no cell is faded."),
                sentence("Ask for more than one {drawn}.", drawn=drawn),
            )
        )
    return tuple(notes)


def _or_the(one: Sentence, other: Sentence) -> Sentence:
    return sentence("{one} or the {other}", one=one, other=other)


def _traced(model: ModuleLike, stack: str | None) -> Stack:
    built = parts_of(model)
    if not isinstance(built, Model):
        raise AnalysisUnavailable(
            "causal_trace restores layers of a Decoder, an Encoder or an EncoderDecoder; "
            f"{type(built).__name__} is none of them.\n"
            "    patch(model, …, sites=GLOB) replaces values at any module's boundary."
        )
    name = stack or next(iter(built.stacks))
    if name not in built.stacks:
        raise AnalysisUnavailable(f'causal_trace: no stack "{name}". Stacks: {", ".join(map(repr, built.stacks))}.')
    return built.stacks[name]


def _outputs(block: Block, kind: str) -> list[str]:
    """Return the sites of what a block's MLPs, attentions or the whole block put out."""
    if kind == "state":
        return [block.at_resid[-1]]
    return [
        f"{block.path}.{name}.out"
        for name in block.names
        if isinstance(block.part(name), AttentionLayer) == (kind == "attn")
    ]


def _available(stack: Stack) -> tuple[Kind, ...]:
    return tuple(kind for kind in KINDS[:3] if any(_outputs(block, kind) for block in stack.blocks))


def _check_kinds(kinds: Sequence[Kind], stack: Stack) -> None:
    for kind in kinds:
        if kind not in KINDS:
            raise AnalysisUnavailable(f"causal_trace: no kind {kind!r}. Kinds: {', '.join(KINDS)}.")
        part = kind.removeprefix("state_without_")
        if not any(_outputs(block, part) for block in stack.blocks):
            raise AnalysisUnavailable(
                f'causal_trace: kind "{kind}", but no layer has {part} outputs. Kinds there are: {_available(stack)}.'
            )


def _restored(
    stack: Stack, kind: str, pos: int, layer: int, window: int, clean: Donor, corrupt: Donor
) -> Iterator[EditLike]:
    at = At(pos=pos)
    blocks = list(stack.blocks)
    severed = kind.removeprefix("state_without_") if kind.startswith("state_without_") else None
    if kind in ("mlp", "attn"):
        # as many layers after as before, one more before if the window is even
        first, last = max(0, layer - window // 2), min(len(blocks), layer + (window + 1) // 2)
        restored = [name for block in blocks[first:last] for name in _outputs(block, kind)]
    else:
        restored = _outputs(blocks[layer], "state")
    yield from (Set(name, clean, at=at) for name in restored)
    if severed is not None:
        later = [name for block in blocks[layer + 1 :] for name in _outputs(block, severed)]
        yield from (Set(name, corrupt, at=at) for name in later)


def _noise(
    site: str, places: Sequence[int], shape: tuple[int, int, int], size: float, seed: int, like: Tensor
) -> list[Add]:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(shape, generator=generator, dtype=torch.float64) * size
    return [Add(site, drawn.to(like), at=At(pos=list(places)))]


def _copies(asked: Prompts, n: int) -> tuple[Any, Any]:
    given = asked.given
    # padding goes: one row needs none
    ids = given.require_ids("causal_trace")[:, : len(given.token_rows[0])].expand(n, -1)
    return (
        (ids, None)
        if given.source_ids is None
        else (given.source_ids[:, : len(given.source_rows[0])].expand(n, -1), ids)
    )


def _tokens(
    model: ModuleLike, asked: Prompts, many: tuple[Any, Any], edit: Sequence[EditLike], answer: Any, wrong: Any, at: int
) -> tuple[int, int]:
    if answer is None:
        answer = int(run(model, *_copies(asked, 1)).predictions()[0, at].argmax())
    answer = answer_id(model, answer)
    if wrong is None:
        logits = run(model, *many, edit=edit).predictions()
        likely = logits[:, at].log_softmax(-1).exp().mean(0)
        likely[answer] = -1
        wrong = int(likely.argmax())
    return answer, answer_id(model, wrong)


def _positions(model: ModuleLike, ids: Int[Tensor, " pos"], subject: str | Sequence[int]) -> tuple[int, ...]:
    length = len(ids)
    if not isinstance(subject, str):
        found = [int(i) for i in subject]
        if not found:
            raise ShapeMismatch("causal_trace: the subject has no position; give at least one.")
        if outside := [i for i in found if not -length <= i < length]:
            raise ShapeMismatch(f"causal_trace: position {outside[0]} is not in the prompt of {length} tokens.")
        return tuple(sorted({i % length for i in found}))
    tokenizer: Any = getattr(model, "tokenizer", None)
    if tokenizer is None:
        raise TextError("causal_trace: this model has no tokenizer; give the subject as positions.")
    row = ids.tolist()
    text = tokenizer.decode(row)
    start = text.find(subject)
    if start < 0 or not subject:
        raise TextError(f"causal_trace: {subject!r} is not in the text {text!r}; give a part of it, or positions.")
    # a token's characters are those by which the decoded text grows
    ends = [len(tokenizer.decode(row[: i + 1])) for i in range(length)]
    starts = [0, *ends[:-1]]
    return tuple(i for i in range(length) if starts[i] < start + len(subject) and ends[i] > start)


def _by_role(trace: CausalTrace) -> Float[Tensor, "metric kind role layer"]:
    effect = trace.indirect_effect.values
    roles = token_roles(trace.subject, effect.shape[2])
    found = []
    for role in ROLES:
        members = [i for i, other in enumerate(roles) if other == role]
        found.append(effect[:, :, members].mean(2))
    return torch.stack(found, 2)
