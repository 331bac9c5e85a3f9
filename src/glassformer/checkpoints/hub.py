"""Checkpoints of the Hugging Face hub: an id becomes a folder in the hub's cache."""

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from glassformer.checkpoints.gguf import gguf_models
from glassformer.errors import CheckpointError, UnknownModel, nearest
from glassformer.files.packaged import CONFIG

# what a model is read from; nothing that could be run is fetched
_WEIGHTS = ("*.safetensors",)
_WANTED = ("*.json", "tokenizer*", "vocab*", "merges.txt", "*.spm")
_UNWANTED = ("*/*", "consolidated*", "*.bin", "*.py")


def is_id(name: str) -> bool:
    """Whether a name has the form of a hub id, `owner/model`, or of one GGUF file there, `owner/model:FILE.gguf`."""
    return re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+(:[\w.+-]+\.gguf)?", name) is not None


def download(name: str, revision: str | None = None, *, weights: bool = True) -> Path:
    """Return the folder of a hub model in the local cache, or a GGUF file there, fetching what is missing.

    Files that came whole are not fetched again; a token comes from `huggingface-cli login` or HF_TOKEN, and with
    HF_HUB_OFFLINE=1 only the cache is asked. Of a repository without safetensors its GGUF file is fetched, all parts of
    it; it says of itself what others have a config for.

    Args:
        name: `owner/model`, or `owner/model:FILE.gguf` where several GGUF files lie there.
        revision: Branch, tag or commit; the main branch by default.
        weights: Whether the weights are wanted too, or only what describes them.

    Raises:
        UnknownModel: The hub has no such model, revision or file, or does not show it to you.
        CheckpointError: The hub cannot be reached and the cache does not hold it, or it has several GGUF models.
    """
    from huggingface_hub import snapshot_download

    repository, _, file = name.partition(":")
    asked = f'"{name}"' + (f" at revision {revision}" if revision else "")

    def fetched(wanted: Sequence[str]) -> Path:
        with _told(asked):
            return Path(
                snapshot_download(
                    repository, revision=revision, allow_patterns=list(wanted), ignore_patterns=list(_UNWANTED)
                )
            )

    folder = fetched([*_WANTED, *(_WEIGHTS if weights and not file else ())])
    described = any(folder.glob("*.safetensors")) or (not weights and (folder / CONFIG).exists())
    if not file and described:
        return folder
    models = gguf_models(_names(repository, revision, folder, asked))
    if not file and not models:
        return folder
    if not file and len(models) > 1:
        names = ", ".join(parts[0] for parts in models)
        raise CheckpointError(
            f"{asked} holds several GGUF models: {names}.\n    Name one of them: {repository}:{models[0][0]}"
        )
    parts = next((parts for parts in models if file in parts), ()) if file else models[0]
    if not parts:
        known = [name for several in models for name in several]
        raise UnknownModel(
            f"{asked}: there is no such file.{nearest(file, known)} GGUF files there: {', '.join(known) or 'none'}."
        )
    return fetched(parts) / parts[0]


def _names(repository: str, revision: str | None, folder: Path, asked: str) -> list[str]:
    """Return the names of files in a repository; where the hub cannot be asked, those in the cache."""
    from huggingface_hub import HfApi

    try:
        with _told(asked):
            return HfApi().list_repo_files(repository, revision=revision)
    except CheckpointError:
        cached = [path.name for path in folder.glob("*")]
        if not gguf_models(cached):
            raise
        return cached


@contextlib.contextmanager
def _told(asked: str) -> Iterator[None]:
    """Say in our words what the hub's client refuses.

    Args:
        asked: What was asked for, for messages.
    """
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        yield
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

    repository = name.partition(":")[0]
    return os.path.isdir(os.path.join(constants.HF_HUB_CACHE, f"models--{repository.replace('/', '--')}"))


def _status(error: BaseException | None) -> int | None:
    return getattr(getattr(error, "response", None), "status_code", None)


def _unreached(asked: str, error: Exception) -> str:
    from huggingface_hub import constants

    why = "HF_HUB_OFFLINE=1 is set" if constants.HF_HUB_OFFLINE else type(error).__name__
    return (
        f"{asked} is neither a folder nor in the hub's cache, and the hub cannot be reached ({why}). "
        "Download it where there is a network and give the folder."
    )
