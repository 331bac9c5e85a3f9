"""Writing a file whole or not at all."""

import os
import tempfile
from pathlib import Path

from glassformer.errors import SaveError


def write_whole(path: str | Path, content: str | bytes) -> Path:
    """Write a file under a temporary name beside it and move it into place; text is written as UTF-8.

    Raises:
        SaveError: It could not be written. A file that was there before is still whole.
    """
    path = Path(path)
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode("utf-8", "replace") if isinstance(content, str) else content)
        # mkstemp makes files for the owner alone; give the mode an ordinary write would have given
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except OSError as error:
        if temporary and os.path.exists(temporary):
            os.unlink(temporary)
        raise cannot_write(path, error) from error
    return path


def check_writable(path: str | Path) -> None:
    """Raise `SaveError` if a file cannot be made at this path: cheaper to learn before the work than after it."""
    path = Path(path)
    if path.is_dir():
        raise SaveError(f'cannot write "{path}": it is a folder. Give the name of a file.')
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise cannot_write(path, error) from error


def cannot_write(path: Path, error: OSError) -> SaveError:
    return SaveError(f'cannot write "{path}": {error.strerror or error}.')
