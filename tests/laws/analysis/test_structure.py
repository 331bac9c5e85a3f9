"""Sub-layers, sites and models say where they lie, and nothing else has to be asked how a block is wired."""

import ast
import importlib
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import glassformer as gf
from glassformer.analysis._run import run
from glassformer.analysis.attribution._direct_logit_attribution import attribution_sites
from glassformer.errors import AnalysisUnavailable, GlassformerError
from glassformer.models import Model, written_before
from glassformer.testing.models import ARCHITECTURES, ENCODERS, subject
from glassformer.trace import Site, Tape

SOURCE = Path(gf.__file__).parent
NAMES = [*ARCHITECTURES, *ENCODERS]
ROOMS = (
    "attribution", "behaviour", "causal", "circuits", "from_weights", "frozen", "gradients", "heads", "learning",
    "lens", "paths", "reports", "subspaces", "sweep", "token_flow", "vocabulary",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_sub_layers_put_the_stream_together_again(name: str) -> None:
    found = subject(name)
    model: Model = found.model
    tape = Tape(model, [site for layer in _sub_layers(model) for site in _sites(layer)])
    model(*found.inputs, tape=tape)
    for stack in model.stacks:
        x: Any = None
        entry: Any = None
        for layer in model.sub_layers(stack):
            seen = tape.values[layer.at_stream]
            entry = seen if layer.entry == layer.index else entry
            x = seen if x is None or layer.entry == layer.index else x
            assert seen is not None and torch.equal(seen, entry)
            read = seen if layer.before is None else layer.before(seen)
            torch.testing.assert_close(tape.values[layer.at_read], read)
            out = tape.values[layer.at_out]
            added = out if layer.write_norm is None else layer.write_norm(out)
            torch.testing.assert_close(tape.values[layer.at_write], added)
            x = x + added
            if layer.at_sum is not None:
                torch.testing.assert_close(tape.values[layer.at_sum], x)
            x = x if layer.stream_norm is None else layer.stream_norm(x)
            if layer.place == len(layer.block.names) - 1 or (layer.entry == layer.index and not _shared(model, layer)):
                torch.testing.assert_close(tape.values[layer.at_behind], x)


def _shared(model: Model, layer: Any) -> bool:
    return sum(other.entry == layer.entry for other in model.sub_layers(layer.stack)) > 1


def _sub_layers(model: Model) -> list[Any]:
    return [layer for stack in model.stacks for layer in model.sub_layers(stack)]


def _sites(layer: Any) -> list[str]:
    found = [layer.at_stream, layer.at_read, layer.at_out, layer.at_write, layer.at_sum, layer.at_behind]
    return [site for site in found if site is not None]


@pytest.mark.parametrize("name", NAMES)
def test_what_was_written_before_a_place_is_what_comes_before_it_in_the_pass(name: str) -> None:
    model: Model = subject(name).model
    order = {site: i for i, site in enumerate(model.sites())}
    for stack in model.stacks:
        layers = model.sub_layers(stack)
        for place in [site for block in model.stacks[stack].blocks for site in block.at_resid]:
            before = [layer.path for layer in layers if order[layer.at_behind] <= order[place]]
            assert [layer.path for layer in written_before(layers, place)] == before
        for layer in layers:
            assert [other.path for other in layers if layer.reads(other)] == [o.path for o in layers[: layer.entry]]


@pytest.mark.parametrize("name", NAMES)
def test_every_site_says_where_it_lies(name: str) -> None:
    model: Model = subject(name).model
    for site in model.sites().values():
        block = [] if site.layer is None else ["blocks", str(site.layer)]
        assert ".".join(filter(None, (site.stack, *block, site.part, site.quantity))) == site.name
        assert site == Site.named(
            site.name, site.axes, site.sizes, site.layer, lazy=site.lazy, read_only=site.read_only
        )
    for layer in _sub_layers(model):
        for site in [site for site in model.sites().values() if site.name.startswith(f"{layer.path}.")]:
            assert (site.stack, site.layer, site.part) == (layer.stack, layer.layer, layer.name)
            assert (site.role, site.crosses) == (layer.role, layer.crosses)


def _calls(tree: ast.AST, methods: set[str]) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in methods:
            yield node


def _files(*without: str) -> list[Path]:
    found = [path for path in sorted(SOURCE.rglob("*.py"))]
    return [path for path in found if not str(path.relative_to(SOURCE)).startswith(without)]


def test_nothing_outside_the_models_asks_a_block_for_its_wiring() -> None:
    # what translates a config into that of another layout reads the config's own field
    for path in _files("models/", "checkpoints/families/"):
        if ".wiring" not in (text := path.read_text()):
            continue
        asked = [n.lineno for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Attribute) and n.attr == "wiring"]
        assert not asked, f"{path}: lines {asked}; ask a SubLayer: before, after, after_on, entry"


