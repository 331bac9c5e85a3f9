"""`glassformer probe`: what can be read linearly at each layer, and whether the model uses it."""

from typing import TYPE_CHECKING, Any, Literal

from glassformer.cli.arguments import model_of
from glassformer.cli.options import ModelName, Opening, Output
from glassformer.cli.output import check, deliver
from glassformer.cli.progress import progress

if TYPE_CHECKING:
    from glassformer.data.labels import LabelledText
    from glassformer.models import ModelLike


def probe(
    model: ModelName,
    /,
    *,
    label: str,
    sites: tuple[str, ...] = (),
    kind: Literal["ridge", "means", "logistic"] = "ridge",
    folds: int = 5,
    erase: bool = False,
    data: tuple[str, ...] = (),
    n: int = 64,
    length: int = 256,
    seed: int = 0,
    opening: Opening,
    output: Output,
) -> None:
    """Probe a model: fit linear probes of a property at every layer, and show what documents unseen are told.

    A label is a source and a property: python.kind, .text, .literal, .name, .brackets, .block, .node, .parent;
    zh-en.part, .phrase, .role, .depth; copies.seen, .back; senses.sense-of-model and its like; pronouns.it-means.
    Beside what is told stands what says as much without the site: the same site of an untrained model, a random vector
    for each token, the commonest class, and shuffled labels. What can be told need not be used: --erase takes it out.

    Examples:
        glassformer probe gpt-4l --label python.kind
        glassformer probe gpt-4l --label python.literal --erase --html probes.html
        glassformer probe attn-only-2l --label copies.seen --sites "blocks.*.attn.out" --json probes.json
        glassformer probe zh-en --label zh-en.role

    Args:
        label: What is asked of tokens, as SOURCE.PROPERTY.
        sites: Names or globs of sites; the stream behind each layer by default.
        kind: Of probes: least squares, the nearest class mean, or logistic regression by scikit-learn.
        folds: Documents are dealt out to so many; each is told by probes of the others.
        erase: Take the property out of each site, and say what is left of it and what next tokens then cost.
        data: Of python, where files come from: files, folders, globs; python-stdlib by default.
        n: How many documents, at most.
        length: Tokens of a document, at most; the context of the model if that is shorter.
        seed: Of documents, folds, shuffled labels and random vectors.
    """
    from glassformer.analysis import probes as room
    from glassformer.data.labels.named import split_label
    from glassformer.numerics.placement import place_of
    from glassformer.render.terminal import largest

    source, name = split_label(label)
    check(output)
    loaded = model_of(model, opening)
    texts = _labelled(loaded, source, data, n, length, seed)
    options: dict[str, Any] = {"folds": folds, "kind": kind, "seed": seed}
    options["sites"] = sites or ("*.resid_post" if loaded.reads_pairs else "resid_post")
    untrained = loaded.config.build(1).to(place_of(loaded), next(loaded.parameters()).dtype)
    with progress("probing") as report:
        found: list[Any] = [room.probe(loaded, texts, name, untrained=untrained, report=report, **options)]
    if erase:
        with progress("erasing") as report:
            found.append(room.erasure_effects(loaded, texts, name, report=report, **options))
    asked = {"label": label, "kind": kind, "folds": folds, "n": n, "length": length, "seed": seed}
    asked |= {"sites": list(sites) or None, "data": list(data) or None, "erase": erase or None}
    deliver("probe", loaded, asked, found, output, shown=[part for one in found for part in ("", largest(one, 0))][1:])


def _labelled(
    model: "ModelLike", source: str, data: tuple[str, ...], n: int, length: int, seed: int
) -> "LabelledText | tuple[LabelledText, LabelledText]":
    """Return labelled documents that fit into the context of a model; of one that reads pairs, of both sides."""
    from glassformer.analysis.labelled_rows import room_for
    from glassformer.config import require
    from glassformer.data.labels.named import labelled_text
    from glassformer.data.text.sources import STANDARD_LIBRARY
    from glassformer.models.reading import tokenizer_for

    require(not data or source == "python", f"--data is where files of Python come from, and {source} makes its text.")
    require(
        not model.reads_pairs or source == "zh-en", f"this model reads pairs of texts, which {source} does not make."
    )
    told: dict[str, Any] = {"seed": seed, "data": data or (STANDARD_LIBRARY,)}
    if not model.reads_pairs:
        fits = min(length, room_for(model, "prompt"))
        return labelled_text(source, tokenizer_for(model, model.tokenizer), n, length=fits, **told)
    of_source = labelled_text(
        source, tokenizer_for(model, model.source_tokenizer), n, length=min(length, room_for(model, "source")), **told
    )
    of_target = labelled_text(
        source, tokenizer_for(model, model.tokenizer), n, length=min(length, room_for(model, "target")),
        language="en", **told,
    )  # fmt: skip
    return of_source, of_target
