"""From a folder of a trained dictionary to a shipped one: `python -m glassformer.zoo MODEL/SITE FOLDER`.

Encoder and decoder are stored in half precision. Every figure on the card is measured on what is stored, on held-out
text of the model's recipe, at positions whose next token lies in no run of 13 that the text trained on has, too.
Without FOLDER what ships is measured again.
"""

import dataclasses
import math
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer import checkpoints
from glassformer.analysis import run
from glassformer.analysis.activations import ActivationStore
from glassformer.analysis.dictionaries import (
    DictionaryQuality,
    SparseAutoencoder,
    SpliceLoss,
    dictionary_quality,
    load_dictionary,
    save_dictionary,
    splice_loss,
)
from glassformer.config import require
from glassformer.data import Batch, TextConfig, TextData
from glassformer.data.tokenizer import Tokenizer
from glassformer.files.packaged import shipped_dictionary
from glassformer.models import ModelLike
from glassformer.numerics.decompositions import eigh
from glassformer.training.recipes import recipe
from glassformer.zoo.dictionary_card import (
    DictionaryCard,
    dictionary_card,
    write_dictionary_card,
)
from glassformer.zoo.held_out import HeldOut

N_ROWS = 256
# where a folder of `fit_dictionary` has its rows
ACTIVATIONS = "activations"
ABOUT = {
    "gpt-4l/blocks.2.resid_post": "2,048 features of the stream behind the third layer of gpt-4l, 32 at each position.",
}
# what of a training is said on a card
TRAINING = ("steps", "batch_size", "rows", "texts", "lr", "dead_after", "seed")
SPARSITY = {"relu": "l1", "topk": "k", "jumprelu": "l0"}


def build(name: str, finished: Path, folder: Path | None = None) -> DictionaryCard:
    """Write the shipped form of a finished dictionary and return its card.

    Args:
        name: `MODEL/SITE`, of a shipped model.
        finished: Folder that `glassformer features train` or `fit_dictionary` wrote, with its activations, of text of
            the model's recipe.
        folder: Where it goes; beside the model by default.

    Raises:
        ConfigError: It is of another site or other text, or does not say of which model.
        CheckpointError: It is of another model, or cannot be read.
    """
    folder = folder or shipped_dictionary(name)
    model, site = _of(name)
    dictionary = load_dictionary(finished)
    facts = dictionary.facts
    require(facts.get("site") == site, f'"{finished}" holds a dictionary of {facts.get("site")}, and not of {site}.')
    require(
        facts.get("data", ["recipe"]) == ["recipe"],
        f'"{finished}" holds a dictionary of other text than that of the recipe of {name.partition("/")[0]}.',
    )
    require("digest" in facts, f'"{finished}" does not say which model its dictionary is of.')
    rows = held_out_rows(model, name)
    before = measured(model, dictionary, rows)
    dictionary.facts = {**facts, "model": name.partition("/")[0], "texts": _texts(finished, name)}
    save_dictionary(dictionary, folder, dtype=torch.float16)
    found = measured(model, load_dictionary(folder), rows)
    # what a list of dictionaries shows is of what is stored
    dictionary.facts = {**dictionary.facts, "held_out": found.told()}
    save_dictionary(dictionary, folder, dtype=torch.float16)
    card = _card(name, dictionary, found, before)
    write_dictionary_card(card, folder)
    return card


def _card(name: str, dictionary: SparseAutoencoder, found: "Measured", before: "Measured") -> DictionaryCard:
    return DictionaryCard(
        name=name,
        about=ABOUT.get(name, f"Features of {name.partition('/')[2]} of {name.partition('/')[0]}."),
        recipe=_command(name, dictionary),
        config=dictionary.config.to_dict(),
        training={key: dictionary.facts[key] for key in TRAINING},
        dtype="float16",
        digest=str(dictionary.facts["digest"]),
        figures=found.figures(),
        as_trained=before.figures(),
        density=found.counts(),
        notes=notes(found, name),
        versions={"torch": str(torch.__version__).split("+")[0], "python": platform.python_version()},
    )


