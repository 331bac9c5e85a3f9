"""The command line: one module per verb, imported only when its verb is called.

Exit codes: 0 done, 1 what was compared differs (parity), 2 bad input or an output that takes nothing (a
message without a traceback; `--debug` shows it), 130 interrupted, 141 the output was closed by who read it.
"""

import contextlib
import importlib
import os
import re
import sys
import traceback
from collections.abc import Sequence

from glassformer.errors import GlassformerError, nearest, printable, shortened
from glassformer.version import __version__
from glassformer.words import Language, speaking, spoken

# verb -> what it does; each is a function of the same name in the module `glassformer.cli.<verb>`
VERBS: dict[str, str] = {
    "explain": "explain the next token of a text",
    "serve": "open a page on models of your own, with an API",
    "attention": "show what every head looks at, of any model, and why one does",
    "patch": "patch activations: which values carry an answer",
    "paths": "patch paths: what heads and MLPs do through some receivers alone",
    "edges": "estimate what every edge between heads carries, and check the largest",
    "prune": "cut edges that cost little, and show the circuit that is left",
    "trace": "corrupt the subject of a text and restore one state at a time",
    "attribute": "say which parts and which tokens add to the next token",
    "lens": "show what the model would say at every depth; train a tuned lens",
    "backward": "read as tokens what a gradient step would write; write one fact",
    "route": "trace the routes of information that lead to a prediction",
    "behaviour": "ask for known habits: sinks, suppression, rank, long contexts, recitation",
    "probe": "fit linear probes of a property at every layer; erase it",
    "circuits": "find what heads do, which read which, and how much it matters",
    "heads": "say what every head looks at over a corpus, in a sentence each",
    "features": "train, list and show dictionaries of features of a site",
    "adapt": "train an expert for a task by rewards; let experts answer prompts",
    "study": "check what papers claim, in miniature: list, run, report, verify",
    "train": "train a model by a recipe, or resume it",
    "models": "list the shipped models with their figures",
    "plot": "draw a run's metrics, or compare runs",
    "generate": "continue a text, or translate one",
    "convert": "write a model in another layout, ours or another library's",
    "params": "parameters, operations and state of a model or a published preset",
    "plan": "plan training on many processes: memory of a rank, bytes it sends",
    "parity": "compare a published checkpoint, site by site, with the transformers library",
    "bench": "measure what attention mechanisms cost, beside fused softmax attention",
    "sites": "what a forward pass can record and be edited at",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit code."""
    _open_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    arguments = [a for a in arguments if a != "--debug"]
    verb, *rest = arguments or ["--help"]
    # named in messages, where it is a command
    named = verb if verb in VERBS else ""
    try:
        code = _run(verb, rest)
        # what cannot be printed is to be known before the exit code is
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # the reader (head, less) has seen enough: what a shell reports of a program that this signal ends
        _discard_output()
        return 141
    except KeyboardInterrupt as interrupt:
        # a verb that kept something says what
        said = "".join(f": {words}" for words in interrupt.args)
        print(f"\n{_command(named)}: interrupted{said}", file=sys.stderr)
        return 130
    except (GlassformerError, OSError, UnicodeEncodeError, MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not (isinstance(error, GlassformerError) or _lacks_memory(error)):
            raise
        if debug:
            traceback.print_exc()
        _complain(_reason(error), named)
        _discard_output()
        return 2


def _run(verb: str, arguments: list[str]) -> int:
    if verb in ("-h", "--help", "help"):
        with speaking(_language_asked(arguments)):
            print(_overview())
        return 0
    if verb == "--version":
        print(f"glassformer {__version__}")
        return 0
    if verb not in VERBS:
        known = ", ".join(VERBS)
        _complain(f'no command "{verb}".{nearest(verb, VERBS)} Commands: {known}.')
        return 2
    from glassformer.cli.parsing import call_of

    function = getattr(importlib.import_module(f"glassformer.cli.{verb}"), verb)
    try:
        with speaking(_language_asked(arguments)):
            call = call_of(verb, function, arguments, VERBS[verb])
        call()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 0
    return 0


def _reason(error: GlassformerError | OSError | UnicodeEncodeError | MemoryError | RuntimeError) -> str:
    """Return what went wrong, in a sentence."""
    if isinstance(error, GlassformerError):
        return str(error)
    if isinstance(error, MemoryError | RuntimeError):
        return "not enough memory for what was asked. Ask for less at once: a shorter text, smaller batches."
    if isinstance(error, UnicodeEncodeError):
        character = error.object[error.start]
        return (
            f"the output is {error.encoding}, which has no character {character!a}. Set PYTHONIOENCODING=utf-8, or "
            "leave such characters out."
        )
    place = "the output" if error.filename is None else f'"{os.fsdecode(error.filename)}"'
    return f"{place} cannot be read or written: {error.strerror or error}."


def _lacks_memory(error: RuntimeError) -> bool:
    """Whether memory is all that was missing: PyTorch has a class for that on accelerators, and a sentence on CPUs."""
    # by name: this module does not load PyTorch
    return type(error).__name__ == "OutOfMemoryError" or any(
        words in str(error) for words in ("DefaultCPUAllocator", "Storage size calculation overflowed")
    )


def _complain(message: str, verb: str = "") -> None:
    print(printable(f"{_command(verb)}: {shortened(message)}"), file=sys.stderr)


def _command(verb: str) -> str:
    return f"glassformer {verb}".strip()


def _open_streams() -> None:
    """Put a stream that fails in place of standard input or output that were closed, which Python leaves at None.

    Whoever reads or writes there then learns what a program learns of the system; no file that is opened later takes
    their numbers. Complaints that nobody is to read go nowhere.
    """
    for name, flags, mode in (("stdin", os.O_WRONLY, "r"), ("stdout", os.O_RDONLY, "w"), ("stderr", os.O_WRONLY, "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, flags), mode, encoding="utf-8"))


def _discard_output() -> None:
    """Let what could not be printed not be tried again when Python ends, which would complain a second time."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _language_asked(arguments: Sequence[str]) -> Language:
    """Return the language of help, which is shown before options are read."""
    return "zh" if re.search(r"(?<=--lang[= ])zh(?= |$)", " ".join(arguments)) else "en"


def _overview() -> str:
    width = max([len(verb) for verb in VERBS], default=0)
    lines = [f"  {verb.ljust(width)}  {spoken(about)}" for verb, about in VERBS.items()]
    return "\n".join(
        [
            spoken("usage: glassformer COMMAND [options]"),
            "",
            spoken("Transformers you can see through."),
            "",
            *lines,
            "",
            spoken("`glassformer COMMAND --help` shows options and examples; --debug shows tracebacks; --version."),
        ]
    )
