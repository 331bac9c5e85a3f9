"""A dictionary at its site: features and error as sites of the model, read and edited like any other.

    model = dictionaries.attach(gf.load("gpt-4l"), "gpt-4l/blocks.2.resid_post")
    gf.run(model, text, read=["blocks.2.resid_post.features"])
    gf.run(model, text, edit=[gf.Set("blocks.2.resid_post.features", 0.0, at=gf.At(feature=7))])

What is there is what the dictionary makes of it plus what it misses: while neither is edited the model is the same, and
an edit of a feature moves the site along its decoder row. Edits of the site itself come first.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from glassformer.analysis.dictionaries._autoencoder import SparseAutoencoder
from glassformer.analysis.dictionaries._files import load_dictionary
from glassformer.arguments import checked
from glassformer.errors import AnalysisUnavailable, CheckpointError
from glassformer.models import ModuleLike, require_module
from glassformer.provenance import Provenance
from glassformer.provenance.digest import digest
from glassformer.trace import unsplit, with_splits
from glassformer.version import __version__
from glassformer.words import sentence


@checked
def attach(model: ModuleLike, *dictionaries: SparseAutoencoder | str | Path, site: str | None = None) -> Any:
    """The model with sites for the features and the error of dictionaries; all of its parts are shared.

    Behind `blocks.2.resid_post` come `blocks.2.resid_post.features`, `batch pos feature`, and
    `blocks.2.resid_post.error`, shaped as the site.

    Args:
        model: A model of ours, or a module seen through a spec.
        dictionaries: At most one of each site; a folder, or the name of one that ships, is loaded.
        site: Full name of the site, for a dictionary that does not say.

    Raises:
        CheckpointError: A dictionary is one of another model or site, or cannot be read.
        ShapeMismatch: The site has rows of another width, or no vector at each position.
        UnknownSite: The model has no such site.
        AnalysisUnavailable: The site has a dictionary already, or nothing says which site is meant.
    """
    model = require_module(model, "attach")
    for given in dictionaries:
        dictionary = given if isinstance(given, SparseAutoencoder) else load_dictionary(given)
        name = site_of(dictionary, site)
        # before its site, which another model may lack
        check_model(dictionary, model)
        model = with_splits(model, {name: dictionary})
    return model


def site_of(dictionary: SparseAutoencoder, site: str | None = None) -> str:
    """Return which site a dictionary is of; raises `CheckpointError` if another one is asked for."""
    own = dictionary.facts.get("site")
    if own is None and site is None:
        raise AnalysisUnavailable(
            'this dictionary does not say which site it is of.\n    Say it: site="blocks.2.resid_post".'
        )
    if own is not None and site is not None and own != site:
        raise CheckpointError(f'this dictionary is of "{own}", and was asked for at "{site}".\n    Leave site out.')
    return str(own or site)


def check_model(dictionary: SparseAutoencoder, model: nn.Module) -> None:
    """Raise `CheckpointError` if a dictionary says that it is of another model."""
    known = dictionary.facts.get("digest")
    if known and known != model_digest(model):
        name = dictionary.facts.get("model", "")
        raise CheckpointError(
            f'this dictionary is of another model, or of "{name}" with other weights.\n'
            "    Train one on activations of this model."
        )


def model_digest(model: nn.Module) -> str:
    """Return the digest of a model without its dictionaries."""
    return digest(unsplit(model))


def provenance_of(facts: Mapping[str, Any], analysis: str, seed: int | None = None) -> Provenance:
    """Return what is made of a dictionary's rows is of: the model that these are said to be of."""
    known = str(facts.get("digest", ""))
    why = "" if known else sentence("nobody said which model the rows are of")
    return Provenance(
        analysis=analysis, model=str(facts.get("model") or "?"), digest=known, why=why, trained_length=None, dtype="",
        device="", input=(), seed=seed, version=__version__, torch=str(torch.__version__),
    )  # fmt: skip
