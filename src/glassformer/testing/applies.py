"""What applies to what, found by asking: every analysis of every kind of model there is.

    outcomes(subject("llama"))                        what becomes of each analysis
    outcomes(built(mixer=Mine()))["rollout"]          the same of a mechanism made elsewhere
    table()                                           all rows: what `glassformer models --applies` shows

`python -m glassformer.testing.applies` writes the table that comes with the package. What ends neither in an answer nor
in a refusal is `Undecided`, and so is an answer that its judge does not come to: a mistake in the analysis.
"""

import dataclasses
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

import glassformer.applicability
from glassformer import files
from glassformer.analysis.cards import Card, cards
from glassformer.applicability import Analysis, Outcome, Row, Table
from glassformer.applicability.table import FILE
from glassformer.attention import (
    Activated,
    Attention,
    Convolved,
    Latent,
    MixerConfig,
    NoPositions,
    PositionsConfig,
    QueryKeyNorm,
    Rope,
    Shifted,
    SubLayerConfig,
    Tied,
)
from glassformer.errors import AnalysisUnavailable, UnknownSite
from glassformer.labelled import Labelled, Result
from glassformer.models import (
    BlockConfig,
    DecoderConfig,
    EncoderConfig,
    LayerNorm,
    Mlp,
    NoNorm,
    NormConfig,
    block,
    published_block,
)
from glassformer.testing.analysis_laws import tensors_of
from glassformer.testing.calls import right_call
from glassformer.testing.judges import JUDGES, Asked
from glassformer.testing.models import (
    ALTERNATING,
    ARCHITECTURES,
    ENCODERS,
    IMAGES,
    RECURRENT,
    SLOTS,
    Subject,
    drawn,
    subject,
)
from glassformer.testing.plain import plain
from glassformer.testing.sub_layer_laws import WIRINGS
from glassformer.trace import Foreign
from glassformer.words import sentence

Made = Callable[[], Subject]
_ATTENTION = Attention(2, positions=Rope())
_BLOCK: dict[str, Any] = {"n_heads": 2, "positions": Rope(), "mlp": Mlp(12)}


class Undecided(AssertionError):
    """An analysis neither answers nor says in a typed error that it does not; or what it answers is not so."""


def outcome(card: Card, subject: Subject) -> Outcome:
    """Ask one analysis of a model, and its judge if it has one.

    Raises:
        Undecided: It ends in an error of another kind, or every number of its answer is NaN, or its judge comes to
            other numbers.
    """
    try:
        call = right_call(card.function, subject)
        found = call()
        found = list(found) if inspect.isgenerator(found) else found
    except AnalysisUnavailable as error:
        return Outcome("refused", reason=first_sentence(str(error)))
    except Exception as error:
        # a spec has those sites that it names
        if isinstance(error, UnknownSite) and isinstance(subject.model, Foreign):
            return Outcome("refused", reason=first_sentence(str(error)))
        raise Undecided(f"{card.name} of {subject.name} ends in {type(error).__name__}: {error}") from error
    if says_nothing(found):
        raise Undecided(f"{card.name} of {subject.name} answers with nothing but NaN")
    judge = JUDGES.get(card.name)
    if judge is not None:
        try:
            judge.compare(Asked(subject, call, found))
        except AssertionError as error:
            raise Undecided(f"{card.name} of {subject.name} and its judge differ; {error}") from error
    held = card.held(subject.model)
    left_out = dict.fromkeys(first_sentence(str(why)) for why in _left_out(found).values())
    return Outcome("per run" if held else "exact", held, left_out=tuple(left_out), compared=judge is not None)


def outcomes(subject: Subject) -> dict[str, Outcome]:
    """Ask every analysis of a model; raises `Undecided` as `outcome` does."""
    return {card.name: outcome(card, subject) for card in cards()}


def first_sentence(message: str) -> str:
    """Return what an error says first, before it says what would work."""
    said = " ".join(message.partition("\n    ")[0].split())
    return re.split(r"(?<=[a-z)\"\d]\.)\s+(?=[A-Z])", said)[0]


