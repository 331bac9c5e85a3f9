"""Heads as addresses: the label that results print, with a quantity, is a site and a part of it, everywhere."""

import re
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn

import glassformer as gf
from glassformer.analysis import run
from glassformer.analysis.sweep import Donor, Metric, grid, logit, one_by_one, sweep
from glassformer.errors import ShapeMismatch, SiteNotRead, UnknownAxis, UnknownSite
from glassformer.testing import close
from glassformer.testing.models import ARCHITECTURES, Subject, subject
from glassformer.trace import (
    Add,
    At,
    HeadAddress,
    Read,
    Scale,
    Set,
    Take,
    Tape,
    head_label,
    head_labels,
    sites_of_heads,
)
from one_pass import in_one_pass

NAMES = ["gpt2", "llama", "differential", "lightning_hybrid", "translator_pre"]


def text(found: Subject) -> tuple[Any, ...]:
    return tuple(ids[:1] for ids in found.inputs)


@given(st.sampled_from(["", "encoder"]), st.sampled_from(["attn", "cross", "attn_1", "cross_2"]), st.integers(0, 200),
       st.integers(0, 200))  # fmt: skip
def test_a_label_reads_back_as_what_it_was_made_of(stack: str, part: str, layer: int, head: int) -> None:
    address = HeadAddress.parse(head_label(stack, part, layer, head) + ".z_scale")
    assert address == HeadAddress(stack, layer, part, head, "z_scale")
    assert HeadAddress.parse(f"blocks.{layer}.{part}.z") is None


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in NAMES else pytest.mark.full) for n in sorted(ARCHITECTURES)]
)
def test_every_head_of_every_model_is_the_slice_of_its_site(name: str) -> None:
    found = subject(name)
    labels = head_labels(found.model.sites())
    whole = run(found.model, *text(found), read="*")
    parts = run(found.model, *text(found), read=[f"{label}.*" for label in labels])
    seen = set()
    for label in labels:
        for key in (key for key in parts if key.startswith(f"{label}.")):
            (asked,) = found.model.sites().locate(key)
            value = asked.at.take(whole[asked.site.name].values, asked.site)
            # other sites are read, so the route may round otherwise
            close(parts[key].values.nan_to_num(), value.nan_to_num())
            # of a run that read the whole, the head is found by its label
            assert torch.equal(whole[key].values.nan_to_num(), value.nan_to_num())
            assert whole[key].axes == parts[key].axes and whole[key].of == parts[key].of
            assert label in parts[key].of.split(", ")
            seen.add(asked.site.name)
    by_head = {n for n, s in found.model.sites().items() if {"head", "kv_head"} & set(s.axes)}
    assert seen == by_head


@pytest.mark.parametrize("name", NAMES)
def test_an_edit_by_label_is_the_edit_at_the_site(name: str) -> None:
    found = subject(name)
    layer = "decoder.blocks.1" if name.startswith("translator") else "blocks.1"
    pairs = [
        (Scale("L1H1.z", 0.5), Scale(f"{layer}.attn.z", 0.5, at=At(head=1))),
        (Set("L1H0.z", 0.0, at=At(pos=-1)), Set(f"{layer}.attn.z", 0.0, at=At(head=0, pos=-1))),
        (Add("L1H1.value", 1.0), Add(f"{layer}.attn.value", 1.0, at=At(kv_head=shared(found, layer, 1)))),
        (Take("L1H1.z", 1), Take(f"{layer}.attn.z", 1, at=At(head=1))),
        (("L1H1.z", torch.tanh), gf.Apply(f"{layer}.attn.z", torch.tanh, at=At(head=1))),
    ]
    for by_label, by_site in pairs:
        one, other = (run(found.model, *found.inputs, edit=[edit]) for edit in (by_label, by_site))
        assert torch.equal(one.predictions(), other.predictions())
    mapping = run(found.model, *found.inputs, edit={"L1H1.z": torch.tanh})
    assert torch.equal(mapping.predictions(), run(found.model, *found.inputs, edit=[pairs[-1][1]]).predictions())


def shared(found: Subject, layer: str, head: int) -> int:
    sites = found.model.sites()
    return head * sites[f"{layer}.attn.value"].sizes["kv_head"] // sites[f"{layer}.attn.z"].sizes["head"]


