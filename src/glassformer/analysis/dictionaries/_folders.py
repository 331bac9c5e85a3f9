"""Dictionaries from texts, in folders: recorded, trained and saved by one call, and found again.

    FOLDER/activations/                 rows of the site over the texts
    FOLDER/training.safetensors         where training is
    FOLDER/cfg.json, sae_weights.safetensors    the dictionary, when it is trained

Each is whole or absent, and the same call goes on from what is there, bit for bit.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from glassformer.analysis.activations import record_activations
from glassformer.analysis.dictionaries._attached import model_digest
from glassformer.analysis.dictionaries._autoencoder import AutoencoderConfig, SparseAutoencoder
from glassformer.analysis.dictionaries._files import WEIGHTS, DictionaryFolder, read_folder, save_dictionary
from glassformer.analysis.dictionaries._train import DictionaryStep, train_dictionary
from glassformer.arguments import Count, Positive, checked
from glassformer.errors import AnalysisUnavailable, CheckpointError
from glassformer.files.packaged import DICTIONARY, shipped, shipped_folder
from glassformer.models import ModuleLike

ACTIVATIONS, TRAINING = "activations", "training.safetensors"


@checked
def fit_dictionary(
    model: ModuleLike,
    texts: Any,
    site: str,
    config: Callable[[int], AutoencoderConfig],
    folder: str | Path,
    *,
    steps: Count = 2000,
    batch_size: Count = 1024,
    lr: Positive = 1e-3,
    dead_after: Count = 100_000,
    drop: Sequence[Literal["begin", "sinks"]] = ("begin",),
    dtype: Literal["float32", "float16", "bfloat16"] = "float16",
    seed: int = 0,
    recorded: Callable[[int, int], None] | None = None,
    report: Callable[[DictionaryStep], None] | None = None,
) -> SparseAutoencoder:
    """A dictionary of one site, trained on what a model holds there over texts, and saved.

    Args:
        model: One of ours, or a module whose sites a spec names.
        texts: What it reads, as `record_activations` takes it.
        site: Name of one site of single positions.
        config: Kind and sizes, from the width of the site's rows: `lambda d_in: TopK(d_in, 4 * d_in, k=16)`.
        folder: Made if missing; what is finished of the same call is not done again.
        steps: Steps of Adam.
        batch_size: Rows in each.
        lr: Highest learning rate.
        dead_after: Rows after which a feature that did not fire counts as dead.
        drop: Positions left out, as `record_activations` says; texts begin with a vector unlike all others.
        dtype: Of the recorded rows.
        seed: Source of the first directions and of the order of rows.
        recorded: Called with (done, total) passes while rows are recorded.
        report: Called with a `DictionaryStep` after each step of training.

    Raises:
        UnknownSite: The model has no such site.
        ShapeMismatch: The site has no vector at each position.
        AnalysisUnavailable: The name stands for several sites, or there are no texts.
        CheckpointError: The folder holds another dictionary, its rows or its training, or is damaged.
        SaveError: It cannot be written to, or has too little room.
        TrainingDiverged: A loss or its gradient is not finite.
    """
    folder = Path(folder)
    if (folder / DICTIONARY).exists() and not (folder / TRAINING).exists():
        raise CheckpointError(
            f'"{folder}" holds a dictionary that was trained elsewhere, and this would replace it.\n    Name another.'
        )
    store = record_activations(
        model, texts, [site], folder / ACTIVATIONS, dtype=dtype, drop=drop, report=recorded
    )  # fmt: skip
    if len(store.names) != 1:
        raise AnalysisUnavailable(
            f'fit_dictionary is of one site, and "{site}" stands for {len(store.names)}: {", ".join(store.names)}.'
        )
    rows = store.site(store.names[0])
    dictionary = train_dictionary(
        rows, config(rows.width), steps=steps, batch_size=batch_size, lr=lr, dead_after=dead_after, seed=seed,
        report=report, save_to=folder / TRAINING,
    )  # fmt: skip
    save_dictionary(dictionary, folder)
    return dictionary


@checked
def dictionaries_in(folder: str | Path, model: ModuleLike | None = None) -> list[DictionaryFolder]:
    """Every dictionary in a folder and those below it, by name, without its weights.

    Args:
        folder: Where to look; or a shipped model, with which dictionaries ship, where there is no folder of its name.
        model: Only those of this model, and those that do not say of which they are.

    Raises:
        CheckpointError: One of them is damaged.
    """
    ships = not os.path.exists(folder) and str(folder) in shipped()
    root = shipped_folder(str(folder)) if ships else Path(folder)
    places = sorted(path.parent for path in root.rglob(DICTIONARY) if (path.parent / WEIGHTS).is_file())
    found = [read_folder(place) for place in places]
    if model is None:
        return found
    own = model_digest(model)
    return [one for one in found if one.facts.get("digest") in (None, own)]