def says_nothing(found: Any) -> bool:
    """Whether every number that an answer holds and draws first is NaN; of one that draws none of those, every number.

    What is derived from them, such as the share of an effect that there may not be, is not asked for.
    """
    held = {field.name for field in dataclasses.fields(cast(Any, found))} if isinstance(found, Result) else set[str]()
    shown = [getattr(found, name) for name in getattr(found, "HEADLINE", ()) if name in held] or [found]
    numbers = [values for one in shown for values in _numbers(one)]
    return bool(numbers) and all(bool(values.isnan().all()) for values in numbers)


def _numbers(found: Any) -> Iterator[Tensor]:
    if isinstance(found, float):
        yield torch.tensor(found)
    elif isinstance(found, Labelled | Tensor | Result | list | tuple | dict):
        yield from (values for values in tensors_of(found).values() if values.numel())


def _left_out(found: Any) -> Mapping[str, str]:
    return getattr(found, "left_out", {})


def built(name: str = "", **settings: Any) -> Subject:
    """Return a tiny model of two blocks, attention and an MLP in each; settings are those of `block`.

    It is a decoder, or an encoder where the mechanism needs a text whole.
    """
    # behind post-norm blocks there is nothing left to norm
    norm = NoNorm() if settings.get("wiring") == "post" else LayerNorm()
    blocks = [block(**(_BLOCK | settings))] * 2
    if getattr(settings.get("mixer"), "bidirectional", False):
        return drawn(name, EncoderConfig(11, 16, tuple(blocks), max_len=24, final_norm=norm))
    return _decoder(name, *blocks, final_norm=norm)


def _published(name: str, mixer: MixerConfig) -> Subject:
    return _decoder(name, *[published_block(mixer, i, **_BLOCK) for i in range(2)])


def _of_parts(name: str, *parts: SubLayerConfig) -> Subject:
    return _decoder(name, *[BlockConfig(parts, LayerNorm(), "pre")] * 2)


def _decoder(name: str, *blocks: BlockConfig, final_norm: NormConfig = LayerNorm()) -> Subject:  # noqa: B008  # frozen
    config = DecoderConfig(11, 16, blocks, max_len=24, final_norm=final_norm)
    return drawn(name, config)


def mechanisms() -> dict[str, tuple[str, Made]]:
    """Return every mechanism of the package with its variants and as its paper builds around it: the kind, a model."""
    found: dict[str, tuple[str, Made]] = {}
    for kind, registered in sorted(cast(dict[str, Any], MixerConfig.registry).items()):
        if not registered.__module__.startswith("glassformer."):
            continue
        for mixer in [registered(**fields) for fields in ({}, *registered.variants)]:
            found[mixer.described] = kind, partial(built, mixer.described, mixer=mixer)
        if len(registered().as_published()) > 1:
            name = f"{kind}, as published"
            found[name] = kind, partial(_published, name, registered())
    return found


def layers() -> dict[str, Made]:
    """Return what else an attention layer may be made of: heads, positions, projections, merges."""
    attention = {
        "latent": Attention(2, projection=Latent(4), positions=Rope(at_read=True)),
        "latent, with norms and a rotary key": Attention(
            2, d_head=8, d_value=6, projection=Latent(4, rotary=4, query_rank=5, norm=True), positions=Rope()
        ),
        "activated": Attention(2, projection=Activated(), positions=Rope()),
        "convolved": Attention(2, projection=Convolved(), positions=Rope()),
        "shifted": Attention(2, projection=Shifted(), positions=Rope()),
        "tied": Attention(2, projection=Tied(), positions=Rope()),
        "identity": Attention(2, projection=Tied(query="identity"), positions=Rope()),
        "general": Attention(2, projection=Tied(key="identity"), positions=Rope()),
    }
    places = cast(dict[str, Any], PositionsConfig.registry)
    settings: dict[str, dict[str, Any]] = {
        name: {"positions": kind()}
        for name, kind in places.items()
        if kind is not NoPositions and not kind.doubles and not kind.of_grid
    }
    settings |= {name: SLOTS[name] for name in ("grouped", "smeared", "gated")}
    settings |= {"bias": {"bias": True}, "clip": {"clip": 0.7}, "qk_norm": {"qk_norm": True}}
    settings |= {"key_norm": {"qk_norm": QueryKeyNorm(gains="none", of="keys")}}
    settings |= {"cosine": {"qk_norm": QueryKeyNorm(gains="none")}}
    return {name: partial(built, name, **found) for name, found in settings.items()} | {
        name: partial(_of_parts, name, part, Mlp(12)) for name, part in attention.items()
    }


