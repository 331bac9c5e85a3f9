"""Writing files whole or not at all."""

import contextlib
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from glassformer.errors import SaveError


def write(path: str | Path, content: bytes | str) -> Path:
    """Write a file so that a reader sees the old content or the new, never a part; missing folders are made.

    Raises:
        SaveError: The disk is full, the folder is read-only, or a part of the path is no folder. Nothing has changed.
    """
    path = Path(path)
    write_all(path.parent, {path.name: content})
    return path


def write_all(folder: str | Path, contents: Mapping[str, bytes | str]) -> Path:
    """Write files that belong together: all of them are on the disk before the first takes its name.

    They take their names in the order given, each at once.

    Raises:
        SaveError: As for `write`. Nothing has changed, and no folder was made.
    """
    folder = Path(folder)
    path = folder
    temporary: dict[str, Path] = {}
    made: list[Path] = []
    try:
        made += [parent for parent in (folder, *folder.parents) if not parent.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            path = folder / name
            if path.is_dir():
                raise IsADirectoryError(0, "a folder of that name is in the way")
            handle, place = tempfile.mkstemp(dir=folder, prefix=f".{name}-")
            temporary[name] = Path(place)
            with os.fdopen(handle, "wb") as file:
                file.write(content.encode("utf-8") if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(place, 0o644)
        for name, place in list(temporary.items()):
            path = folder / name
            os.replace(place, path)
            del temporary[name]
    except BaseException as error:
        _clear(temporary.values(), made)
        if isinstance(error, OSError):
            raise refused(path, error) from error
        raise
    return folder


def refused(path: str | Path, error: OSError) -> SaveError:
    """Return the error to raise when the system refuses to write here."""
    reason = error.strerror or str(error)
    return SaveError(f'cannot write "{path}": {reason}. Choose a folder that can be written to and has room.')


def _clear(temporary: Iterable[Path], folders: Iterable[Path]) -> None:
    """Remove temporary files, and the folders made for them if nothing else is inside."""
    for place in temporary:
        with contextlib.suppress(OSError):
            place.unlink()
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()


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
        raise refused(path, error) from error
