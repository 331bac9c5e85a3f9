"""`glassformer trace`: where a fact about a subject is, by corrupting the subject and restoring states."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from glassformer.cli.arguments import model_of, prompt_of, token_of
from glassformer.cli.options import Columns, Fitting, LongOutput, ModelName, Reading, Text
from glassformer.cli.output import check, deliver
from glassformer.cli.progress import progress
from glassformer.cli.prompts import added_to, one_source, pairs_in, usable
from glassformer.cli.tokens_read import TokensRead, tokens_of

if TYPE_CHECKING:
    from glassformer.models import ModelLike

Kind = Literal["state", "mlp", "attn", "state_without_mlp", "state_without_attn"]


def trace(
    model: ModelName,
    text: Text = None,
    /,
    subject: str | None = None,
    positions: tuple[int, ...] = (),
    answer: str | None = None,
    wrong: str | None = None,
    pairs: Path | None = None,
    role: str = "subject",
    fitting: Fitting = False,
    columns: Columns = (),
    target: str | None = None,
    stack: Literal["encoder", "decoder"] | None = None,
    kinds: tuple[Kind, ...] = (),
    window: int | None = None,
    samples: int = 10,
    noise: float = 3.0,
    top: int = 6,
    save_to: Path | None = None,
    seed: int = 0,
    *,
    opening: Reading,
    output: LongOutput,
) -> None:
    """Causal tracing: put noise on the subject of a text, restore one state at a time, and see what rescues the answer.

    Examples:
        printf 'class TokenBuffer:\\n    pass\\nbuffer = Token' | glassformer trace attn-only-2l - --subject TokenBuffer
        glassformer trace gpt-4l "for i in range(" --positions 4 --kinds state state_without_mlp
        glassformer trace zh-en 我吃了一个苹果 --target "i ate an" --subject 苹果
        glassformer trace gpt-4l --pairs pairs.jsonl --role first

    Args:
        subject: The words that get noise: a part of the text, where it comes first.
        positions: Positions that get noise, in place of --subject.
        answer: The next token asked about; by default what the model finds likeliest.
        wrong: The token it is compared with; by default the likeliest other one when the subject is corrupted.
        pairs: Trace the clean prompt of every pair in a .jsonl file that names the roles of its words, and average.
        role: Which role is the subject of those.
        target: What the decoder of an encoder-decoder has read.
        stack: In an encoder-decoder, where the subject lies; the encoder by default.
        kinds: What is restored: state, mlp, attn, state_without_mlp, state_without_attn. The first three by default.
        window: Layers of mlp and attn outputs restored together; by default 10, and a third of a shallower model's.
        samples: Draws of noise.
        noise: Its standard deviation, in units of the deviation of the subject's token vectors.
        top: Largest cells per table.
        save_to: Keep finished cells in this file; the same command goes on from it.
        seed: Of the noise.
    """
    from glassformer import analysis
    from glassformer.analysis.prepare import prepare
    from glassformer.config import require
    from glassformer.render.terminal import largest

    one_source(text, pairs, columns, chat=opening.chat or None)
    require(pairs is None or save_to is None, "--save-to is for one text: leave it out with --pairs.")
    check(output, save_to=save_to)
    loaded = model_of(model, opening)
    options: dict[str, Any] = {
        "kinds": kinds or None, "samples": samples, "noise": noise, "seed": seed, "window": _window(loaded, window)
    }  # fmt: skip
    if pairs is not None:
        require(subject is None and not positions, "the subject of pairs is a role of theirs: name it with --role.")
        require(answer is None and wrong is None, "pairs bring their own --answer and --wrong.")
        found, read = _averaged(loaded, pairs, columns, role, fitting, options, output.dry_run)
    else:
        assert text is not None, "one of the two was given"
        require(
            (subject is None) != (not positions), "say what gets noise: --subject WORDS or --positions, one of them."
        )
        given = prompt_of(loaded, text, opening.chat)
        given_target = _target(loaded, target)
        tokens = [None if token is None else token_of(loaded, token) for token in (answer, wrong)]
        read = tokens_of(prepare(loaded, given, given_target))
        with progress("restoring", dry_run=output.dry_run) as report:
            found = analysis.causal.causal_trace(
                loaded, given, subject if subject is not None else positions, *tokens, target=given_target, stack=stack,
                report=report, save_to=save_to, **options,
            )  # fmt: skip
    asked = {
        "text": text,
        "chat": opening.chat or None,
        "target": target,
        "subject": subject,
        "positions": list(positions) or None,
    } | options
    deliver(
        "trace", loaded, asked, [found], output, read, shown=[read.shown(), largest(found, top), read.further(found)]
    )


def _window(model: "ModelLike", given: int | None) -> int:
    """Return how many layers make a window: ten, but not most of a shallow model, where all cells would be alike."""
    depth = max(len(stack.blocks) for stack in model.stacks.values())
    return max(1, min(10, depth // 3)) if given is None else given


def _target(model: "ModelLike", target: str | None) -> Any:
    from glassformer.config import require

    encodes = "encoder" in model.stacks
    require(
        encodes or target is None, "--target is what an encoder-decoder's decoder reads; this model has no encoder."
    )
    require(
        not encodes or target is not None,
        "this model reads a source and a target: say with --target what its decoder has read so far.",
    )
    return None if target is None else prompt_of(model, target)


def _averaged(
    model: "ModelLike",
    path: Path,
    columns: tuple[str, ...],
    role: str,
    fitting: bool,
    options: dict[str, Any],
    dry_run: bool,
) -> tuple[Any, TokensRead]:
    from glassformer import analysis
    from glassformer.errors import DataError
    from glassformer.models.readable import readable

    kept = usable(model, pairs_in(path, columns), fitting)
    encoded = kept.encode(model, pad="right")
    if role not in encoded.roles:
        known = ", ".join(encoded.roles) or 'none: a .jsonl file names them as "roles"'
        raise DataError(f'"{path}" has no role "{role}". Roles: {known}.')
    lengths = encoded.last + 1
    unit = analysis.causal.subject_deviation(
        model, [encoded.clean[i, list(where)] for i, where in enumerate(encoded.roles[role]) if where]
    )
    traces = []
    with progress("tracing", dry_run=dry_run) as report:
        for i, where in enumerate(encoded.roles[role]):
            if where:
                ids = encoded.clean[i : i + 1, : int(lengths[i])]
                answers = int(encoded.answer[i]), int(encoded.wrong[i])
                traces.append(analysis.causal.causal_trace(model, ids, where, *answers, deviation=unit, **options))
            report(i + 1, len(encoded))
    rows = [readable(model, encoded.clean[i : i + 1, : int(n)])[0] for i, n in enumerate(lengths)]
    return analysis.causal.average_traces(traces), TokensRead({"reads": rows}, added_to(model, kept))
