"""`glassformer heads`: what every head looks at over a corpus, with a sentence each that held-out text could refute."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.cli.arguments import model_of
from glassformer.cli.options import LongOutput, ModelName, Opening
from glassformer.cli.output import check, deliver
from glassformer.cli.progress import progress

if TYPE_CHECKING:
    from glassformer.analysis.heads import HeadsOverCorpus
    from glassformer.models import ModelLike


def heads(
    model: ModelName,
    /,
    corpus: tuple[str, ...] = (),
    tokens: int = 1_000_000,
    length: int | None = None,
    heldout: float = 0.25,
    allowed: float = 0.03,
    top: int = 2,
    seed: int = 0,
    save_to: Path | None = None,
    *,
    opening: Opening,
    output: LongOutput,
) -> None:
    """Heads over a corpus: what each looks at, the passages it looks most sharply in, and a sentence that can be false.

    A sentence claims that a head has at least so much of its weight somewhere, in a passage: on the token before, on
    what followed earlier copies, on the last line break. It is made from some documents and tested on others; a head of
    which no sentence holds there is said to have none. A million tokens of gpt-4l take a few minutes of one core, and
    memory does not grow with the corpus.

    Examples:
        glassformer heads gpt-4l
        glassformer heads my-model --corpus notes --save-to heads.safetensors --html heads.html
        glassformer heads attn-only-2l --corpus python-stdlib --heldout 0.4 --json heads.json

    Args:
        corpus: Text that is read: files, folders, globs, python-stdlib, which it is by default.
        tokens: Tokens that are read, at most: the first of the corpus.
        length: Tokens of a passage, at most; by default as many as training prepared the model for, up to 256.
        heldout: Share of documents on which sentences are tested, and from which none is made.
        allowed: Share of held-out passages on which a sentence may be false.
        top: Strongest pairs shown of each head.
        seed: Of what is held out.
        save_to: Keep sums in this file; the same command goes on from it.
    """
    from glassformer.data import TextConfig
    from glassformer.data.text.sources import STANDARD_LIBRARY
    from glassformer.render.terminal import largest

    check(output, save_to=save_to)
    loaded = model_of(model, opening)
    # it is read twice, first to know how much there is
    texts = TextConfig(sources=corpus or (STANDARD_LIBRARY,), streaming=True)
    options: dict[str, Any] = {
        "tokens": tokens, "length": length, "heldout": heldout, "allowed": allowed, "seed": seed,
    }  # fmt: skip
    found = _found(loaded, texts, save_to, output.dry_run, options)
    asked = {"corpus": list(corpus) or None, **options}
    deliver("heads", loaded, asked, [found], output, shown=[largest(found, top)])


def _found(
    model: "ModelLike", texts: Any, save_to: Path | None, dry_run: bool, options: dict[str, Any]
) -> "HeadsOverCorpus":
    """Read the corpus, and say on the way how far it has come; interrupted, say what is kept."""
    from glassformer.analysis.heads import heads_over_corpus
    from glassformer.words import spoken

    reached = 0
    try:
        with progress("reading texts", dry_run=dry_run) as bar:

            def report(done: int, total: int) -> None:
                nonlocal reached
                reached = done
                bar(done, total)

            return heads_over_corpus(model, texts, save_to=save_to, report=report, **options)
    except KeyboardInterrupt as interrupt:
        if save_to is None or not reached:
            raise
        raise KeyboardInterrupt(spoken("kept after {n:,} batches; the same command goes on", n=reached)) from interrupt
