"""`glassformer lens`: what the model would say if it stopped at any depth."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.cli.arguments import batches_of, model_of, prompt_of, token_of
from glassformer.cli.options import Columns, Fitting, ModelName, Output, Reading, Target, Text
from glassformer.cli.output import check, deliver
from glassformer.cli.progress import progress
from glassformer.cli.prompts import clean_run, one_source, pairs_in
from glassformer.cli.tokens_read import TokensRead, tokens_of

if TYPE_CHECKING:
    from glassformer.models import ModelLike

FITTED, MEASURED = 16, 4  # batches a tuned lens is fitted to, and measured on


def lens(
    model: ModelName,
    text: Text = None,
    /,
    answer: str | None = None,
    target: Target = None,
    position: int | None = None,
    tuned: Path | None = None,
    train: Path | None = None,
    steps: int = 250,
    data: tuple[str, ...] = (),
    pairs: Path | None = None,
    fitting: Fitting = False,
    columns: Columns = (),
    top: int = 3,
    seed: int = 0,
    *,
    opening: Reading,
    output: Output,
) -> None:
    """Logit lens: read the stream at every depth and position as if the model ended there; tuned lens with --tuned.

    A tuned lens changes the basis of every place by an affine map learnt for it, since early layers need not write in
    the basis of the last one. --train learns one and says on held-out text what that brings.

    Examples:
        glassformer lens gpt-4l "for i in range("
        printf 'import os\\nimport' | glassformer lens gpt-4l - --answer " sys" --html lens.html
        glassformer lens gpt-4l --train gpt-4l-lens.safetensors
        glassformer lens gpt-4l "for i in range(" --tuned gpt-4l-lens.safetensors
        glassformer lens zh-en 我吃了一个苹果
        glassformer lens attn-only-2l --pairs pairs.csv

    Args:
        answer: Follow this token through depth; by default each position's likeliest.
        position: Show the way to the token after this position; the last by default. Negative counts from the end.
        tuned: Read through the tuned lens in this file.
        train: Train a tuned lens and save it in this file; with a text, it is then used.
        steps: Gradient steps of training.
        data: Text to train on: files, folders, globs, python-stdlib. By default that of the model's recipe, else
            python-stdlib.
        pairs: In place of a text, the clean prompts of a .csv, .tsv or .jsonl file: probability and rank of their
            answers by depth, averaged.
        top: Likeliest tokens shown at each depth.
        seed: Of the order of training texts.
    """
    from glassformer import analysis
    from glassformer.analysis.places import position_in
    from glassformer.config import require
    from glassformer.render.terminal.lens import answers_by_depth, depth
    from glassformer.render.terminal.tables import tables
    from glassformer.words import spoken

    require(text is not None or train is not None or pairs is not None, "give a text, --pairs FILE or --train FILE.")
    require(text is not None or pairs is not None or not opening.chat, "--chat is how a text is read: give one.")
    if pairs is not None or columns:
        one_source(text, pairs, columns, answer=answer, target=target, position=position, chat=opening.chat or None)
    _check_translators(tuned, train, data)
    check(output, train=train)
    loaded = model_of(model, opening)
    found, printed, read = list[Any](), list[Any](), None
    translators = None if tuned is None else analysis.lens.TunedLens.load(tuned, loaded)
    # a text that the model cannot read is better refused before training than after it
    run = None if text is None else _run(loaded, prompt_of(loaded, text, opening.chat), target)
    place = None if run is None else position_in(run, position)
    followed = None if answer is None else token_of(loaded, answer)
    if train is not None:
        translators, measured = _trained(loaded, model, data, steps, seed)
        printed += [spoken("tuned lens: {path}", path=translators.save(train).absolute()), tables(measured)]
        found.append(measured)
    if run is not None and place is not None:
        shown = analysis.lens.lens_grid(run, answer=followed, k=max(top, 5), translators=translators)
        read = tokens_of(run)
        printed += [read.shown(), tables(shown), "", depth(shown, place, top, answer)]
        found.append(shown)
    if pairs is not None:
        shown, read = _over_pairs(loaded, pairs_in(pairs, columns), fitting, translators)
        printed += [read.shown(), answers_by_depth(shown)]
        found.append(shown)
    asked = {
        "text": text,
        "chat": opening.chat or None,
        "target": target,
        "answer": answer,
        "tuned": translators is not None,
    }
    asked |= {"pairs": None if pairs is None else str(pairs), "seed": None if train is None else seed}
    deliver("lens", loaded, asked, found, output, read, shown=printed)


def _check_translators(tuned: Path | None, train: Path | None, data: tuple[str, ...]) -> None:
    """Raise `ConfigError` if translators are both read and learnt, or text to learn from is given for nothing."""
    from glassformer.config import require

    require(tuned is None or train is None, "--train makes a tuned lens and --tuned reads one: give one of them.")
    require(train is not None or not data, "--data is what --train learns from: give --train FILE too.")


def _over_pairs(model: "ModelLike", pairs: Any, fitting: bool, translators: Any) -> tuple[Any, TokensRead]:
    """Return the lens at the places where many prompts are answered, and what was read."""
    from glassformer import analysis

    run, encoded = clean_run(model, pairs, fitting, [analysis.lens.lens_grid])
    answers, places = encoded.answer[:, None], encoded.last[:, None]
    return analysis.lens.lens_grid(run, answer=answers, positions=places, translators=translators), tokens_of(run)


def _run(model: "ModelLike", given: Any, target: str | None) -> Any:
    from glassformer import analysis

    given_target = None if target is None else prompt_of(model, target)
    return analysis.run(model, given, given_target, read=[analysis.lens.lens_grid])


def _trained(model: "ModelLike", name: str, data: tuple[str, ...], steps: int, seed: int) -> tuple[Any, Any]:
    """Return a tuned lens, and what it brings on text that it was not fitted to."""
    from glassformer import analysis

    fitted, held_out = batches_of(model, name, data, FITTED, MEASURED)
    with progress("training") as report:
        found = analysis.lens.fit_tuned_lens(model, fitted, steps=steps, seed=seed, report=report)
    with progress("measuring") as report:
        return found, analysis.lens.lens_divergence(model, found, held_out, report=report)
