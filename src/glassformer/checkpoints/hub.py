"""Checkpoints of the Hugging Face hub: an id becomes a folder in the hub's cache."""

import re
from pathlib import Path

from glassformer.errors import CheckpointError, UnknownModel

# what a model is read from; nothing that could be run is fetched
_WEIGHTS = ("*.safetensors",)
_WANTED = ("*.json", "tokenizer*", "vocab*", "merges.txt", "*.spm")
_UNWANTED = ("*/*", "consolidated*", "*.bin", "*.py")


def is_id(name: str) -> bool:
    """Whether a name has the form of a hub id, `owner/model`."""
    return re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", name) is not None


def download(name: str, revision: str | None = None, *, weights: bool = True) -> Path:
    """Return the folder of a hub model in the local cache, fetching what is missing.

    Downloads resume where they were interrupted; a token comes from `huggingface-cli login` or HF_TOKEN, and with
    HF_HUB_OFFLINE=1 only the cache is asked.

    Args:
        name: `owner/model`.
        revision: Branch, tag or commit; the main branch by default.
        weights: Whether the weights are wanted too, or only what describes them.

    Raises:
        UnknownModel: The hub has no such model or revision, or does not show it to you.
        CheckpointError: The hub cannot be reached and the cache does not hold it.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    wanted = [*_WANTED, *(_WEIGHTS if weights else ())]
    asked = f'"{name}"' + (f" at revision {revision}" if revision else "")
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=wanted, ignore_patterns=list(_UNWANTED)))
    except GatedRepoError as error:
        raise UnknownModel(
            f"{asked} is gated: accept its terms on its page, then log in (hf auth login) or set HF_TOKEN."
        ) from error
    except RevisionNotFoundError as error:
        raise UnknownModel(f"{asked}: the hub has the model, but not this revision.") from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise UnknownModel(
            f"no model {asked}: neither a folder here nor, as far as you may see, on the hub. Private models need a "
            "token (hf auth login, or HF_TOKEN)."
        ) from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise CheckpointError(
            f"{asked} is neither a folder nor in the hub's cache, and the hub cannot be reached "
            f"({type(error).__name__}). Download it where there is a network and give the folder."
        ) from error
