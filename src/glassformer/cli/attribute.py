"""`glassformer attribute`: which parts of the model, and which tokens, add to the next token."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from glassformer.cli.arguments import model_of, prompt_of, token_of
from glassformer.cli.options import Columns, Fitting, ModelName, Output, Reading, Target, Text
from glassformer.cli.output import check, deliver
from glassformer.cli.progress import progress
from glassformer.cli.prompts import clean_run, one_source, pairs_in
from glassformer.cli.tokens_read import tokens_of

if TYPE_CHECKING:
    from glassformer.models import ModelLike

Method = Literal["direct", "sources", "neurons", "saliency", "gradient", "integrated", "rollout", "alti", "norms"]
GRADIENTS = {"saliency": "saliency", "gradient": "gradient_x_input", "integrated": "integrated"}
FLOWS = ("rollout", "alti", "norms")


def attribute(
    model: ModelName,
    text: Text = None,
    /,
    answer: str | None = None,
    against: str | None = None,
    method: tuple[Method, ...] | None = None,
    pairs: Path | None = None,
    fitting: Fitting = False,
    columns: Columns = (),
    target: Target = None,
    position: int | None = None,
    norm: Literal["frozen", "live"] = "frozen",
    steps: int = 32,
    layers: bool = False,
    top: int = 12,
    *,
    opening: Reading,
    output: Output,
) -> None:
    """Attribute a next token: to the parts that write its logit (direct, sources, neurons), or to the tokens read.

    To tokens: by gradients of the logit (saliency, gradient, integrated), or by what attention mixes into the last
    state whatever the answer is (rollout, alti, norms). These answer different questions; give several to compare.

    Examples:
        glassformer attribute gpt-4l "for i in range("
        glassformer attribute gpt-4l "for i in range(" --answer len --against 1 --method direct sources neurons
        printf 'import os\\nimport sys\\nimport' | glassformer attribute attn-only-2l - --method integrated alti rollout
        glassformer attribute zh-en 我吃了一个苹果 --target "i ate an" --method direct sources
        glassformer attribute attn-only-2l --pairs pairs.csv

    Args:
        answer: The next token in question; by default what the model finds likeliest.
        against: Attribute the difference to this token.
        method: direct: every component's share of the logit; sources: heads by the token they move; neurons; saliency,
            gradient (times input), integrated (gradients); rollout, alti, norms (sizes of what heads bring). Direct and
            integrated by default.
        pairs: In place of a text, the clean prompts of a .csv, .tsv or .jsonl file: what adds to the answer over the
            wrong one, averaged. Direct only, since other methods are about the tokens of one text.
        position: The position whose next token is in question; the last by default. Negative counts from the end.
        norm: In direct, the final norm's scale as it was, or recomputed without each component.
        steps: Points of integrated gradients.
        layers: Gradients at the stream entering each layer instead of at tokens.
        top: Largest entries per table.
    """
    from glassformer import analysis
    from glassformer.analysis.places import position_in
    from glassformer.config import require

    require(method is None or bool(method), "--method needs at least one method.")
    one_source(
        text,
        pairs,
        columns,
        answer=answer,
        against=against,
        target=target,
        position=position,
        chat=opening.chat or None,
    )
    check(output)
    loaded = model_of(model, opening)
    if pairs is not None:
        require(method in (None, ("direct",)), "--pairs goes with --method direct: others are about one text's tokens.")
        _over_pairs(loaded, pairs, pairs_in(pairs, columns), fitting, norm, top, output)
        return
    assert text is not None, "one of the two was given"
    given = prompt_of(loaded, text, opening.chat)
    given_target = None if target is None else prompt_of(loaded, target)
    ids = [None if token is None else token_of(loaded, token) for token in (answer, against)]
    methods = tuple(dict.fromkeys(method or ("direct", "integrated")))
    run = analysis.run(loaded, given, given_target, read=_questions(methods))
    place = position_in(run, position)
    chosen = int(run.predictions()[0, place].argmax()) if ids[0] is None else ids[0]
    ids[0] = chosen
    found = list[Any]()
    for name in methods:
        if name in GRADIENTS:
            found.append(_by_gradient(loaded, run, name, ids, place, steps, layers))
        elif name in FLOWS:
            found.append(_flows()[name](run))
        else:
            found.append(_by_part(run, name, ids, place, norm))
    read = tokens_of(run)
    shown = [read.shown(), _heading(run, place, chosen, ids[1])]
    shown += [part for result in found for part in ("", _view(result, place, top))]
    asked = {"text": text, "chat": opening.chat or None, "target": target, "position": place, "method": list(methods)}
    words = {name: None if id is None else _name(loaded, id) for name, id in zip(("answer", "against"), ids)}
    deliver("attribute", loaded, asked | words, found, output, read, shown=shown)


def _over_pairs(model: "ModelLike", path: Path, pairs: Any, fitting: bool, norm: Any, top: int, output: Output) -> None:
    """Say what adds to the answers of many prompts over the wrong ones, on average."""
    from glassformer import analysis
    from glassformer.render.terminal import largest

    run, encoded = clean_run(model, pairs, fitting, [analysis.attribution.direct_logit_attribution])
    split = analysis.attribution.direct_logit_attribution(
        run, answer=encoded.answer, against=encoded.wrong, position=encoded.last[:, None], row=None, norm=norm
    )
    read = tokens_of(run)
    asked, shown = {"pairs": str(path), "n": len(encoded), "norm": norm}, [read.shown(), largest(split, top)]
    deliver("attribute", model, asked, [split], output, read, shown=shown)


def _questions(methods: tuple[str, ...]) -> list[Any]:
    """Return the analyses of one pass that are asked for."""
    from glassformer import analysis

    room = analysis.attribution
    asked = {"direct": room.direct_logit_attribution, "sources": room.source_effects, "neurons": room.neuron_effects}
    return [(asked | _flows())[name] for name in methods if name not in GRADIENTS]


def _flows() -> dict[str, Any]:
    from glassformer.analysis import token_flow

    return dict(zip(FLOWS, (token_flow.rollout, token_flow.alti, token_flow.value_norms)))


def _by_part(run: Any, name: str, ids: list[int | None], place: int, norm: Literal["frozen", "live"]) -> Any:
    from glassformer import analysis

    answer, against = ids
    if name == "direct":
        return analysis.attribution.direct_logit_attribution(
            run, answer=answer, against=against, position=place, norm=norm
        )
    split = analysis.attribution.source_effects if name == "sources" else analysis.attribution.neuron_effects
    # as many axes as there are for many places: files of results keep their layout
    return split(run, answer=answer, against=against, position=[place], row=None)


def _by_gradient(
    model: "ModelLike", run: Any, name: str, ids: list[int | None], place: int, steps: int, layers: bool
) -> Any:
    from glassformer import analysis

    # the same tokens as in the run: a target that was generated is not generated twice
    inputs, target = (run.ids, None) if run.source_ids is None else (run.source_ids, run.ids)
    method: Any = GRADIENTS[name]
    with progress(name) as report:
        return analysis.attribution.input_gradients(
            model, inputs, *ids, target=target, positions=(place,), method=method, steps=steps, layers=layers,
            report=report,
        )  # fmt: skip


def _name(model: "ModelLike", id: int) -> str:
    """Return what an output token is called."""
    import torch

    from glassformer.models.readable import readable_outputs

    return readable_outputs(model, torch.tensor([[id]]))[0][0]


def _heading(run: Any, place: int, answer: int, against: int | None) -> Any:
    from glassformer.render.terminal.tables import section, table, visible
    from glassformer.words import spoken, spoken_each

    logits = run.logits[0, place].double()
    grid = table(*spoken_each("", "", "logit", "probability"), left=(0, 1))
    for word, id in ((spoken("next"), answer), (spoken("against"), against)):
        if id is not None:
            grid.add_row(
                word,
                visible(_name(run.model, id)),
                f"{float(logits[id]):.3f}",
                f"{100 * float(logits.softmax(-1)[id]):.1f} %",
            )
    return section(run.model.name, grid)


def _view(result: Any, place: int, top: int) -> Any:
    from glassformer.analysis.token_flow import TokenFlow, ValueNorms
    from glassformer.render.terminal import largest, token_flow as views

    if isinstance(result, TokenFlow):
        return views.token_flow(result, place, top)
    if isinstance(result, ValueNorms):
        return views.value_norms(result, place, top)
    return largest(result, top)