@pytest.mark.full
def test_only_the_tape_takes_names_of_sites_apart() -> None:
    methods = {"startswith", "endswith", "removeprefix", "removesuffix", "split", "rsplit", "partition", "rpartition"}
    words = {"encoder", "decoder", "blocks", "embed", "final", "logits", "attn", "cross", "mlp", "pattern", "out"}
    for path in _files("trace/", "checkpoints/", "data/"):
        for call in _calls(ast.parse(path.read_text()), methods):
            given = [n.value for a in call.args for n in ast.walk(a) if isinstance(n, ast.Constant)]
            apart = {word for text in given if isinstance(text, str) for word in text.strip("._").split(".")}
            assert not apart & words, f"{path}:{call.lineno}: ask the Site: stack, layer, part, role, quantity"


def _asked_of_models() -> dict[str, Callable[..., Any]]:
    found: dict[str, Callable[..., Any]] = {"run": gf.run, "explain": gf.explain}
    for room in ROOMS:
        module = importlib.import_module(f"glassformer.analysis.{room}")
        for name, function in vars(module).items():
            if not name.startswith("_") and inspect.isfunction(inspect.unwrap(function)):
                first = next(iter(inspect.signature(function).parameters), None)
                found |= {f"{room}.{name}": function} if first == "model" else {}
    return found


# what stands beside the model has to be what it is, or whoever checks annotations comes first
BESIDE: dict[str, Any] = {
    "ids": torch.ones(1, 4, dtype=torch.long), "subjects": [torch.ones(2, dtype=torch.long)], "heads": ["L0H0"],
    "inputs": "a b", "text": "a b", "answer": "a", "head": "L0H0", "writer": "token", "reader": "unembed",
    "subject": "a", "clean": "a b", "corrupt": "a c", "base": "a b", "plan": [[]], "batches": [], "metric": sum,
    "edges": [], "prompts": ["a b"], "sender": "L0H0", "receivers": ["logits"], "first": 0, "second": 1, "layers": [0],
}  # fmt: skip


def _arguments(function: Callable[..., Any]) -> tuple[list[Any], dict[str, Any]] | None:
    """Return what else a function cannot do without; None if that is more than plain values."""
    needed = [p for p in list(inspect.signature(function).parameters.values())[1:] if p.default is p.empty]
    needed = [p for p in needed if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if any(p.name not in BESIDE for p in needed):
        return None
    plain = [BESIDE[p.name] for p in needed if p.kind != p.KEYWORD_ONLY]
    return plain, {p.name: BESIDE[p.name] for p in needed if p.kind == p.KEYWORD_ONLY}


ASKED = {name: function for name, function in _asked_of_models().items() if _arguments(function) is not None}


@pytest.fixture(scope="module")
def no_models() -> list[Any]:
    return ["gpt2", 3, None, run(subject("gpt2").model, [1, 2, 3])]


@pytest.mark.parametrize("name", list(ASKED))
def test_what_is_no_model_is_refused_in_words_whoever_checks_first(name: str, no_models: list[Any]) -> None:
    plain, named = _arguments(ASKED[name]) or ([], {})
    for given in no_models:
        # as it is, under the checker of annotations, and as it runs without
        for called in (ASKED[name], inspect.unwrap(ASKED[name])):
            with pytest.raises(GlassformerError, match=r"\n    |give"):
                called(given, *plain, **named)


def test_a_module_without_a_spec_is_told_what_any_module_offers() -> None:
    with pytest.raises(AnalysisUnavailable, match="a spec says what it"):
        attribution_sites(nn.Linear(2, 2))  # type: ignore[arg-type]
    with pytest.raises(AnalysisUnavailable, match=r"It carries its model: give it \.model"):
        attribution_sites(run(subject("gpt2").model, [1, 2, 3]))  # type: ignore[arg-type]
    with pytest.raises(AnalysisUnavailable, match="Load a model first"):
        attribution_sites("gpt2")  # type: ignore[arg-type]