def refresh(name: str) -> DictionaryCard:
    """Measure a shipped dictionary again, as it is stored, and write its card; return the card."""
    model, _ = _of(name)
    found = measured(model, load_dictionary(name), held_out_rows(model, name))
    told = dataclasses.replace(
        dictionary_card(name), figures=found.figures(), density=found.counts(), notes=notes(found, name)
    )
    write_dictionary_card(told, shipped_dictionary(name))
    return told


@dataclasses.dataclass(frozen=True)
class Measured:
    """What a dictionary is worth on held-out text.

    Args:
        quality: Of its rows.
        splices: What the model loses by it, beside the site at zero and at its mean.
        left_by_axes: Share of the variance that as many principal axes of these rows leave as features fire.
        left_behind_bos: Share of the variance of the same tokens that is left where their windows stand behind `<bos>`.
        held_out: What was said of the text.
    """

    quality: DictionaryQuality
    splices: Mapping[str, SpliceLoss]
    left_by_axes: float
    left_behind_bos: float
    held_out: str

    def figures(self) -> dict[str, float]:
        """The numbers of a card, by name."""
        quality, (zero, mean) = self.quality, (self.splices[how] for how in ("zero", "mean"))
        (whole, spliced, at_mean), at_zero = mean.loss.values.tolist(), float(zero.loss.values[-1])
        figures = {
            "l0": quality.l0, "fvu": quality.fvu, "fvu_of_principal_axes": self.left_by_axes,
            "fvu_behind_bos": self.left_behind_bos, "dead": quality.dead, "cosine": quality.cosine,
            "bias": quality.bias, "loss": whole, "loss_spliced": spliced, "loss_at_zero": at_zero,
            "loss_at_mean": at_mean, "recovered_of_zero": zero.recovered, "recovered_of_mean": mean.recovered,
            "kl_spliced": float(mean.kl.values[1]),
        }  # fmt: skip
        # what is recovered is not known where an ablation costs no more than chance
        return {name: round(value, 5) for name, value in figures.items() if not math.isnan(value)}

    def told(self) -> dict[str, float | int]:
        """What a dictionary says of itself in its folder, as `glassformer features train` writes it."""
        figures, names = self.figures(), {"l0": "l0", "fvu": "fvu", "dead": "dead", "recovered_of_mean": "recovered"}
        known = {named: figures[name] for name, named in names.items() if name in figures}
        return {**known, "rows": self.quality.rows}

    def counts(self) -> dict[str, int]:
        """How many features fire in which share of positions."""
        counts = self.quality.by_density
        return {str(label): int(n) for label, n in zip(counts.labels("density"), counts.values.tolist(), strict=True)}


@dataclasses.dataclass(frozen=True)
class HeldOutRows:
    """Held-out windows of a model's text, what it holds at a site there, and what is said of them.

    Args:
        batches: Windows; new tokens count.
        values: Rows of the site at the positions before them.
        behind_bos: Rows of the site at the same tokens, where each window stands behind `<bos>`.
        said: What training text has of it.
    """

    batches: Sequence[Batch]
    values: Float[Tensor, "row d_in"]
    behind_bos: Float[Tensor, "row_behind_bos d_in"]
    said: str


def held_out_rows(model: ModelLike, name: str) -> HeldOutRows:
    """Return the rows that a dictionary of a shipped model is measured on."""
    site, config = name.partition("/")[2], _text(name)
    text = config.build(model.tokenizer)
    assert isinstance(text, TextData), "held-out text is kept in memory"
    held_out = HeldOut.beside(text.documents("heldout"), list(text.documents("train")))
    batches = held_out.rows(config.length, N_ROWS, config.batch_size)
    values = [run(model, batch.tokens, read=[site])[site].values[batch.weight] for batch in batches]
    behind = [_behind_bos(model, site, batch) for batch in batches]
    return HeldOutRows(batches, torch.cat(values), torch.cat(behind), held_out.said())


def _behind_bos(model: ModelLike, site: str, batch: Batch) -> Float[Tensor, "row d_in"]:
    """Return what a site holds at tokens of windows behind `<bos>`, where the last of each no longer fits."""
    assert isinstance(model.tokenizer, Tokenizer) and model.tokenizer.bos is not None, "shipped models have `<bos>`"
    start = torch.full_like(batch.tokens[:, :1], model.tokenizer.bos)
    found = run(model, torch.cat((start, batch.tokens[:, :-1]), 1), read=[site])[site].values
    return found[:, 1:][batch.weight[:, :-1]]


