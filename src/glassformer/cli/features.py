"""`glassformer features`: train a dictionary of a site, list those of a model, and show what one is worth."""

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from glassformer.cli.arguments import batches_of, model_of
from glassformer.cli.options import ModelName, Opening, Output
from glassformer.cli.output import check, deliver, finish
from glassformer.cli.progress import progress
from glassformer.config import require
from glassformer.files import json_text
from glassformer.files.packaged import shipped_dictionaries

if TYPE_CHECKING:
    from collections.abc import Callable

    from glassformer.analysis.dictionaries import AutoencoderConfig, DictionaryStep, SparseAutoencoder
    from glassformer.models import ModelLike

Action = Literal["train", "show", "list"]
Kind = Literal["relu", "topk", "jumprelu"]
# what weighs sparsity in each kind: a count, or a weight in the loss
SPARSITY = {"relu": "l1", "topk": "k", "jumprelu": "l0"}
PER_NUMBER = 4  # features for each number of a row, by default
HELD_OUT = 8  # batches of text that a dictionary is measured on
EXAMPLES, TOKENS = 8, 5


def features(
    action: Annotated[Action, tyro.conf.Positional],
    model: ModelName,
    folder: Annotated[Path | None, tyro.conf.Positional] = None,
    /,
    site: str | None = None,
    kind: Kind = "topk",
    width: int | None = None,
    sparsity: float | None = None,
    rows: int = 512,
    steps: int = 2000,
    batch_size: int = 1024,
    lr: float = 1e-3,
    data: tuple[str, ...] = (),
    features: tuple[int, ...] = (),
    top: int = 8,
    seed: int = 0,
    *,
    opening: Opening,
    output: Output,
) -> None:
    """Dictionaries of features: train a sparse autoencoder on a site of a model, list those there are, or show one.

    train records what the model holds at the site over some text, trains on that and measures the dictionary on
    held-out text, all in one folder, which sae-lens reads too. Stop with Ctrl-C at any moment; the same command goes on
    to the same numbers. show says how sparse, faithful and alive a dictionary is, and of some features on which tokens
    they fire most and which next tokens they promote and suppress. list shows every dictionary of the model: those that
    ship with the package, and those below a folder.

    Examples:
        glassformer features train gpt-4l --site blocks.2.resid_post
        glassformer features list gpt-4l
        glassformer features show gpt-4l gpt-4l/blocks.2.resid_post --top 4
        glassformer features show gpt-4l runs/features/gpt-4l/blocks.2.resid_post --top 4 --html features.html
        glassformer features train attn-only-2l mine --site blocks.1.resid_post --data notes --kind relu --width 512
        glassformer features show attn-only-2l mine --data notes --features 3 17

    Args:
        action: train a dictionary; show one; or list those of the model.
        folder: Of the dictionary; by default runs/features/MODEL/SITE. For show also the name of one that ships,
            MODEL/SITE. For list: where to look, by default in runs/features/MODEL and among those that ship.
        site: What is taken apart, as the command sites lists it; by default the stream behind the middle layer.
        kind: Activation of the features: relu, topk or jumprelu.
        width: Features in the dictionary; by default 4 for each number of the site.
        sparsity: topk: features that fire in a row (32); relu: weight of their activations (5); jumprelu: what each
            that fires costs (1).
        rows: Rows of text whose activations are recorded.
        steps: Gradient steps.
        batch_size: Activations in each step.
        lr: Highest learning rate.
        data: Text to train on, or to show features on: files, folders, globs, python-stdlib. By default that of the
            model's recipe, else python-stdlib.
        features: With show: which; by default some that are alive, drawn by chance.
        top: With show: features that are drawn.
        seed: Of the first directions and the order of training; of the features shown.
    """
    check(output)
    require(action == "show" or not features, "--features is of show: glassformer features show MODEL FOLDER.")
    require(action != "list" or output.html is None, "list has no page; give --json FILE, or show one dictionary.")
    known = "".join(f"\n    One ships: {name}" for name in shipped_dictionaries() if name.startswith(f"{model}/"))
    require(action != "show" or folder is not None, f"say which: glassformer features show {model} FOLDER.{known}")
    loaded = model_of(model, opening)
    place = Path("runs/features") / Path(model).name
    if action == "list":
        _list(loaded, model, folder, place, output)
    elif action == "show":
        assert folder is not None, "required above"
        _show(loaded, model, folder, data, features, top, seed, output)
    else:
        site = _site(loaded, site)
        made = _config(kind, width, sparsity)
        options = {"steps": steps, "batch_size": batch_size, "lr": lr, "seed": seed}
        _train(loaded, model, site, made, folder or place / site, rows, data, options, output)


