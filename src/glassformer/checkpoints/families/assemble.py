"""Our tensors put together from pieces of theirs by a family's table, and taken apart again."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from glassformer.checkpoints.families.family import Family, Piece, Table
from glassformer.checkpoints.tensors import Tensors
from glassformer.errors import CheckpointError, ConfigError, nearest


class Source(NamedTuple):
    """One of our tensors and the pieces it is made of, with full names of theirs."""

    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]


def sources(shapes: Mapping[str, tuple[int, ...]], table: Table) -> dict[str, Source]:
    """Sources of each of our tensors: what it is made of.

    Args:
        shapes: Our tensors by name.
        table: Of the family.
    """
    rules = [(re.compile(re.escape(left).replace(r"\{i\}", r"(\d+)")), right) for left, right in table.items()]
    found: dict[str, Source] = {}
    for name, shape in shapes.items():
        module, _, last = name.rpartition(".")
        for rule, right in rules:
            if (match := rule.fullmatch(name)) is not None:
                suffix = ""
            elif (match := rule.fullmatch(module)) is not None:
                suffix = f".{last}"
            else:
                continue
            layer = match.group(1) if match.groups() else ""
            listed = (right,) if isinstance(right, (str, Piece)) else right
            found[name] = Source(shape, tuple(_named(piece, layer, suffix) for piece in listed))
            break
        else:
            raise ConfigError(f'the table has no row for our tensor "{name}".{nearest(name, table)}')
    return found


def _named(piece: str | Piece, layer: str, suffix: str) -> Piece:
    piece = Piece(piece) if isinstance(piece, str) else piece
    name = piece.name.replace("{i}", layer) + suffix
    return replace(piece, name=name, layer=int(layer or 0))


def assembled(name: str, source: Source, read: Callable[[str], Tensor], dtype: torch.dtype) -> Tensor:
    """One of our tensors from theirs: theirs itself where nothing has to be moved or converted.

    Args:
        name: Ours, for messages.
        source: What it is made of.
        read: Gives one of their tensors.
        dtype: Wanted type.

    Raises:
        CheckpointError: A tensor is not of the shape that the config asks for, or not zero as it must be.
    """
    if not source.pieces:
        return _room(name, source, dtype).zero_()
    first = source.pieces[0]
    if len(source.pieces) == 1 and first.is_whole:
        theirs = read(first.name)
        if tuple(theirs.shape) != source.shape:
            raise _misfit(first.name, tuple(theirs.shape), source.shape, name)
        return theirs.to(dtype)
    # all are looked at before there is room for them: a config may ask for any size
    parts, start = list[tuple[int, Tensor]](), 0
    for piece in source.pieces:
        theirs = read(piece.name)
        try:
            part = piece.part(theirs)
        except (RuntimeError, IndexError) as error:
            raise _misfit(piece.name, tuple(theirs.shape), source.shape, name, piece.layers) from error
        rows = _rows(part, source.shape)
        if (
            rows is None
            or start + rows > source.shape[0]
            or (piece is source.pieces[-1]) != (start + rows == source.shape[0])
        ):
            raise _misfit(piece.name, tuple(theirs.shape), source.shape, name, piece.layers)
        if piece.zero and bool(part.any()):
            raise CheckpointError(
                f'"{piece.name}" is added where our models add nothing, so it is read if it is zero; it is not.'
            )
        parts.append((start, part))
        start += rows
    ours = _room(name, source, dtype)
    stops = [*(begin for begin, _ in parts[1:]), start]
    for (begin, part), stop in zip(parts, stops, strict=True):
        ours[begin:stop].view(part.shape).copy_(part)
    return ours


def _room(name: str, source: Source, dtype: torch.dtype) -> Tensor:
    try:
        return torch.empty(source.shape, dtype=dtype)
    except RuntimeError as error:
        size = torch.Size(source.shape).numel() * dtype.itemsize
        raise CheckpointError(f'"{name}" of shape {source.shape} takes {size:,} bytes, which cannot be had.') from error


def taken_apart(
    parts: Mapping[str, Source], read: Callable[[str], Tensor], names: Sequence[str] | None = None
) -> dict[str, Tensor]:
    """Their tensors from ours: the inverse of `assembled` over a whole model or some of its tensors.

    Args:
        parts: What each of our tensors is made of.
        read: Gives one of our tensors.
        names: Which of ours; all by default.

    Raises:
        CheckpointError: One that is zero in their layout is not zero.
    """
    found: dict[str, Tensor] = {}
    for name in parts if names is None else names:
        source, ours = parts[name], read(name)
        if all(piece.zero for piece in source.pieces) and bool(ours.any()):
            raise CheckpointError(f'"{name}" has no place in this layout, where it is zero; in this model it is not.')
        start = 0
        for piece in source.pieces:
            left = source.shape[0] - start if source.shape else 0
            shape = piece.shape or ((piece.rows or left, *source.shape[1:]) if source.shape else ())
            if piece.is_whole and len(source.pieces) == 1:
                found[piece.name] = ours
                continue
            if piece.name not in found:
                made = torch.zeros(shape, dtype=ours.dtype)
                # stored the other way round, as it lies in their file
                made = made.mT.contiguous() if piece.transposed and made.ndim > 1 else made
                found[piece.name] = made if piece.layers is None else torch.stack([made] * piece.layers)
            part = piece.part(found[piece.name])
            rows = _rows(part, source.shape)
            assert rows is not None, f"{piece.name} does not hold whole rows of {name}"
            _write(part, ours[start : start + rows].reshape(part.shape), name, piece.name)
            start += rows
    return found


def _write(part: Tensor, ours: Tensor, name: str, theirs: str) -> None:
    """Copy into a view on theirs; what it shows several times must be the same there in ours."""
    for axis, (size, stride) in enumerate(zip(part.shape, part.stride(), strict=True)):
        if size > 1 and stride == 0:
            once = ours.narrow(axis, 0, 1)
            if not torch.equal(once.expand_as(ours), ours):
                raise CheckpointError(f'"{name}" holds "{theirs}" {size} times, and in this model they differ.')
            part, ours = part.narrow(axis, 0, 1), once
    part.copy_(ours)


def stored_names(family: Family, parts: Mapping[str, Source], files: Tensors, config: Any) -> dict[str, str]:
    """The names that tensors have in the files, for each of theirs that a model needs.

    Args:
        family: Whose table made the parts.
        parts: What each of our tensors is made of.
        files: What there is.
        config: Ours.

    Raises:
        CheckpointError: Tensors are missing, there are some that nothing uses, two that the config ties differ, or one
            that the model computes is another one in the files.
    """
    wanted = dict.fromkeys(piece.name for source in parts.values() for piece in source.pieces)
    written = _prefix(family, wanted, files)
    stored = {name: written(name) for name in wanted}
    copies = {written(copy): written(of) for copy, of in family.copied(wanted).items()}
    missing = [name for name in stored.values() if name not in files]
    used = {*stored.values(), *copies}
    ignored = [re.compile(_glob(pattern)) for pattern in (*family.ignored, *family.computed)]
    extra = [n for n in files if n not in used and not any(pattern.fullmatch(n) for pattern in ignored)]
    problems = [f'"{name}" is missing.{nearest(name, extra)}' for name in missing[:3]]
    problems += [f'"{name}" is there, and nothing uses it.' for name in extra[:3]]
    if problems:
        more = len(missing) + len(extra) - len(problems)
        untied = {copy: of for copy, of in family.copied(()).items() if copy in wanted and written(copy) in missing}
        raise CheckpointError(
            f'"{files.folder}" does not fit its config, read as {family.name}: '
            + " ".join(problems)
            + (f" (and {more} more)" if more > 0 else "")
            + "".join(
                f'\n    The config does not tie "{copy}" to "{written(of)}". If it was trained as one '
                'with that, set "tie_word_embeddings": true in its config.json.'
                for copy, of in untied.items()
                if written(of) in files
            )
        )
    for copy, of in copies.items():
        if copy in files and of in files and not _same(files, copy, of):
            raise CheckpointError(
                f'"{files.folder}": the config ties "{copy}" to "{of}", and the two differ. If both were trained, '
                'set "tie_word_embeddings": false in its config.json.'
            )
    for pattern, made in family.computed.items():
        for name in filter(re.compile(_glob(pattern)).fullmatch, files.keys() - used):
            _require_as_computed(files, name, made, config)
    return stored


def _require_as_computed(files: Tensors, name: str, made: Callable[[Any, int], Tensor], config: Any) -> None:
    """Raise `CheckpointError` unless a tensor holds what our model computes in its place."""
    found = files.read(name).float()
    ours = made(config, len(found)).float()
    fits = found.shape == ours.shape
    # sines of large angles in float32, and what the file's type rounds them to
    kind = files[name].dtype or torch.float32
    off = float((found - ours).nan_to_num(0.0).abs().max()) if fits and found.numel() else 0.0
    if not fits or off > max(1e-3, 2 * torch.finfo(kind).eps):
        how = f"is off by up to {off:.2g}" if fits else f"has shape {tuple(found.shape)}, not {tuple(ours.shape)}"
        raise CheckpointError(
            f'"{files.folder}": "{name}" {how} from what the model computes in its place, a table '
            "of sines by position: it was trained or changed, and is not read."
        )


def _same(files: Tensors, one: str, other: str) -> bool:
    if files[one].shape != files[other].shape:
        return False
    rows = zip(files.read(one).split(4096), files.read(other).split(4096))
    return all(torch.equal(a, b) for a, b in rows)


def _prefix(family: Family, wanted: Mapping[str, None], files: Tensors) -> Callable[[str], str]:
    """Return how a name is written in these files: as in the table, with a prefix more or less, with old endings."""

    def with_less(prefix: str) -> Callable[[str], str]:
        return lambda name: name.removeprefix(prefix)

    def with_more(prefix: str) -> Callable[[str], str]:
        return lambda name: prefix + name

    def of_old(way: Callable[[str], str]) -> Callable[[str], str]:
        return lambda name: _old(way(name), family.endings)

    ways = [lambda name: name]
    for prefix in family.prefixes:
        ways += [with_less(prefix), with_more(prefix)]
    ways += [of_old(way) for way in ways] if family.endings else []
    return max(ways, key=lambda way: sum(way(name) in files for name in wanted))


def _old(name: str, endings: Mapping[str, str]) -> str:
    ending = next((ending for ending in endings if name.endswith(ending)), None)
    return name if ending is None else name.removesuffix(ending) + endings[ending]


def _rows(part: Tensor, shape: tuple[int, ...]) -> int | None:
    """Return how many of our rows a part holds; None if no whole number."""
    width = 1
    for size in shape[1:]:
        width *= size
    return part.numel() // width if width and part.numel() % width == 0 else None


def _glob(pattern: str) -> str:
    return re.escape(pattern).replace(r"\*", ".*")


def _misfit(
    theirs: str, found: tuple[int, ...], shape: tuple[int, ...], ours: str, layers: int | None = None
) -> CheckpointError:
    several = "" if layers is None else f", one of {layers} layers"
    return CheckpointError(
        f'"{theirs}" has shape {found}, which does not fit what the config asks for: {shape} for "{ours}"{several}.'
    )
