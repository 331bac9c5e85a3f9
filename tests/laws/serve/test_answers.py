"""Every answer of the server is what the code to be copied beside it gives, on all kinds of models, changed and not."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import glassformer as gf
from glassformer.serve.questions import QUESTIONS
from glassformer.testing.models import subject
from one_pass import in_one_pass
from served import Served, agree, values_of

TINY = ("lightning_hybrid", "linear", "masked_pre", "translator_pre", "differential", "gpt2")
HEAD = {"translator_pre": "L1X2"}
CHANGES: dict[str, Any] = {
    "none": [],
    "ablated": [{"edit": "scale", "site": "blocks.1.attn.z", "value": 0, "at": {"head": 1}}],
    "set": [{"edit": "add", "site": "blocks.0.resid_post", "value": 0.5, "at": {"pos": -1}}],
}


@pytest.fixture(scope="module")
def served() -> Served:
    models = {name: subject(name, batch=1, dtype=torch.float32).model for name in TINY}
    return Served({**models, "gpt-4l": gf.load("gpt-4l"), "attn-only-2l": gf.load("attn-only-2l")})


def run_of(served: Served, name: str, changed: str = "none") -> dict[str, Any]:
    changes = [
        {**change, "site": change["site"].replace("blocks", "decoder.blocks", "translator" in name)}
        for change in CHANGES[changed]
    ]
    if name in TINY:
        more = {"target_ids": [1, 4, 7, 2]} if "translator" in name else {}
        return served.run(name, [3, 1, 4, 1, 5, 3, 1], changes=changes, **more)
    return served.run(name, "def f(x):\n    return f", changes=changes)


def addresses(name: str, run: str) -> Iterator[tuple[str, str]]:
    """Every question with an address it is asked at."""
    head = HEAD.get(name, "L1H1")
    for question, one in QUESTIONS.items():
        yield (
            question,
            {
                "run": f"runs/{run}/{question}",
                "head": f"runs/{run}/{question}/{head}",
                "row": f"runs/{run}/{question}/{head}/-1",
                "model": f"models/{name}/{question}",
                "head of a model": f"models/{name}/{question}/{head}",
            }[one.of],
        )


def check(served: Served, name: str, changed: str) -> tuple[int, int]:
    """Compare every answer with its code; return how many were answered and refused."""
    run, answered, refused = run_of(served, name, changed)["id"], 0, 0
    for question, address in addresses(name, run):
        found = served.get(address, params={"form": "frame"})
        if found.status_code == 422:
            refused += 1
            continue
        assert found.status_code == 200, (address, found.text)
        told = served.ask(address)
        copied = served.copied(told["python"])["found"]
        for array, sent in served.arrays(address).items():
            computed = values_of(copied, array)
            if question == "thumbs":
                assert sent.shape == computed.shape
            agree(sent, computed)
        answered += 1
    return answered, refused


@in_one_pass
@pytest.mark.parametrize("name", ["lightning_hybrid", "translator_pre"])
def test_every_answer_is_what_its_code_gives(name: str) -> None:
    one = Served({name: subject(name, batch=1, dtype=torch.float32).model})
    answered, _ = check(one, name, "ablated")
    assert answered >= 9


@pytest.mark.full
@pytest.mark.parametrize("changed", CHANGES)
@pytest.mark.parametrize("name", [*TINY, "gpt-4l", "attn-only-2l"])
def test_so_it_is_of_every_model_and_change(name: str, changed: str, served: Served) -> None:
    answered, _ = check(served, name, changed)
    assert answered >= 8


@pytest.mark.full
def test_so_it_is_of_a_folder(tmp_path: Path) -> None:
    folder = str(gf.save(subject("llama", batch=1, dtype=torch.float32).model, tmp_path / "of-mine"))
    one = Served({folder: gf.load(folder)})
    assert list(one.store.models) == ["of-mine"]
    run = one.run("of-mine", [3, 1, 4, 1, 5])["id"]
    for address in ("pattern/L1H1", "lens", "attribution", "row/L0H2/2"):
        told = one.ask(f"runs/{run}/{address}")
        assert f"gf.load({folder!r})" in told["python"]
        names: dict[str, Any] = {}
        exec(told["python"], names)
        for array, sent in one.arrays(f"runs/{run}/{address}").items():
            agree(sent, values_of(names["found"], array))


def test_what_a_mechanism_does_not_define_is_refused_in_the_librarys_words(served: Served) -> None:
    run = run_of(served, "linear")["id"]
    found = served.get(f"runs/{run}/pattern/L1H1", params={"stage": "scores"})
    assert found.status_code == 422 and "without scores" in found.json()["fault"]["message"]
    found = served.get("models/linear/circuit/L1H1", params={"circuit": "QK"})
    assert found.status_code == 422 and "not bilinear" in found.json()["fault"]["message"]
    row = served.ask(f"runs/{run}/row/L1H1/-1")
    assert set(row["arrays"]) == {"weights", "value_weighted"} and "scores" in row["facts"]["left_out"]


def test_what_the_mask_hides_is_no_zero(served: Served) -> None:
    for name in ("gpt2", "linear", "attn-only-2l"):
        sent = served.arrays(f"runs/{run_of(served, name)['id']}/pattern/L1H1")["weights"]
        assert bool(sent.triu(1).isnan().logical_or(torch.ones_like(sent).tril().bool()).all())
        assert bool(sent.tril().isfinite().all())


def test_weighted_values_are_those_of_the_analysis(served: Served) -> None:
    run = run_of(served, "attn-only-2l")["id"]
    sent = served.arrays(f"runs/{run}/pattern/L1H6", stage="value_weighted")["value_weighted"]
    norms = gf.analysis.token_flow.value_norms(served.models["attn-only-2l"], "def f(x):\n    return f")
    agree(sent, norms.weighted.select(head="L1H6").values)


def test_a_path_begins_at_zero_and_ends_at_its_token(served: Served) -> None:
    for name, places in (("gpt-4l", 8), ("translator_pre", 6)):
        run = run_of(served, name, "ablated" if name == "translator_pre" else "none")["id"]
        for position, site in ((2, None), (-1, served.ask(f"runs/{run}/plane")["facts"]["places"][1])):
            view = {"position": position} | ({} if site is None else {"site": site})
            found = served.arrays(f"runs/{run}/plane", **view)
            ends = found["zero"] + found["writes"].sum(0)
            torch.testing.assert_close(ends, found["points"][position], rtol=1e-4, atol=1e-3)
            assert len(served.ask(f"runs/{run}/plane")["facts"]["places"]) > places


def test_the_rows_of_all_heads_are_those_of_each(served: Served) -> None:
    run = run_of(served, "gpt2")["id"]
    rows = served.arrays(f"runs/{run}/rows", position=2)
    for path, lines in rows.items():
        for head, line in enumerate(lines):
            one = served.arrays(f"runs/{run}/row/L{path.split('.')[1]}H{head}/2")["weights"]
            assert torch.equal(line.nan_to_num(), one.nan_to_num()) and int(line.isfinite().sum()) == 3
    found = served.get(f"runs/{run_of(served, 'translator_pre')['id']}/rows", params={"position": 4})
    assert found.status_code == 400 and "the text has 4 tokens" in found.json()["fault"]["message"]


def test_two_runs_are_subtracted(served: Served) -> None:
    one, other = (run_of(served, "attn-only-2l", changed)["id"] for changed in ("ablated", "none"))
    for address in ("pattern/L1H6", "row/L1H6/3", "lens", "attribution"):
        whole, less = (
            served.arrays(f"runs/{run}/{address}", **({"answer": 5} if address in ("lens", "attribution") else {}))
            for run in (one, other)
        )
        view = {"answer": 5} if address in ("lens", "attribution") else {}
        found = served.arrays(f"runs/{one}/{address}", minus=other, **view)
        copied = served.copied(served.ask(f"runs/{one}/{address}", minus=other, **view)["python"])["found"]
        assert found and found.keys() == copied.keys()
        for name, value in found.items():
            agree(value, whole[name] - less[name])
            agree(value, values_of(copied, name))
    shorter = served.run("attn-only-2l", "def f")["id"]
    assert served.get(f"runs/{one}/lens", params={"minus": shorter}).status_code == 400
    for address in ("plane", "query-key-plane/L1H1/-1"):
        refused = served.get(f"runs/{one}/{address}", params={"minus": other})
        assert refused.status_code == 400 and "axes of their own" in refused.json()["fault"]["message"]


def test_a_difference_is_of_one_logit_though_each_run_has_a_likeliest_of_its_own() -> None:
    own = Served({"gpt2": subject("gpt2", batch=1, dtype=torch.float32).model})
    cards = [own.run("gpt2", [3, 1, 4, last]) for last in range(8)]
    likeliest = {card["top"][-1]["ids"][0]: card["id"] for card in cards}
    (one, a), (_, b), *_ = likeliest.items()
    for question in ("attribution", "neurons", "sources"):
        found = own.arrays(f"runs/{a}/{question}", minus=b)
        asked = (own.arrays(f"runs/{run}/{question}", answer=one) for run in (a, b))
        whole, less = (next(asked) for _ in range(2))
        for name, value in found.items():
            agree(value, whole[name] - less[name])
    assert own.get(f"runs/{a}/lens", params={"minus": b}).status_code == 400
    assert "top_probability" not in own.arrays(f"runs/{a}/lens", minus=b, answer=one)


def test_two_models_are_compared_and_patched_where_they_read_the_same_tokens(served: Served) -> None:
    models = {name: subject("gpt2", batch=1, dtype=torch.float32, seed=seed).model for seed, name in enumerate("ab")}
    own = Served(models | {"pairs": subject("translator_pre", batch=1, dtype=torch.float32).model})
    a, b, c = (own.run("a", [3, 1, 4]), own.run("b", [3, 1, 4]), own.run("b", [3, 1, 5]))
    difference = own.ask(f"runs/{b['id']}/lens", minus=a["id"], answer=3)
    found = own.copied(difference["python"])["found"]
    agree(torch.tensor(difference["arrays"]["entropy_bits"]["values"]), values_of(found, "entropy_bits"))
    refused = own.get(f"runs/{c['id']}/lens", params={"minus": a["id"], "answer": 3})
    assert refused.status_code == 400 and "at position 2" in refused.json()["fault"]["message"]
    # a pattern of one model in the other, as it is copied in Python
    change = {"edit": "set", "site": "L0H1.pattern", "value": {"run": a["id"]}}
    card = own.run("b", [3, 1, 4], changes=[change])
    ours = [row["log_probs"][0] for row in card["top"]]
    assert ours != [row["log_probs"][0] for row in b["top"]]
    run = own.copied(card["python"])["run"]
    assert ours == pytest.approx(run.logits[0].log_softmax(-1).amax(-1).tolist(), abs=1e-4)
    sent = own.post("sweeps", json={"run": card["id"], "sweep": "patch_heads", "donor": a["id"]})
    first, *cells = map(json.loads, sent.text.splitlines())
    swept = own.copied(first["python"])["found"].values.values.flatten().tolist()
    assert [cell["value"] for cell in cells] == pytest.approx(swept, abs=1e-5)


def test_one_number_changed_in_the_model_changes_what_is_sent() -> None:
    model = subject("gpt2", batch=1, dtype=torch.float32).model
    own, addresses_ = Served({"gpt2": model}), ("pattern/L1H1", "row/L1H1/3", "vectors/L1H1/3", "lens", "attribution")

    def sent() -> tuple[str, list[dict[str, torch.Tensor]]]:
        run = own.run("gpt2", [1, 2, 3, 4])["id"]
        return run, [own.arrays(f"runs/{run}/{address}") for address in addresses_]

    run, before = sent()
    with torch.no_grad():
        model.output_stack.blocks[1].part("attn").projection.qkv.weight.mul_(2)
    other, after = sent()
    assert run != other
    for one, two in zip(before, after):
        assert any(not torch.equal(one[name].nan_to_num(), two[name].nan_to_num()) for name in one)
    # nothing of what was computed with the other weights is left in it
    fresh = Served({"gpt2": model})
    again = fresh.run("gpt2", [1, 2, 3, 4])["id"]
    assert again == other
    for address, arrays in zip(addresses_, after):
        for name, value in fresh.arrays(f"runs/{again}/{address}").items():
            agree(arrays[name], value)
    assert own.get(f"runs/{run}/lens").status_code == 404


def test_what_no_run_has_is_refused_with_what_there_is(served: Served) -> None:
    run = run_of(served, "gpt2")["id"]
    for address, view, said in (
        ("row/L0H0/20", {}, "the axis has 7 entries"),
        ("column/L0H0/-8", {}, "the axis has 7 entries"),
        ("pattern/L0H0", {"window": "5,5,0,3", "size": 2}, "no pair of positions"),
        ("pattern/L0H0", {"window": "0,3,9,12"}, "no pair of positions"),
        ("thumbs", {"layers": "5,9"}, "Layers with attention: 0, 1"),
    ):
        found = served.get(f"runs/{run}/{address}", params=view)
        assert found.status_code == 400 and said in found.json()["fault"]["message"], found.text


def test_a_run_borrows_from_another(served: Served) -> None:
    text, other = "def f(x):\n    return f", "def g(y):\n    return y"
    donor = served.run("attn-only-2l", other)
    for value in ({"run": donor["id"]}, {"run": donor["id"], "mean": ["pos"]}):
        change = {"edit": "set", "site": "L1H6.z", "value": value}
        card = served.run("attn-only-2l", text, changes=[change])
        run = served.copied(card["python"])["run"]
        ours = [row["log_probs"][0] for row in card["top"]]
        assert ours == pytest.approx(run.logits[0].log_softmax(-1).amax(-1).tolist(), abs=1e-4)
        assert card["blocks_run"] == 2 or card["blocks_run"] == 1


def test_changes_run_from_where_they_are_and_the_same_spec_is_the_same_run(served: Served) -> None:
    bare = served.run("gpt-4l", "import os, sys, os")
    again = served.run("gpt-4l", "import os, sys, os")
    assert again["id"] == bare["id"] and again["milliseconds"] == bare["milliseconds"]
    change = {"edit": "scale", "site": "L3H6.z", "value": 0}
    card = served.run("gpt-4l", "import os, sys, os", changes=[change])
    assert (card["blocks_run"], card["blocks"]) == (1, 4)
    run = served.copied(card["python"])["run"]
    top = torch.tensor([row["ids"][0] for row in card["top"]])
    assert torch.equal(top, run.logits[0].argmax(-1))


@pytest.mark.gpu
@pytest.mark.parametrize("changed", list(CHANGES))
@pytest.mark.parametrize("name", TINY)
def test_a_model_on_a_gpu_gives_every_answer_of_the_cpu(name: str, changed: str) -> None:
    model = subject(name, batch=1, dtype=torch.float32).model
    here, there = Served({name: model}), Served({name: copy.deepcopy(model).to("cuda")})
    near = [address for _, address in addresses(name, run_of(here, name, changed)["id"])]
    far = [address for _, address in addresses(name, run_of(there, name, changed)["id"])]
    compared = 0
    for at, other in zip(near, far, strict=True):
        codes = [client.get(asked).status_code for client, asked in ((here, at), (there, other))]
        assert codes in ([200, 200], [422, 422]), (at, codes)
        if codes == [200, 200]:
            torch.testing.assert_close(there.arrays(other), here.arrays(at), rtol=1e-3, atol=1e-4, equal_nan=True)
            compared += 1
    assert compared > 8
