"""The pairs of prompts that a command compares, from a file, a template, or typed, and what is measured on them."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.cli.arguments import prompt_of, token_of
from glassformer.cli.options import Measure, Output, PromptOptions
from glassformer.cli.output import deliver
from glassformer.cli.tokens_read import TokensRead
from glassformer.config import require
from glassformer.errors import ConfigError, DataError, nearest
from glassformer.words import sentence

if TYPE_CHECKING:
    from glassformer.models import ModelLike
    from glassformer.provenance import Note

TASKS = (
    "induction", "indirect_objects", "greater_than", "subject_verb_agreement", "repeated_arguments",
    "colours_of_things", "word_senses",
)  # fmt: skip


@dataclass(frozen=True)
class ComparedPrompts:
    """Pairs of prompts as a command shows and compares them.

    Args:
        pairs: The prompts and their answers, a `Contrast`.
        name: Of the set.
        notes: What must be known of their texts: special tokens that the tokenizer added.
    """

    pairs: Any
    name: str = "pair"
    notes: "tuple[Note, ...]" = ()

    def read(self, model: "ModelLike") -> TokensRead:
        """Return what a model reads of them."""
        from glassformer.analysis.prepare import prepare
        from glassformer.data.pairs.contrast import SIDES
        from glassformer.provenance import distinct

        clean, corrupt = (prepare(model, self.pairs.side(side), self.pairs.target) for side in SIDES)
        if not clean.source_rows:
            notes = distinct(self.notes, clean.notes, corrupt.notes)
            marks = {"clean": clean.marks, "corrupt": corrupt.marks}
            rows: dict[str, Any] = {sentence("clean"): clean.token_rows, sentence("corrupt"): corrupt.token_rows}
            return TokensRead(rows, notes, marks)
        sides: dict[str, Any] = {sentence("clean"): clean.source_rows, sentence("corrupt"): corrupt.source_rows}
        sides[sentence("target")] = clean.token_rows
        marks = {"clean": clean.source_marks, "corrupt": corrupt.source_marks, "target": clean.marks}
        return TokensRead(sides, distinct(self.notes, clean.notes, corrupt.notes), marks)

    def metric(self, model: "ModelLike", name: Measure) -> Any:
        """Return the measure of that name, of these answers where they are asked for."""
        from glassformer import analysis
        from glassformer.analysis import sweep

        asked = self.pairs

        def clean() -> Any:
            return analysis.run(model, asked.side("clean"), asked.target)

        return sweep.metric_named(name, asked.answer, asked.wrong, asked.pos, clean)


def prompts_of(model: "ModelLike", options: PromptOptions) -> ComparedPrompts:
    """Return what `--pairs`, `--task` or `--clean` and `--corrupt` stand for; the task `induction` if none is given.

    Raises:
        ConfigError: More than one of them is given, or half of one.
        DataError: A pair does not fit the model.
    """
    clean, corrupt, answer, wrong = options.clean, options.corrupt, options.answer, options.wrong
    given = {"--pairs": options.pairs, "--task": options.task, "--clean": clean if clean is not None else corrupt}
    several = [flag for flag, value in given.items() if value is not None]
    require(len(several) <= 1, f"{' and '.join(several)} both say what the prompts are: give one of them.")
    if clean is not None and corrupt is not None:
        return _typed(model, clean, corrupt, answer, wrong, options.target)
    require(clean is None and corrupt is None, "--clean and --corrupt go together: give both prompts.")
    require(options.pairs is not None or not options.columns, "--columns belongs to --pairs.")
    require(options.target is None, "--target belongs to --clean and --corrupt, for an encoder-decoder.")
    require(
        answer is None and wrong is None,
        "--answer and --wrong belong to --clean and --corrupt; pairs and tasks bring their own.",
    )
    _require_prompts(model)
    return _encoded(model, _pairs(model, options), options.fitting)


def present(
    command: str,
    model: "ModelLike",
    prompts: ComparedPrompts,
    results: Sequence[Any],
    *,
    given: dict[str, Any],
    output: Output,
    top: int,
    aside: Sequence[Any] = (),
) -> None:
    """Print what was found on pairs of prompts, and write it where it was asked for.

    Args:
        command: Which one it was.
        model: What it was about.
        prompts: What was compared.
        results: What was found.
        given: What was asked besides the prompts, as JSON data.
        output: Where documents go.
        top: Largest entries per table.
        aside: Those of the results that are written and not printed.
    """
    from rich.text import Text

    from glassformer.render.terminal import largest
    from glassformer.render.terminal.tables import QUIET, STRONG
    from glassformer.words import spoken

    read, n = prompts.read(model), len(prompts.pairs)
    about = spoken("{n} pair of prompts: {name}" if n == 1 else "{n} pairs of prompts: {name}", n=n, name=prompts.name)
    first = [] if n == 1 else [Text(spoken("the first of them:"), style=QUIET)]
    shown = [Text.assemble((model.name, STRONG), f"  {about}"), *first, read.shown()]
    for result in results:
        if not any(result is other for other in aside):
            shown += ["", largest(result, top)]
    deliver(command, model, {"prompts": prompts.name, "n": n} | given, results, output, read, shown=shown)


def _pairs(model: "ModelLike", options: PromptOptions) -> Any:
    from glassformer import data

    if options.pairs is not None:
        return pairs_in(options.pairs, options.columns)
    task, n, seed = options.task or "induction", options.n, options.seed
    require(task in TASKS, f'no task "{task}".{nearest(task, TASKS)} Tasks: {", ".join(TASKS)}.')
    model.require_one_vocabulary(f'the task "{task}"')
    if task == "induction":
        vocabulary = model.config.vocab_size if model.tokenizer is None else model.tokenizer
        return data.induction(vocabulary, n, seed=seed)
    if model.tokenizer is None:
        raise DataError(f'the task "{task}" is text, and this model has no tokenizer; "induction" works with any.')
    return getattr(data, task)(n, seed=seed, tokenizer=model.tokenizer)


def pairs_in(path: Path, columns: Sequence[str]) -> Any:
    """Return the pairs in a file, whose fields may be called otherwise there: `clean=prompt`."""
    from glassformer import data

    named = [given.partition("=") for given in columns]
    for given, (_, sep, _) in zip(columns, named):
        require(bool(sep), f'--columns takes FIELD=NAME, such as clean=prompt; found "{given}".')
    return data.read_pairs(path, columns={field: name for field, _, name in named})


def clean_run(model: "ModelLike", pairs: Any, fitting: bool, read: Sequence[Any]) -> tuple[Any, Any]:
    """Run a model on the clean prompts of pairs, reading for some analyses; return run and encoded pairs."""
    import torch

    from glassformer import analysis
    from glassformer.analysis.guard import task_notes
    from glassformer.provenance import distinct

    found = usable(model, pairs, fitting)
    encoded = found.encode(model, pad="right")
    run = analysis.run(model, encoded.side("clean"), read=read)
    right, wrong = (
        run.predictions().cpu()[torch.arange(len(encoded)), encoded.last.cpu(), ids.cpu()]
        for ids in (encoded.answer, encoded.wrong)
    )
    notes = distinct(task_notes(right - wrong), added_to(model, found), run.notes)
    inputs = dataclasses.replace(run.inputs, notes=notes)
    return dataclasses.replace(run, inputs=inputs), encoded


def added_to(model: "ModelLike", pairs: Any) -> "tuple[Note, ...]":
    """Return which specials the tokenizer added to the texts of pairs, or read as letters: no note on ids."""
    from glassformer.provenance import Note

    texts = [text for pair in pairs for text in (pair.clean, pair.corrupt) if isinstance(text, str)]
    if not texts:
        return ()
    tokenizer = model.require_tokenizer()
    said = tokenizer.said("opening")
    return (*((Note(said),) if said else ()), *tokenizer.notes_on_names(texts))


def one_source(text: str | None, pairs: Path | None, columns: Sequence[str], **alone: object) -> None:
    """Check that there is a text or a file of pairs, and with each none of the options that belong to the other."""
    require((text is None) != (pairs is None), "give a text, or --pairs FILE: one of them.")
    require(pairs is not None or not columns, "--columns belongs to --pairs.")
    named = [f"--{name}" for name, value in alone.items() if value is not None]
    require(
        pairs is None or not named,
        f"{' '.join(named[:1])} belongs to a text; pairs bring answers and end where they end.",
    )


def _require_prompts(model: "ModelLike") -> None:
    """Raise `ConfigError` unless a model takes prompts that it goes on from."""
    if model.reads_pairs:
        raise ConfigError(
            "this model reads a source and a target, and pairs and tasks are prompts to go on from.\n"
            "    Type the texts, and with --target what the decoder has read so far."
        )
    if not model.predicts_next:
        raise ConfigError(
            "this model reads both ways, and pairs and tasks are prompts to go on from.\n"
            "    Type the texts, with the mask token where the answer belongs."
        )


def usable(model: "ModelLike", pairs: Any, fitting: bool) -> Any:
    """Return the pairs that a model can read: all of them, or with `fitting` those that fit.

    Raises:
        ConfigError: The model is an encoder or an encoder-decoder, which pairs are not for.
        DataError: A pair does not fit, or none does.
    """
    _require_prompts(model)
    misfits = pairs.misfits(model)
    if misfits and len(pairs) == 1:
        raise DataError(f"these prompts do not fit: {misfits[0].why}")
    if misfits and not fitting:
        first = misfits[0]
        raise DataError(
            f"{len(misfits)} of {len(pairs)} pairs do not fit this model; pair {first.pair}: {first.why}\n"
            "    --fitting leaves such pairs out."
        )
    kept = pairs.fitting(model)
    if not len(kept):
        raise DataError(f"none of {len(pairs)} pairs fits this model; pair 0: {misfits[0].why}")
    return kept


def _encoded(model: "ModelLike", pairs: Any, fitting: bool) -> ComparedPrompts:
    from glassformer.analysis.contrasts import contrast

    kept = usable(model, pairs, fitting)
    return ComparedPrompts(contrast(model, kept, "prompts"), pairs.name, added_to(model, kept))


def _typed(
    model: "ModelLike", clean: str, corrupt: str, answer: str | None, wrong: str | None, target: str | None
) -> ComparedPrompts:
    from glassformer.analysis.prepare import asked_position, prepare
    from glassformer.data import Contrast, Pair, Pairs

    sides = [prompt_of(model, text) for text in (clean, corrupt)]
    read = None if target is None else prompt_of(model, target)
    if model.reads_pairs:
        require(
            read is not None,
            "this model reads a source and a target: say with --target what its decoder has read so far.",
        )
    else:
        require(read is None, "--target is what an encoder-decoder's decoder reads; this model has no encoder.")
    places = [asked_position(model, prepare(model, side, read).ids[0]) for side in sides]  # type: ignore[index]
    require(
        places[0] == places[1], f"clean and corrupt are masked at different positions, {places[0]} and {places[1]}."
    )
    right, other = (
        _likeliest(model, side, read, places[0]) if token is None else token_of(model, token)
        for side, token in zip(sides, (answer, wrong))
    )
    if right == other:
        raise DataError(
            f"answer and wrong answer are one token (id {right}). Without --answer and --wrong they are the likeliest "
            "next tokens of the two prompts: name them."
        )
    if not isinstance(sides[0], str) or model.reads_pairs or not model.generates:
        return ComparedPrompts(Contrast(sides[0], sides[1], right, other, read, pos=places[0]))

    # as one pair, so that prompts of different lengths and tokens across the seam are explained
    pair = Pair(clean, corrupt, right, other)
    return _encoded(model, Pairs((pair,), "pair"), fitting=False)


def _likeliest(model: "ModelLike", side: Any, target: Any, pos: int) -> int:
    from glassformer.analysis import run

    return int(run(model, side, target).predictions()[0, pos].argmax())