def test_a_shared_key_head_says_which_heads_read_it() -> None:
    found = subject("llama")
    heads = found.model.config.layers[0].parts[0].n_heads
    groups = found.model.config.layers[0].parts[0].n_kv_heads
    assert groups < heads
    done = run(found.model, *text(found), read=["L1H1.key", "blocks.1.attn.key", "L1H0.z"])
    share = ", ".join(f"L1H{h}" for h in range(heads // groups))
    assert done["L1H1.key"].of == share and share in repr(done["L1H1.key"]) and done["L1H0.z"].of == "L1H0"
    assert done["blocks.1.attn.key"].labels("kv_head")[0] == share
    assert torch.equal(done["L1H0.key"].values, done["L1H1.key"].values)


def test_cross_attention_the_encoder_and_the_decoder_have_their_labels() -> None:
    found = subject("translator_pre")
    sites = found.model.sites()
    for label, site in {
        "enc L0H1.pattern": "encoder.blocks.0.attn.pattern",
        "L0H1.pattern": "decoder.blocks.0.attn.pattern",
        "L0X1.pattern": "decoder.blocks.0.cross.pattern",
    }.items():
        ((key, where, at, of),) = sites.locate(label)
        assert (key, where.name, at, of) == (label, site, At(head=1), label.partition(".")[0])
        assert sites.match(label) == [site] and list(found.model.sites(label)) == [site]


def test_a_second_attention_of_a_block_is_numbered() -> None:
    config = ARCHITECTURES["gpt2"]
    first = config.layers[0]  # type: ignore[attr-defined]
    twice = first.replace(parts=(first.parts[0], *first.parts))
    model = config.replace(layers=(twice, twice)).build().double().eval()  # type: ignore[call-arg]
    ((_, site, _, of),) = model.sites().locate("L1H2#2.z")
    assert (site.name, of) == ("blocks.1.attn_1.z", "L1H2#2")
    assert "L1H2#2" in head_labels(model.sites())


def test_labels_work_on_a_tape_and_in_plans_with_donors() -> None:
    found = subject("llama")
    ids, other = found.inputs[0], found.inputs[0].flip(-1)
    tape = Tape(found.model, ["L0H1.z", "blocks.1.attn.z"], [Scale("L1H0.z", 0.0)])
    found.model(ids, tape=tape)
    assert tape["L0H1.z"].axes == ("batch", "pos", "d_value") and not tape["L1H0.z"].values.any()
    heads = [f"L{layer}H{head}" for layer in range(2) for head in range(4)]
    lent = Donor(other)
    by_label = grid(lambda head: [Set(f"{head}.z", lent)], head=heads)
    by_site = grid(
        lambda head: [Set(f"blocks.{head[1]}.attn.z", lent, at=At(head=int(head[3])))],
        head=heads,
    )
    for way in (sweep, one_by_one):
        close(way(found.model, ids, by_label, logit(3)).values.values,
              way(found.model, ids, by_site, logit(3)).values.values)  # fmt: skip


def test_a_metric_may_look_at_a_head() -> None:
    found = subject("llama")
    plan = grid(lambda head: [Scale(f"L0H{head}.z", 0.0)], head=range(4))

    def size(value: torch.Tensor) -> torch.Tensor:
        return value.flatten(2).norm(dim=-1)

    by_label = Metric("z", size, site="L1H2.z", at=At(pos=-1))
    by_site = Metric("z", size, site="blocks.1.attn.z", at=At(head=2, pos=-1))
    for way in (sweep, one_by_one):
        one, other = (way(found.model, found.inputs[0], plan, metric).values.values for metric in (by_label, by_site))
        assert torch.equal(one, other)
    with pytest.raises(ShapeMismatch, match=r'metric "z" looks at one site; "L1H2\.\*" are L1H2\.query'):
        sweep(found.model, found.inputs[0], plan, Metric("z", size, site="L1H2.*"))


def test_a_run_that_read_one_head_can_be_the_value_of_an_edit_there() -> None:
    found = subject("llama")
    ids = found.inputs[0]
    part, whole = (run(found.model, ids.flip(-1), read=[name]) for name in ("L1H2.z", "blocks.1.attn.z"))
    for at in (At(), At(pos=-1), At(batch=0, pos=slice(1, 3))):
        one, other = (run(found.model, ids, edit=[Set("L1H2.z", lender, at=at)]) for lender in (part, whole))
        assert torch.equal(one.predictions(), other.predictions())
    with pytest.raises(SiteNotRead, match=r"did not read that site"):
        run(found.model, ids, edit=[Set("L1H1.z", part)])


@in_one_pass
@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("L1H9.z", r'no head "L1H9" in this model\. Nearest: "L1H3\.z"\.\n    Its heads: L0H0 to L0H3, L1H0 to L1H3'),
        ("L9H1.z", r'Nearest: "L1H1\.z"'),
        ("L1X0.pattern", r'Nearest: "L1H0\.pattern"'),
        ("enc L1H0.z", r'Nearest: "L1H0\.z"'),
        ("L1H2.patern", r'no site "L1H2\.patern" in this model\. Nearest: "L1H2\.pattern"'),
        ("L1H2.out", r'"blocks\.1\.attn\.out" is not kept by head\. Nearest: "L1H2\.head_out"'),
        ("L1H2", r"Of a head there are: (.*, )?query, key, value"),
    ],
)
def test_a_head_or_a_quantity_that_does_not_exist_is_named_with_the_nearest(asked: str, told: str) -> None:
    found = subject("gpt2")
    with pytest.raises(UnknownSite, match=told):
        run(found.model, found.inputs[0], read=[asked])
    with pytest.raises(UnknownSite, match=told):
        run(found.model, found.inputs[0], edit=[Scale(asked, 0.0)])


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("L1H9", 'Nearest: "L1H3".'),
        ("L1X0", 'Nearest: "L1H0".'),
        ("L1H2.z", 'no head "L1H2.z" in this model. Nearest: "L1H2".'),
        ("blocks.1.mlp", 'no head "blocks.1.mlp" in this model.\n    Its heads: L0H0'),
    ],
)
def test_who_asks_for_a_head_is_told_the_nearest_head(asked: str, told: str) -> None:
    table = subject("gpt2").model.sites()
    with pytest.raises(UnknownSite, match=re.escape(told)):
        sites_of_heads(table, asked)
    assert sites_of_heads(table, "L1H2") == sites_of_heads(table, "blocks.1.attn") != sites_of_heads(table, "L0H2")


