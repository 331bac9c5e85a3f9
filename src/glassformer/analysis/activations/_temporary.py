"""Activations for as long as they are asked about: a store that was made, or one in a folder that goes again."""

import contextlib
import tempfile
from collections.abc import Iterator
from typing import Any

from glassformer.analysis.activations._record import record_activations
from glassformer.analysis.activations._store import ActivationStore
from glassformer.arguments import Several
from glassformer.models import ModuleLike


@contextlib.contextmanager
def stored(
    model: "ModuleLike | ActivationStore", texts: Any, sites: str | Several[str]
) -> "Iterator[tuple[ActivationStore, tuple[str, ...]]]":
    """Give the activations of texts at some sites, and the names of these.

    Args:
        model: What reads the texts, or in its place a store of what it made of them.
        texts: As for `record_activations`; or a store of what the model made of some.
        sites: Names, globs or short names.

    Raises:
        CheckpointError: The store is of another model.
        UnknownSite: A name that no site has, or of which the store holds none.
    """
    if isinstance(model, ActivationStore):
        yield model, model.named(sites)
        return
    if isinstance(texts, ActivationStore):
        texts.check(model)
        yield texts, texts.named(sites)
        return
    with tempfile.TemporaryDirectory(prefix="glassformer-") as folder:
        store = record_activations(model, texts, [sites] if isinstance(sites, str) else list(sites), folder)
        yield store, store.names