def _site(model: "ModelLike", site: str | None) -> str:
    """Return the full name of the one site that is meant."""
    table = model.sites()
    if site is None:
        stack = table[table.match("*resid_post")[-1]].stack
        streams = [name for name in table.match("*resid_post") if table[name].stack == stack]
        return streams[len(streams) // 2]
    found = table.match(site)
    shown = ", ".join(found[:4]) + (", …" if len(found) > 4 else "")
    require(len(found) == 1, f'--site is one site, and "{site}" stands for {len(found)}: {shown}.')
    return found[0]


def _config(kind: Kind, width: int | None, sparsity: float | None) -> "Callable[[int], AutoencoderConfig]":
    """Return what makes the config of a dictionary from the width of its rows."""
    from glassformer.analysis.dictionaries import JumpRelu, Relu, TopK

    require(sparsity is None or kind != "topk" or sparsity.is_integer(), "--sparsity of topk is a count of features.")
    makes: dict[str, Any] = {"relu": Relu, "topk": TopK, "jumprelu": JumpRelu}
    said: dict[str, Any] = {} if sparsity is None else {SPARSITY[kind]: int(sparsity) if kind == "topk" else sparsity}
    return lambda d_in: makes[kind](d_in, PER_NUMBER * d_in if width is None else width, **said)


def _train(
    loaded: "ModelLike", model: str, site: str, config: "Callable[[int], AutoencoderConfig]", folder: Path, rows: int,
    data: tuple[str, ...], options: dict[str, Any], output: Output,
) -> None:  # fmt: skip
    """Record, train, measure on held-out text, and write what was measured beside the dictionary."""
    from glassformer.analysis.dictionaries import save_dictionary
    from glassformer.render.terminal.tables import tables
    from glassformer.words import spoken

    fitted, held_out = _texts(loaded, model, data, rows)
    dictionary = _fitted(loaded, fitted, site, config, folder, options)
    quality, splice, why = _measured(loaded, dictionary, held_out)
    measured = {"l0": quality.l0, "fvu": quality.fvu, "dead": quality.dead, "rows": quality.rows}
    measured |= {} if splice is None or splice.recovered != splice.recovered else {"recovered": splice.recovered}
    dictionary.facts = {
        **dictionary.facts,
        "data": list(data) or ["recipe"],
        "batches": len(fitted),
        "held_out": measured,
    }
    save_dictionary(dictionary, folder)
    found = [quality] if splice is None else [quality, splice]
    shown = [part for result in found for part in (tables(result), "")]
    shown += [spoken("dictionary: {path}", path=folder.absolute())] + ([why] if why else [])
    shown.append(spoken("Its features: glassformer features show {model} {folder}", model=model, folder=folder))
    asked = {
        "action": "train",
        "site": site,
        "folder": str(folder),
        "rows": rows,
        "data": list(data) or None,
        **options,
    }
    deliver("features", loaded, asked | {"config": dictionary.config.to_dict()}, found, output, shown=shown)


def _fitted(
    loaded: "ModelLike", texts: list[Any], site: str, config: "Callable[[int], AutoencoderConfig]", folder: Path,
    options: dict[str, Any],
) -> "SparseAutoencoder":  # fmt: skip
    """Train, and say on the way how far it has come; interrupted, say what is kept."""
    from glassformer.analysis.activations import activation_size
    from glassformer.analysis.dictionaries import fit_dictionary
    from glassformer.cli.console import Console
    from glassformer.words import spoken

    size = activation_size(loaded, texts, site, dtype="float16", drop=("begin",))
    told = spoken("recording {rows:,} rows, {size:,.1f} MiB, in {folder}", rows=size.rows + size.source_rows,
                  size=size.bytes / 2**20, folder=folder)  # fmt: skip
    Console(stderr=True).print(told, highlight=False, markup=False, soft_wrap=True)
    at = 0
    try:
        with ExitStack() as bars:
            bar = bars.enter_context(progress("recording"))

            def report(step: "DictionaryStep") -> None:
                nonlocal at, bar
                if not at:
                    # one bar at a time, and the time of each by itself
                    bars.close()
                    bar = bars.enter_context(progress("training"))
                at = step.step
                bar(step.step, step.steps, f"L0 {step.l0:.1f}, FVU {step.fvu:.3f}, dead {step.dead:.0%}")

            def recorded(done: int, total: int) -> None:
                bar(done, total)

            return fit_dictionary(loaded, texts, site, config, folder, recorded=recorded, report=report, **options)
    except KeyboardInterrupt as interrupt:
        kept = spoken("kept at step {n}; the same command goes on", n=at)
        raise KeyboardInterrupt(kept if at else spoken("the same command goes on recording")) from interrupt


def _texts(loaded: "ModelLike", model: str, data: tuple[str, ...], rows: int) -> tuple[list[Any], list[Any]]:
    """Return batches of about so many rows in all to train on, and others to measure on."""
    (one, *_), _ = batches_of(loaded, model, data, 1, 1)
    batch = len(one.tokens)
    return batches_of(loaded, model, data, max(1, -(-rows // batch)), HELD_OUT)


def _measured(loaded: "ModelLike", dictionary: "SparseAutoencoder", texts: list[Any]) -> tuple[Any, Any, str]:
    """Return what a dictionary is worth on texts, what the model loses by it, and why not if that is not defined."""
    from glassformer.analysis.activations import record_activations
    from glassformer.analysis.dictionaries import dictionary_quality, splice_loss
    from glassformer.errors import AnalysisUnavailable

    site = dictionary.facts["site"]
    with TemporaryDirectory() as folder, progress("measuring") as report:
        store = record_activations(loaded, texts, [site], folder, drop=("begin",))
        quality = dictionary_quality(dictionary, store.site(site))
        try:
            return quality, splice_loss(loaded, dictionary, texts, report=report), ""
        except AnalysisUnavailable as error:
            return quality, None, str(error)


def _show(
    loaded: "ModelLike", model: str, folder: Path, data: tuple[str, ...], chosen: tuple[int, ...], top: int, seed: int,
    output: Output,
) -> None:  # fmt: skip
    """Show what a dictionary is worth, and some of its features."""
    from glassformer.analysis import dictionaries
    from glassformer.errors import AnalysisUnavailable
    from glassformer.render.terminal.dictionaries import feature_table
    from glassformer.render.terminal.tables import tables

    dictionary = dictionaries.load_dictionary(folder)
    # a dictionary of another model is refused before anything is measured
    dictionaries.attach(loaded, dictionary)
    # behind as many as it was trained on: of the same text it is shown what it has not seen
    trained = dictionary.facts.get("batches")
    _, texts = batches_of(loaded, model, data, trained if isinstance(trained, int) else 1, HELD_OUT)
    quality, splice, why = _measured(loaded, dictionary, texts)
    which = list(chosen) or _drawn(quality, top, seed)
    with progress("looking for examples") as report:
        examples = dictionaries.feature_examples(loaded, dictionary, texts, which, k=EXAMPLES, report=report)
    found = [quality, *([] if splice is None else [splice]), examples]
    try:
        tokens = dictionaries.feature_tokens(loaded, dictionary, which, k=TOKENS)
        found.append(tokens)
    except AnalysisUnavailable as error:
        tokens, why = None, "\n".join(filter(None, (why, str(error))))
    shown = [part for result in found[: 1 if splice is None else 2] for part in (tables(result), "")]
    shown += [feature_table(examples, tokens)] + ([why] if why else [])
    asked = {"action": "show", "folder": str(folder), "site": dictionary.facts["site"], "data": list(data) or None}
    asked |= {"config": dictionary.config.to_dict(), "features": which, "seed": None if chosen else seed}
    deliver("features", loaded, asked, found, output, shown=shown)


def _drawn(quality: Any, count: int, seed: int) -> list[int]:
    """Return some features that fire, in order; the first where none does."""
    import torch

    alive = (quality.density.values > 0).nonzero()[:, 0]
    order = torch.randperm(len(alive), generator=torch.Generator().manual_seed(seed))[:count]
    return sorted(alive[order].tolist()) or [0]


def _list(loaded: "ModelLike", model: str, folder: Path | None, place: Path, output: Output) -> None:
    """Show every dictionary of a model below a folder, with what was measured when it was trained.

    Args:
        loaded: The model.
        model: Its name.
        folder: The one that was asked for; by default those that ship are looked through too.
        place: Where dictionaries of the model are put by default.
        output: What is written.
    """
    from glassformer.analysis.dictionaries import dictionaries_in
    from glassformer.files.packaged import shipped, shipped_folder
    from glassformer.render.terminal.dictionaries import folder_table
    from glassformer.words import spoken

    root = folder or place
    roots = [shipped_folder(model), root] if folder is None and model in shipped() else [root]
    everyone, found = ([one for at in roots for one in dictionaries_in(at, of)] for of in (None, loaded))
    told = [
        {"name": one.name, "folder": str(one.folder), "site": one.facts.get("site"), "config": one.config.to_dict()}
        | dict(one.facts)
        for one in found
    ]
    shown = [folder_table(found, root)] if found else [spoken("no dictionary of this model in {folder}", folder=root)]
    if others := len(everyone) - len(found):
        shown.append(spoken("{n} of other models, or of this one with other weights", n=others))
    finish(shown, JSON=(output.json, lambda: json_text(told, indent=1, ascii_only=False) + "\n"))