def test_a_second_head_beside_the_label_is_refused() -> None:
    found = subject("llama")
    for name, at in (("L1H2.z", At(head=1)), ("L1H2.key", At(kv_head=0)), ("L1H2.key", At(head=1))):
        with pytest.raises(UnknownAxis, match=r"is of one head already, and At\("):
            run(found.model, found.inputs[0], edit=[Scale(name, 0.0, at=at)])
        with pytest.raises(UnknownAxis, match=r"is of one head already"):
            run(found.model, found.inputs[0], read=[Read(name, at=at)])


def test_a_module_without_names_for_heads_says_how_it_gets_them() -> None:
    with pytest.raises(UnknownSite, match=r"names no sites of heads(.|\n)*gf\.foreign"):
        run(nn.Linear(2, 2), torch.ones(1, 2), read=["L0H0.z"])


def test_a_module_seen_through_a_spec_has_heads_by_label() -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).double()
    spec = gf.Spec({"blocks.0.attn.z": gf.Place("0.out"), "blocks.0.attn.out": "1.out"}, {"head": 2})
    model = gf.foreign(module, spec)
    x = torch.randn(1, 3, 8, dtype=torch.float64)
    done = run(model, x, read=["L0H1.z", "blocks.0.attn.out"], edit=[Scale("L0H0.z", 0.0)])
    z = module[0](x)
    close(done["L0H1.z"].values, z[..., 4:])
    close(done["blocks.0.attn.out"].values, module[1](torch.cat((0 * z[..., :4], z[..., 4:]), -1)))
    with pytest.raises(UnknownSite, match=r'Nearest: "L0H1\.z"'):
        run(model, x, read=["L0H2.z"])


def test_several_reads_of_one_site_are_all_kept() -> None:
    found = subject("gpt2")
    name, ids = "blocks.0.attn.z", found.inputs[0]
    first, last = (Read(name, at=At(pos=pos)) for pos in (0, -1))
    size = Read(name, reduce=torch.norm)
    whole = run(found.model, ids, read=name)[name].values
    assert list(run(found.model, ids, read=[last])) == [name]
    both = run(found.model, ids, read=[first, last, last])
    assert list(both) == [f"{name}[pos=0]", f"{name}[pos=-1]"]
    every = run(found.model, ids, read=[first, name, "L0H1.z", Read("L0H1.z", at=At(pos=0)), size, "blocks.*.z"])
    assert {key for key in every if key.startswith(("L", "blocks.0"))} == {
        name, f"{name}[pos=0]", f"{name}[norm]", "L0H1.z", "L0H1.z[pos=0]",
    }  # fmt: skip
    assert torch.equal(every[name].values, whole)
    assert torch.equal(every[f"{name}[pos=0]"].values, whole[:, :, 0]) and every[f"{name}[pos=0]"].axes[1] == "head"
    assert torch.equal(every["L0H1.z[pos=0]"].values, whole[:, 1, 0])
    assert torch.equal(every[f"{name}[norm]"].values, whole.norm())


def test_a_saved_run_still_knows_what_its_parts_are_of(tmp_path: Any) -> None:
    found = subject("llama")
    done = run(found.model, *text(found), read=["L1H1.key", "blocks.0.attn.z"])
    again = gf.Run.load(done.save(tmp_path / "run"), found.model)
    assert again["L1H1.key"].of == done["L1H1.key"].of
    assert torch.equal(again["L0H2.z"].values, done["L0H2.z"].values)


def test_a_part_of_the_wrong_size_is_still_refused() -> None:
    found = subject("gpt2")
    with pytest.raises(ShapeMismatch):
        run(found.model, found.inputs[0], edit=[Set("L0H1.z", torch.zeros(3, 5, 7))])