def measured(model: ModelLike, dictionary: SparseAutoencoder, rows: HeldOutRows) -> Measured:
    """Measure a dictionary on held-out rows."""
    how: Sequence[Literal["zero", "mean"]] = ("zero", "mean")
    quality = dictionary_quality(dictionary, rows.values)
    # rising, of which the last are those of the axes that are kept
    variances = eigh(rows.values.double().T.cov())[0]
    left = variances[: len(variances) - round(quality.l0)].sum() / variances.sum()
    splices = {one: splice_loss(model, dictionary, rows.batches, ablation=one) for one in how}
    behind_bos = dictionary_quality(dictionary, rows.behind_bos).fvu
    return Measured(quality, splices, float(left), behind_bos, rows.said)


def notes(found: Measured, name: str) -> tuple[str, ...]:
    """Return what a card's figures mean and what they do not show, in sentences."""
    of, _, site = name.partition("/")
    splice = found.splices["mean"]
    return (
        found.held_out,
        f"all of {found.quality.rows:,} positions of {N_ROWS} windows of held-out text, each within one file, whose "
        "next token is in no such run",
        "l0: features that fire at a position; fvu: squared error over the variance; fvu_of_principal_axes: of as many "
        "principal axes of these rows, the same at every position; bias: below 1 reconstructions are too short",
        "fvu_behind_bos: of the same tokens where each window stands behind <bos>, as a text that is given is read; "
        "the dictionary was trained on windows that stand anywhere in files, few of which have it",
        f"loss in nats per token: of {of} as it is, with the reconstruction in place of {site}, with zero, and with "
        f"the mean; recovered: share of what zero, or the mean, costs that the reconstruction keeps; kl_spliced in "
        f"nats. Standard error of what the reconstruction adds: {float(splice.spread.values[1]):.4f}",
        said_of_density(found.quality),
        "not shown: that a feature is about one thing, which nobody has rated; that the model computes with it, which "
        "`feature_effects` asks of single ones; that another seed finds the same; and anything about other text. A "
        "feature that fires at none of these positions may fire elsewhere",
    )


def said_of_density(quality: DictionaryQuality) -> str:
    """Return in words how many features fire how often."""
    never, *counts = map(int, quality.by_density.values.tolist())
    bounds = ["fewer than 1 in 10,000", "1 in 10,000 to 1 in 1,000", "1 in 1,000 to 1 in 100", "1 in 100 to 1 in 10"]
    told = [f"{n:,} at {where}" for n, where in zip(counts, [*bounds, "1 in 10 and more"], strict=True)]
    return (
        f"density: of {sum(counts) + never:,} features {never:,} fire at none of the {quality.rows:,} positions, "
        + ", ".join(told)
    )


def _of(name: str) -> tuple[Any, str]:
    """Return the model that a dictionary is of, and the site; raises `UnknownModel` if none ships under that name."""
    of, _, site = name.partition("/")
    return checkpoints.load(checkpoints.folder_of(of)), site


def _text(name: str) -> TextConfig:
    """Return the text of the model's recipe, which `glassformer features train` reads."""
    known = recipe(name.partition("/")[0])
    text = known.evaluate or known.data
    assert isinstance(text, TextConfig), "a language model is evaluated on text"
    return text


def _texts(finished: Path, name: str) -> int:
    """Return how many rows of text a dictionary was trained on: the recorded passes are its recipe's batches."""
    store = ActivationStore.open(finished / ACTIVATIONS)
    return store.manifest.plan.passes * _text(name).batch_size


def _command(name: str, dictionary: SparseAutoencoder) -> str:
    """Return the command that trains a dictionary anew."""
    of, _, site = name.partition("/")
    config, facts = dictionary.config, dictionary.facts
    given = {
        "site": site, "kind": config.kind, "width": config.n_features,
        "sparsity": f"{getattr(config, SPARSITY[config.kind]):g}", "rows": facts["texts"], "steps": facts["steps"],
        "batch-size": facts["batch_size"], "lr": facts["lr"], "seed": facts["seed"],
    }  # fmt: skip
    return f"glassformer features train {of} " + " ".join(f"--{option} {value}" for option, value in given.items())
