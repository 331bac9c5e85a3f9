"""The pairs of prompts that a command compares: from a file, from a template, or typed."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glassformer.cli.given import prompt_of, token_of
from glassformer.cli.reading import Reading
from glassformer.config import require
from glassformer.errors import ConfigError, DataError, nearest

TASKS = ("induction", "indirect_objects", "greater_than", "subject_verb_agreement", "repeated_arguments")


@dataclass(frozen=True)
class Prompts:
    """Clean and corrupt prompts as analyses take them.

    Args:
        clean: Ids, a `Batch` if they differ in length, or the source of an encoder-decoder.
        corrupt: The same of the corrupt prompts.
        answer: Ids of the answers, one for all or one each.
        wrong: Ids of the wrong answers.
        target: What an encoder-decoder's decoder reads.
        labels: Names of positions that all pairs share, if there are any.
        name: Of the set.
        n: How many pairs.
        added: Which special tokens the tokenizer added to their texts, in words.
        pos: Position that is asked about: the last, or the masked one of an encoder.
    """

    clean: Any
    corrupt: Any
    answer: Any
    wrong: Any
    target: Any = None
    labels: Sequence[str] | None = None
    name: str = "pair"
    n: int = 1
    added: str = ""
    pos: int = -1

    def reading(self, model: Any) -> Reading:
        """Return what a model reads of them."""
        from glassformer.analysis.prepare import prepare

        clean, corrupt = (prepare(model, side, self.target) for side in (self.clean, self.corrupt))
        if not clean.source_rows:
            return Reading({"clean": clean.token_rows, "corrupt": corrupt.token_rows}, self.added or clean.added)
        sides = {"clean": clean.source_rows, "corrupt": corrupt.source_rows, "target": clean.token_rows}
        return Reading(sides, clean.added)


def prompts_of(
    model: Any,
    *,
    pairs: Path | None,
    task: str | None,
    n: int,
    seed: int,
    fitting: bool,
    clean: str | None,
    corrupt: str | None,
    answer: str | None,
    wrong: str | None,
    target: str | None,
) -> Prompts:
    """Return what `--pairs`, `--task` or `--clean` and `--corrupt` stand for; the task `induction` if none is given.

    Raises:
        ConfigError: More than one of them is given, or half of one.
        DataError: A pair does not fit the model.
    """
    given = {"--pairs": pairs, "--task": task, "--clean": clean if clean is not None else corrupt}
    several = [flag for flag, value in given.items() if value is not None]
    require(len(several) <= 1, f"{' and '.join(several)} both say what the prompts are: give one of them.")
    if clean is not None and corrupt is not None:
        return _typed(model, clean, corrupt, answer, wrong, target)
    require(clean is None and corrupt is None, "--clean and --corrupt go together: give both prompts.")
    require(target is None, "--target belongs to --clean and --corrupt, for an encoder-decoder.")
    require(
        answer is None and wrong is None,
        "--answer and --wrong belong to --clean and --corrupt; pairs and tasks bring their own.",
    )
    _require_prompts(model)
    return _encoded(model, _pairs(model, pairs, task or "induction", n, seed), fitting)


def _pairs(model: Any, path: Path | None, task: str, n: int, seed: int) -> Any:
    from glassformer import data

    if path is not None:
        return data.read_pairs(path)
    require(task in TASKS, f'no task "{task}".{nearest(task, TASKS)} Tasks: {", ".join(TASKS)}.')
    require(n >= 1, f"--n must be at least 1, found {n}.")
    if task == "induction":
        vocabulary = model.config.vocab_size if model.tokenizer is None else model.tokenizer
        return data.induction(vocabulary, n, seed=seed)
    if model.tokenizer is None:
        raise DataError(f'the task "{task}" is text, and this model has no tokenizer; "induction" works with any.')
    return getattr(data, task)(n, seed=seed, tokenizer=model.tokenizer)


def clean_run(model: Any, path: Path, fitting: bool, read: Sequence[str]) -> tuple[Any, Any]:
    """Run a model on the clean prompts of a file of pairs; return the run and the encoded pairs."""
    from glassformer import analysis, data

    found = usable(model, data.read_pairs(path), fitting)
    encoded = found.encode(model, pad="right")
    given = encoded.clean if encoded.lengths is None else encoded.batch("clean")
    run = analysis.run(model, given, read=read)
    return dataclasses.replace(run, added=added_to(model, found)), encoded


def added_to(model: Any, pairs: Any) -> str:
    """Return in words which specials the tokenizer added to the texts of pairs: none to ids."""
    return model.tokenizer.said("opening") if any(isinstance(pair.clean, str) for pair in pairs) else ""


def one_source(text: str | None, pairs: Path | None, **alone: object) -> None:
    """Check that there is a text or a file of pairs, and with pairs none of the options that belong to a text."""
    require((text is None) != (pairs is None), "give a text, or --pairs FILE: one of them.")
    named = [f"--{name}" for name, value in alone.items() if value is not None]
    require(
        pairs is None or not named,
        f"{' '.join(named[:1])} belongs to a text; pairs bring answers and end where they end.",
    )


def _require_prompts(model: Any) -> None:
    """Raise `ConfigError` unless a model takes prompts that it goes on from."""
    from glassformer.models import Encoder

    if "encoder" in model.stacks:
        raise ConfigError(
            "this model reads a source and a target, and pairs and tasks are prompts to go on from.\n"
            "    Type the texts, and with --target what the decoder has read so far."
        )
    if isinstance(model, Encoder):
        raise ConfigError(
            "this model reads both ways, and pairs and tasks are prompts to go on from.\n"
            "    Type the texts, with the mask token where the answer belongs."
        )


def usable(model: Any, pairs: Any, fitting: bool) -> Any:
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


def _encoded(model: Any, pairs: Any, fitting: bool) -> Prompts:
    kept = usable(model, pairs, fitting)
    found = kept.encode(model, pad="right")
    same = found.lengths is None
    clean, corrupt = (found.clean, found.corrupt) if same else (found.batch("clean"), found.batch("corrupt"))
    labels = found.labels if same and len(found) > 1 else None
    return Prompts(
        clean, corrupt, found.answer, found.wrong, None, labels, pairs.name, len(found), added_to(model, kept)
    )


def _typed(model: Any, clean: str, corrupt: str, answer: str | None, wrong: str | None, target: str | None) -> Prompts:
    from glassformer.analysis.prepare import asked_position, prepare
    from glassformer.models import Encoder

    sides = [prompt_of(model, text) for text in (clean, corrupt)]
    read = None if target is None else prompt_of(model, target)
    if "encoder" in model.stacks:
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
    if not isinstance(sides[0], str) or "encoder" in model.stacks or isinstance(model, Encoder):
        return Prompts(sides[0], sides[1], right, other, read, pos=places[0])
    from glassformer.data import Pair, Pairs

    # as one pair, so that prompts of different lengths and tokens across the seam are explained
    pair = Pair(clean, corrupt, right, other)
    return _encoded(model, Pairs((pair,), "pair"), fitting=False)


def _likeliest(model: Any, side: Any, target: Any, pos: int) -> int:
    from glassformer.analysis import run

    return int(run(model, side, target).predictions()[0, pos].argmax())
