"""Writing files whole or not at all."""

import os
import tempfile
from pathlib import Path

from glassformer.errors import SaveError


def write(path: str | Path, content: bytes | str) -> Path:
    """Write a file so that a reader sees the old content or the new, never a part; missing folders are made.

    Raises:
        SaveError: The disk is full, the folder is read-only, or a part of the path is no folder. Nothing has changed.
    """
    path = Path(path)
    data = content.encode("utf-8") if isinstance(content, str) else content
    temporary: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)
        reason = error.strerror or str(error)
        raise SaveError(
            f'cannot write "{path}": {reason}. Choose a folder that can be written to and has room.'
        ) from error
    return path


def check_writable(path: str | Path) -> None:
    """Raise `SaveError` if a file could not be written here: cheaper to learn before long work than after it."""
    path = Path(path)
    if path.is_dir():
        raise SaveError(f'cannot write "{path}": it is a folder. Add the name of a file.')
    folder = next((parent for parent in path.absolute().parents if parent.exists()), path.parent)
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = error.strerror or str(error)
        raise SaveError(f'cannot write "{path}": {reason}. Choose a folder that can be written to.') from error
