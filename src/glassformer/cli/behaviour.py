"""`glassformer behaviour`: known habits: sinks, suppression, rank, long contexts, scores, recitation, meanings."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from glassformer.cli.arguments import model_of, prompt_of
from glassformer.cli.options import ModelName, Output, Reading, Target, Text
from glassformer.cli.output import check, deliver
from glassformer.cli.progress import progress
from glassformer.cli.tokens_read import TokensRead, tokens_of

if TYPE_CHECKING:
    from glassformer.models import ModelLike

Habit = Literal[
    "sinks",
    "suppression",
    "stream-rank",
    "long-context",
    "score-geometry",
    "expert-load",
    "meaning-shift",
    "short-circuit",
]
DEFAULT: tuple[Habit, ...] = ("sinks", "suppression", "stream-rank")
WITH_TARGET = ("stream-rank", "long-context", "score-geometry", "expert-load")
NOVEL = 16  # batches of new text


def behaviour(
    model: ModelName,
    text: Text = None,
    /,
    habits: tuple[Habit, ...] | None = None,
    target: Target = None,
    other: str | None = None,
    word: str | None = None,
    last: int = 1,
    sink: int = 4,
    recent: int = 16,
    length: int | None = None,
    capacity: float | None = None,
    top: int = 8,
    *,
    opening: Reading,
    output: Output,
) -> None:
    """Known habits of a model: whether it rests on the first token, what its last layers hold down, how far it looks.

    On a text: sinks (mass and worth of the first token), suppression (what the last layers do to the right answers),
    stream-rank (whether positions become alike with depth), long-context (where heads look), score-geometry (whether
    lengths or angles of queries and keys make their scores), expert-load (where routers send positions). Of a word in
    two texts: meaning-shift. Of a run folder whose recipe planted sequences: short-circuit (which layers reciting
    takes).

    Examples:
        glassformer behaviour gpt-4l "for i in range(len(x)):"
        glassformer behaviour gpt-4l "for i in range(len(x)):" --habits sinks --html sinks.html
        head -c 600 setup.py | glassformer behaviour attn-only-2l - --habits long-context suppression --last 2
        glassformer behaviour gpt-4l "self.x = x" --other "return x" --word x --habits meaning-shift
        glassformer behaviour runs/memorisation --habits short-circuit

    Args:
        habits: What is asked; sinks, suppression and stream-rank of a text by default.
        other: In meaning-shift, the text of the other context.
        word: In meaning-shift, the word that is followed, where it comes last in each text.
        last: In suppression, how many last layers are examined.
        sink: In long-context, how many first tokens count as sink.
        recent: In long-context, how many last tokens count as recent.
        length: In score-geometry, how many positions count as trained; what is known of the model by default.
        capacity: In expert-load, how many times an even load experts hold, for the share that would be dropped.
        top: Largest entries per table.
    """
    from glassformer.config import require
    from glassformer.render.terminal import largest

    asked: tuple[Habit, ...] = tuple(dict.fromkeys(DEFAULT if habits is None else habits))
    require(bool(asked), "--habits needs at least one habit.")
    of_text: list[Habit] = [habit for habit in asked if habit != "short-circuit"]
    require(text is not None or not of_text, f"{', '.join(of_text)}: give a text; short-circuit alone reads none.")
    require(text is None or bool(of_text), "short-circuit reads what its run planted: leave the text out.")
    require(text is not None or not opening.chat, "--chat is how a text is read: give one.")
    told = {"--other": other, "--word": word}
    missing = [flag for flag, value in told.items() if (value is None) == ("meaning-shift" in asked)]
    require(not missing, f"{' and '.join(missing)}: meaning-shift takes both, and is what they are for.")
    without = [habit for habit in of_text if habit not in WITH_TARGET]
    require(target is None or not without, f"--target is not for {', '.join(without)}: name other --habits.")
    check(output)
    loaded = model_of(model, opening)
    given = {"text": text, "chat": opening.chat or None, "target": target, "other": other, "word": word}
    given |= {"habits": list(asked)}
    read, found = None, list[Any]()
    if text is not None:
        first = prompt_of(loaded, text, opening.chat)
        second = None if other is None else prompt_of(loaded, other, opening.chat)
        after = None if target is None else prompt_of(loaded, target)
        read = _read(loaded, first, second, after)
        options = {"last": last, "sink": sink, "recent": recent, "length": length, "word": word, "capacity": capacity}
        found = [_of_text(loaded, habit, first, second, after, options) for habit in of_text]
    if "short-circuit" in asked:
        found.append(_short_circuit(loaded, model))
    shown = [] if read is None else [read.shown()]
    shown += [part for result in found for part in ("", largest(result, top))]
    deliver("behaviour", loaded, given, found, output, read, shown=shown)


def _read(model: "ModelLike", first: Any, second: Any, target: Any) -> TokensRead:
    from glassformer.analysis.prepare import prepare
    from glassformer.provenance import distinct

    read = tokens_of(prepare(model, first, target))
    if second is None:
        return read
    other = tokens_of(prepare(model, second, None))
    rows, marks = ({**getattr(read, name), "other": getattr(other, name)["reads"]} for name in ("rows", "marks"))
    return TokensRead(rows, distinct(read.notes, other.notes), marks)


def _of_text(model: "ModelLike", habit: Habit, first: Any, second: Any, target: Any, options: dict[str, Any]) -> Any:
    from glassformer.analysis import attribution, behaviour as room

    if habit == "meaning-shift":
        return attribution.meaning_shift(model, first, second, options["word"])
    with progress(habit) as report:
        if habit == "sinks":
            return room.attention_sinks(model, first, report=report)
        if habit == "suppression":
            return room.suppression(model, first, last=options["last"], report=report)
        if habit == "stream-rank":
            return room.rank_of_stream(model, first, target=target, report=report)
        if habit == "score-geometry":
            return room.score_geometry(model, first, target, length=options["length"])
        if habit == "expert-load":
            return room.expert_load(model, first, target, capacity=options["capacity"])
        return room.long_context(
            model, first, target=target, sink=options["sink"], recent=options["recent"], report=report
        )


def _short_circuit(model: "ModelLike", folder: str) -> Any:
    from glassformer.analysis.behaviour import short_circuit
    from glassformer.analysis.learning import read_history
    from glassformer.config import require
    from glassformer.data import DataConfig, Planted

    data = DataConfig.from_dict(read_history(Path(folder)).config["data"])
    require(
        isinstance(data, Planted),
        f'short-circuit needs to know what was shown how often, and the run "{folder}" planted nothing.\n'
        "    The recipes memorisation and memorisation-tokens do.",
    )
    built: Any = data.build(model.tokenizer)
    with progress("short-circuit") as report:
        return short_circuit(model, built.planted, *(built.batch(i, "heldout") for i in range(NOVEL)), report=report)
