"""Writing files whole or not at all; what is no regular file is written through, as the shell would."""

import contextlib
import os
import secrets
import stat
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from glassformer.errors import SaveError

# short, since a name of its own may have all the bytes that the system allows
_TEMPORARY = ".glassformer-"


def write(path: str | Path, content: bytes | str) -> Path:
    """Write a file so that a reader sees the old content or the new, never a part; missing folders are made.

    A link is followed, and its target replaced. A file that was there keeps its mode; a new one gets what the umask
    leaves. A pipe or a device stays what it is, and the content goes into it.

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
    temporary: dict[Path, Path] = {}
    through: dict[Path, bytes] = {}
    made: list[Path] = []
    try:
        _make(folder, made)
        for name, content in contents.items():
            path = folder / name
            data = content.encode("utf-8") if isinstance(content, str) else content
            if _is_special(path):
                through[path] = data
                continue
            target = _target(path)
            _make(target.parent, made)
            temporary[target] = target.with_name(_temporary_name())
            _write_new(temporary[target], data, _mode(target))
        for path, data in through.items():
            _write_through(path, data)
        for path, place in list(temporary.items()):
            os.replace(place, path)
            del temporary[path]
    except BaseException as error:
        _clear(temporary.values(), made)
        if isinstance(error, (OSError, ValueError)):
            raise refused(path, error) from error
        raise
    return folder


def sweep(folder: str | Path) -> None:
    """Remove what writers that were killed left in a folder in which nobody writes now."""
    _clear(Path(folder).glob(f"{_TEMPORARY}*"), ())


def refused(path: str | Path, error: OSError | ValueError) -> SaveError:
    """The error to raise when the system refuses to write here."""
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return SaveError(f'cannot write "{path}": {reason}. Choose a folder that can be written to and has room.')


def check_writable(path: str | Path) -> None:
    """Raise `SaveError` if a file could not be written here: cheaper to learn before long work than after it."""
    path = Path(path)
    try:
        if path.is_dir():
            raise SaveError(f'cannot write "{path}": it is a folder. Add the name of a file.')
        if _is_special(path):
            # opening a pipe would wait for its reader
            if not os.access(path, os.W_OK):
                raise PermissionError(0, "Permission denied")
            return
        target = _target(path)
        folder = next(parent for parent in target.parents if parent.exists())
        for part in target.relative_to(folder).parts:
            # a name that the system does not take is refused here, whatever is still missing above it
            with contextlib.suppress(FileNotFoundError):
                (folder / part).lstat()
        trial = folder / _temporary_name()
        _write_new(trial, b"", None)
        trial.unlink()
    except SaveError:
        raise
    except (OSError, ValueError) as error:
        raise refused(path, error) from error


def _temporary_name() -> str:
    return f"{_TEMPORARY}{secrets.token_hex(8)}"


def _target(path: Path) -> Path:
    """Return where the content of a path lies: behind its links, which lead somewhere if the system has looked."""
    return Path(os.path.realpath(path))


def _is_special(path: Path) -> bool:
    """Return whether a path leads to a pipe, a device, or to where this process prints: nothing to be replaced."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(0, "a folder of that name is in the way")
    return not stat.S_ISREG(found.st_mode) or _printed_to(found) is not None


def _printed_to(found: os.stat_result) -> int | None:
    """Return which standard stream is open on a file, if one is."""
    for stream in (1, 2):
        with contextlib.suppress(OSError):
            if os.path.samestat(found, os.fstat(stream)):
                return stream
    return None


def _write_through(path: Path, data: bytes) -> None:
    stream = _printed_to(os.stat(path))
    if stream is None:
        with open(path, "wb") as file:
            file.write(data)
        return
    # behind what was printed before, at the place where the stream is
    sys.stdout.flush()
    with os.fdopen(os.dup(stream), "wb") as file:
        file.write(data)


def _mode(target: Path) -> int | None:
    """Return the permissions of a file that is there."""
    try:
        return stat.S_IMODE(target.stat().st_mode)
    except FileNotFoundError:
        return None


def _write_new(place: Path, data: bytes, mode: int | None) -> None:
    """Write a file that was not there, down to the disk; without a mode, the umask decides."""
    handle = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    with os.fdopen(handle, "wb") as file:
        if mode is not None:
            os.chmod(place, mode)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _make(folder: Path, made: list[Path]) -> None:
    """Make a folder, and note those that were missing, the deepest first."""
    made += [parent for parent in (folder, *folder.parents) if not parent.exists()]
    folder.mkdir(parents=True, exist_ok=True)


def _clear(temporary: Iterable[Path], folders: Iterable[Path]) -> None:
    """Remove temporary files, and the folders made for them if nothing else is inside."""
    for place in temporary:
        with contextlib.suppress(OSError):
            place.unlink()
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()
