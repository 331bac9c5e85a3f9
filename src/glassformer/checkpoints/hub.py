"""Checkpoints of the Hugging Face hub: an id becomes a folder in the hub's cache."""

import os
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

    Files that came whole are not fetched again; a token comes from `huggingface-cli login` or HF_TOKEN, and with
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
        raise UnknownModel(
            f"{asked}: the hub has the model, but not this revision. Give a branch, a tag or a commit of it."
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise UnknownModel(
            f"no model {asked}: neither a folder here nor, as far as you may see, on the hub. Private models need a "
            "token (hf auth login, or HF_TOKEN)."
        ) from error
    except (LocalEntryNotFoundError, HfHubHTTPError) as error:
        # the client says "not in the cache" of a hub that answers its first question with an error
        status = _status(error) or _status(error.__cause__)
        if status is None and isinstance(error, LocalEntryNotFoundError):
            raise CheckpointError(_unreached(asked, error)) from error
        if status in (401, 403):
            raise UnknownModel(
                f"{asked}: the hub refuses your token ({status}). Make one that may read this model, then hf auth "
                "login, or HF_TOKEN."
            ) from error
        raise CheckpointError(
            f"{asked}: the hub answers with an error ({status or error}). Try again later."
        ) from error
    except Exception as error:  # of the client's transport, whose library differs by version
        raise CheckpointError(
            f"{asked}: the download broke off ({type(error).__name__}: {error}). The same call fetches what is missing."
        ) from error


def is_cached(name: str) -> bool:
    """Whether the hub's cache on this machine has some of a model."""
    from huggingface_hub import constants

    return os.path.isdir(os.path.join(constants.HF_HUB_CACHE, f"models--{name.replace('/', '--')}"))


def _status(error: BaseException | None) -> int | None:
    return getattr(getattr(error, "response", None), "status_code", None)


def _unreached(asked: str, error: Exception) -> str:
    from huggingface_hub import constants

    why = "HF_HUB_OFFLINE=1 is set" if constants.HF_HUB_OFFLINE else type(error).__name__
    return (
        f"{asked} is neither a folder nor in the hub's cache, and the hub cannot be reached ({why}). "
        "Download it where there is a network and give the folder."
    )