def sub_layers() -> dict[str, Made]:
    """Return each kind of sub-layer beside attention."""
    kinds = cast(dict[str, Any], SubLayerConfig.registry)
    return {"attention alone": partial(_of_parts, "attention alone", _ATTENTION)} | {
        name: partial(_of_parts, name, _ATTENTION, kind())
        for name, kind in sorted(kinds.items())
        if kind is not Attention and kind.__module__.startswith("glassformer.")
    }


def models() -> dict[str, Made]:
    """The tiny models of every architecture, and a module of plain PyTorch under our names."""
    names = (*ARCHITECTURES, *ENCODERS, *IMAGES, *RECURRENT, *ALTERNATING)
    known: dict[str, Made] = {name: partial(subject, name) for name in names}
    return known | {"module with a spec": plain}


ABOUT: Mapping[str, str] = {
    "mechanism": sentence(
        "a decoder of two blocks, the mechanism and an MLP in each, with rotary positions; an encoder of such "
        "blocks where the mechanism needs a text whole"
    ),
    "attention layer": sentence("such a decoder with softmax, its attention layers made in this way"),
    "wiring": sentence("such a decoder with softmax, its blocks wired in this way"),
    "sub-layer": sentence("such a decoder with softmax, this sub-layer behind attention"),
}


def about(group: str, subject: Subject) -> str:
    """Return what a row's model is made of."""
    if group in ABOUT:
        return ABOUT[group]
    if isinstance(subject.model, Foreign):
        return sentence("a decoder in plain PyTorch, seen through a spec that names what its modules read and write")
    config = subject.model.config
    blocks = [block for stack in config.blocks.values() for block in stack]
    wirings, norms = dict.fromkeys(b.to_dict()["wiring"] for b in blocks), dict.fromkeys(b.norm.kind for b in blocks)
    parts = dict.fromkeys(
        part.mixer.described if isinstance(part, Attention) else part.kind for b in blocks for part in b.parts
    )
    return f"{config.kind}; {', '.join(wirings)}; {', '.join(norms)}; {', '.join(parts)}"


def made() -> dict[str, dict[str, Made]]:
    """Return how the model of every row is made, by group and name."""
    return {
        "mechanism": {name: model for name, (_, model) in mechanisms().items()},
        "attention layer": layers(),
        "wiring": {name: partial(built, name, wiring=name) for name in WIRINGS},
        "sub-layer": sub_layers(),
        "model": models(),
    }


def as_kind(found: Mapping[str, Outcome], name: str, kind: str | None) -> dict[str, Outcome]:
    """Return outcomes of a mechanism with settings, as reasons would call it without them."""

    def called(said: str) -> str:
        return said.replace(f'"{name}"', f'"{kind}"')

    return {
        analysis: dataclasses.replace(one, reason=called(one.reason), left_out=tuple(map(called, one.left_out)))
        for analysis, one in found.items()
    }


def table(report: Callable[[str], None] = lambda _: None) -> Table:
    """Ask every analysis of every model; variants with the outcomes of their mechanism stand in its row.

    Args:
        report: Called with the name of each model before it is asked about.
    """
    found, kinds = list[Row](), {name: kind for name, (kind, _) in mechanisms().items()}
    for group, of_group in made().items():
        for name, model in of_group.items():
            report(name)
            subject = model()
            row = Row(name, group, about(group, subject), outcomes(subject))
            kind = kinds.get(name) if group == "mechanism" else None
            own = next((i for i, known in enumerate(found) if (known.name, known.group) == (kind, group)), None)
            if own is not None and found[own].outcomes == as_kind(row.outcomes, name, kind):
                found[own] = dataclasses.replace(found[own], also=(*found[own].also, name))
            else:
                found.append(row)
    return Table(tuple(Analysis(card.name, card.room, card.question, card.judge) for card in cards()), tuple(found))


if __name__ == "__main__":
    # tiny models: a second thread costs more than it brings
    torch.set_num_threads(1)
    made_anew = table(lambda name: print(name, file=sys.stderr, flush=True))
    files.write(Path(glassformer.applicability.__path__[0]) / FILE, made_anew.to_json())
