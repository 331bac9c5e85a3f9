"""Public exceptions and the "nearest name" helper.

Every message says what was asked, what was found and what would work. Each class also derives from the built-in that a
caller would reach for, so `except ValueError` keeps working.
"""

import difflib
import re
from collections.abc import Iterable


class GlassformerError(Exception):
    """Base of every error this package raises on purpose; the command line turns it into exit code 2."""

    def __str__(self) -> str:
        # KeyError would print the repr of the message, quotes and all
        return shortened("\n".join(str(a) for a in self.args))


class WrongArgument(GlassformerError, TypeError):
    """An argument of another kind than the function takes, or outside the bounds of what it takes."""


class ConfigError(GlassformerError, ValueError):
    """A config whose fields do not fit together, or whose JSON cannot be read."""


class UnknownField(ConfigError):
    """A config names a field that its kind does not have."""


class UnknownKind(ConfigError):
    """A config names a kind that nothing registered."""


class UnknownSite(GlassformerError, KeyError):
    """A read or an edit names a site that the model does not have."""


class UnknownAxis(GlassformerError, ValueError):
    """`At(...)` or a labelled tensor is addressed by an axis name it does not have."""


class ShapeMismatch(GlassformerError, ValueError):
    """A value does not fit the place it is put into."""


class SiteNotRead(GlassformerError, KeyError):
    """A run lacks a site that an analysis needs; the message lists what to add to `read=`."""


class AnalysisUnavailable(GlassformerError, ValueError):
    """An analysis is not defined for this mechanism; the message names trait, mechanism and the nearest alternative."""


class NoPattern(AnalysisUnavailable):
    """A pattern was asked of a mechanism, or of a route, that has none."""


class UnknownModel(GlassformerError, KeyError):
    """No shipped model, preset or folder of that name."""


class CheckpointError(GlassformerError, ValueError):
    """A checkpoint is truncated, damaged, of a refused format, or does not fit its config."""


class SaveError(GlassformerError, OSError):
    """Something could not be written; whatever was there before is still whole."""


class TextError(GlassformerError, ValueError):
    """Text that cannot be used: empty, longer than the context, or not UTF-8."""


class TokenOutOfRange(GlassformerError, ValueError):
    """A token id is outside the model's vocabulary."""


class OutOfPages(GlassformerError, MemoryError):
    """A text needs more pages of memory than there are, even alone."""


class DataError(GlassformerError, ValueError):
    """A corpus holds no usable text, or a task's parameters exclude each other."""


class RunFolderError(GlassformerError, RuntimeError):
    """A run folder is in use by another process, or belongs to a different recipe."""


class TrainingDiverged(GlassformerError, ArithmeticError):
    """A loss or a gradient is not finite; the message names the step, what to change, a run's last good checkpoint."""


class NotConverged(GlassformerError, ArithmeticError):
    """An iteration has not come to rest; the message says how far it is from that, and what would help."""


class RankLost(GlassformerError, RuntimeError):
    """A process of a mesh did not come, died or no longer answers; the message names its rank."""


class MissingExtra(GlassformerError, ImportError):
    """An optional library is not installed; the message names the extra that brings it."""


# what a message may quote: a word, or what stands in quotation marks, and the message as a whole
_LONG, _SHOWN, _MOST = 300, 100, 6_000
# each pair of marks as it comes: what stands between two quotations is no quotation
_QUOTED = re.compile(rf"""\S{{{_LONG},}}|"[^"]*"|(?<!\w)'[^']*'""")


def shortened(message: str) -> str:
    """A message in which what was given at great length is shown by its beginning and its end."""

    def short(long: str, shown: int) -> str:
        return f"{long[:shown]} … ({len(long) - 2 * shown:,} more characters) … {long[-shown:]}"

    def quoted(match: re.Match[str]) -> str:
        return short(match[0], _SHOWN) if len(match[0]) > _LONG else match[0]

    found = _QUOTED.sub(quoted, message) if len(message) > _LONG else message
    return found if len(found) <= _MOST else short(found, _MOST // 4)


def printable(text: str) -> str:
    """A text that does nothing to a terminal: what would move its cursor or turn its writing is escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else _escape(c) for c in text)


def _escape(character: str) -> str:
    # spaces of other widths are not printable by Unicode's table, and harm nobody
    return character if character.isspace() and ord(character) > 0x9F else ascii(character)[1:-1]


def outside_vocabulary(id: int, size: int | None) -> TokenOutOfRange:
    """Return the error for a token id that a vocabulary of this size lacks; None if the size is not known."""
    known = "" if size is None else f": 0 to {size - 1}"
    return TokenOutOfRange(f"token id {id} is outside the vocabulary{known}.")


def nearest(name: object, candidates: Iterable[str]) -> str:
    """Return ` Nearest: "x".` for the closest candidate, or an empty string when nothing is close."""
    if not isinstance(name, str) or len(name) > _LONG:
        return ""
    close = difflib.get_close_matches(name, list(candidates), n=1, cutoff=0.4)
    return f' Nearest: "{close[0]}".' if close else ""
