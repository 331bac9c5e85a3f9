"""The server: who may ask, what it says of itself, what it keeps, what comes piece by piece, and how it ends."""

import asyncio
import base64
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path
from typing import Any

import httpx2
import jsonschema
import numpy
import pytest
import torch
from starlette.testclient import TestClient

import glassformer as gf
from glassformer.analysis import Run
from glassformer.analysis.reports.attention import attention_of, pattern_sites
from glassformer.cli import main
from glassformer.labelled import Labelled
from glassformer.models import Sampling, generate, stream
from glassformer.render.page import attention_page
from glassformer.serve import Limits
from glassformer.serve.answers import Answer
from glassformer.serve.api import PatternView, from_query
from glassformer.serve.frames import ENCODINGS
from glassformer.serve.permalink import Opened
from glassformer.serve.questions import QUESTIONS
from glassformer.serve.schema import schema, text as schema_text
from glassformer.serve.worker import Busy, Lanes, Superseded, Worker
from glassformer.testing.models import subject
from served import TOKEN, Listening, Served

ROOT = Path(__file__).parents[2]
IDS = [3, 1, 4, 1, 5, 2]


def tiny(name: str = "gpt2") -> Any:
    return subject(name, batch=1, dtype=torch.float32).model


@pytest.fixture(scope="module")
def served() -> Served:
    return Served({"attn-only-2l": gf.load("attn-only-2l"), "tiny": tiny(), "pairs": tiny("translator_pre")})


# ------------------------------------------------------------------------------------------------------- who may ask


def asked(served: Served, path: str = "/api/v1/models", method: str = "GET", **headers: str) -> Any:
    """Return the answer to a request with these headers alone."""
    client = TestClient(served.app, base_url="http://127.0.0.1:8000", follow_redirects=False)
    return client.request(method, path, headers=headers)


def test_nobody_without_the_token_is_answered(served: Served) -> None:
    assert asked(served).status_code == 401
    assert asked(served, authorization="Bearer another-token-00").status_code == 401
    assert asked(served, cookie="glassformer-8000=another").status_code == 401
    assert asked(served, "/").status_code == 401 and asked(served, "/?token=x").status_code == 401
    assert asked(served, authorization=f"Bearer {TOKEN}").status_code == 200


def test_the_address_puts_the_token_into_a_cookie_and_leads_on_without_it(served: Served) -> None:
    found = asked(served, f"/?token={TOKEN}&x=1")
    assert found.status_code == 303 and found.headers["location"] == "/?x=1"
    cookie = found.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and "glassformer-8000=" in cookie
    page = asked(served, "/", cookie=cookie.partition(";")[0])
    assert page.status_code == 200
    # what its digest names may be kept, and nothing else
    (script,) = re.findall(r'src="(/explorer\.js[^"]*)"', page.text)
    address = script.replace("&amp;", "&")
    for path, kept in ((address, True), (address[:-1], False), ("/", False)):
        headers = asked(served, path, authorization=f"Bearer {TOKEN}").headers
        assert ("immutable" in headers["cache-control"]) == kept


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example:8000"},
        {"host": "127.0.0.1.evil.example"},
        {"origin": "http://evil.example"},
        {"origin": "http://127.0.0.1:9000"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_other_sites_are_not_answered_though_they_bring_the_token(headers: dict[str, str], served: Served) -> None:
    found = asked(served, authorization=f"Bearer {TOKEN}", **headers)
    assert found.status_code == 403 and found.json()["fault"]["code"] == "Refused"
    assert "access-control-allow-origin" not in found.headers


def test_every_answer_keeps_browsers_strict(served: Served) -> None:
    for path in ("/", "/api/v1/models", "/nowhere", "/api/v1/runs/x"):
        headers = asked(served, path, authorization=f"Bearer {TOKEN}").headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff" and headers["cache-control"] == "no-store"


def test_another_host_demands_a_token(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "attn-only-1l", "--host", "0.0.0.0", "--no-browser"]) == 2
    assert "--token" in capsys.readouterr().err
    assert main(["serve", "attn-only-1l", "--token", "short"]) == 2
    assert "16 characters" in capsys.readouterr().err
    assert main(["serve", "attn-only-1lx"]) == 2
    assert 'Nearest: "attn-only-1l"' in capsys.readouterr().err


def test_an_address_says_what_the_page_opens_with() -> None:
    model = tiny()
    assert Opened().fragment("m", model) == ""
    assert Opened(chapter=3).fragment("m", model) == "#learn/3"
    fragment = Opened("Zoë 中", "other", head="L0H1", key=2, chapter=3).fragment("m", model)
    begun, packed = fragment.split("1.")
    assert begun == "#learn/3/" and re.fullmatch("[A-Za-z0-9_-]+", packed)
    state = json.loads(zlib.decompress(base64.urlsafe_b64decode(packed + "=="), wbits=-15))
    # the page goes to the last token where none is named
    assert state.pop("query") > 10**9
    a, b = ({"model": "m", "text": text} for text in ("Zoë 中", "other"))
    assert state == {"a": a, "b": b, "level": 2, "head": "L0H1", "key": 2}


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            "--head L1H6 --look head",
            "--head and --look: of which text? Say it with --text, or an image with --image.",
        ),
        ("--text a --query 3", "--query: of which head? Say it with --head."),
        ("--text a --head L1H6 --key -1", "--query and --key are counted from 0."),
        ("--learn 9", "--learn is a chapter of the tour, 1 to 8; found 9."),
        ("--text a --head L0H9", 'no head "L0H9" in attn-only-1l. Nearest: "L0H7". Heads: from L0H0 to L0H7.'),
    ],
)
def test_a_page_that_cannot_be_opened_is_refused(line: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "attn-only-1l", "--no-browser", *line.split()]) == 2
    assert told in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------- the schema


def test_the_schema_in_the_repository_is_that_of_the_code() -> None:
    assert (ROOT / "web" / "schema.json").read_text(encoding="utf-8") == schema_text(), (
        "python -m glassformer.serve web/schema.json"
    )


def test_the_schema_names_every_call_that_the_server_answers(served: Served) -> None:
    """Every route is one, those of questions once for each."""
    named = {re.sub(rf"(?<=}}/)({'|'.join(QUESTIONS)})\b", "{question}", call) for call in schema()["calls"]}
    routes = served.app.app.routes  # type: ignore[union-attr]
    asked = [(method, route.path) for route in routes for method in route.methods - {"HEAD"} if "/api/" in route.path]
    assert named == {f"{method} {path.removeprefix('/api/v1/')}" for method, path in asked}


def test_what_is_refused_has_the_status_and_the_code_that_the_page_says(served: Served) -> None:
    page = (ROOT / "docs" / "server-api.md").read_text(encoding="utf-8").partition("## Faults\n")[2]
    told = re.findall(r"^\| ([\d, ]+) \| .*?`(\w+)`(?= \||.*`(\w+)` \|)", page, re.MULTILINE)
    said = {(int(status), more or code) for one, code, more in told for status in one.split(", ")}
    run = served.run("attn-only-2l", "import os")["id"]
    long = {"model": "attn-only-2l", "text": "a " * served.store.limits.text}
    found = {
        (answer.status_code, answer.json()["fault"]["code"])
        for answer in (
            served.get(f"runs/{run}/pattern/L9H9"), asked(served), asked(served, host="evil.example"),
            served.get("runs/none"), served.get("nowhere"), served.post("models"), served.post("runs", json=long),
            served.get(f"runs/{run}/neurons"),
        )
    }  # fmt: skip
    assert found <= said
    assert {status for status, _ in found} == {400, 401, 403, 404, 405, 413, 422}
    rare = {(409, "Superseded"), (501, "MissingExtra"), (503, "Busy"), (507, "OutOfMemory"), (500, "Unexpected")}
    assert said - found == rare


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_page_of_the_api_shows_what_curl_is_answered(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "server-api.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```console\n(.*?)```", page, re.DOTALL)
    typed = "\n".join(line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ "))
    listening = Listening({"attn-only-2l": lambda: gf.load("attn-only-2l")})
    try:
        said = {"TOKEN": TOKEN, "API": f"{listening.root}/api/v1"}
        done = subprocess.run(
            ["bash", "-euc", typed], cwd=tmp_path, env=os.environ | said, capture_output=True, text=True, check=True
        )
    finally:
        listening.stop()
    number = re.compile(r"(?<=,)[-.e\d]+$")
    shown = [line for line in block.splitlines() if not line.startswith("$ ")]
    printed = done.stdout.splitlines()
    assert [number.sub("", line) for line in printed] == [number.sub("", line) for line in shown]
    for line, other in zip(printed, shown):
        if number.search(line):
            assert float(number.findall(line)[0]) == pytest.approx(float(number.findall(other)[0]), rel=2e-3)


def test_cards_and_faults_are_as_the_schema_says(served: Served) -> None:
    whole = schema()

    def check(data: Any, name: str) -> None:
        jsonschema.validate(data, {"$ref": f"#/$defs/{name}", "$defs": whole["$defs"]})

    for given in (("attn-only-2l", "import os, os"), ("pairs", IDS), ("tiny", IDS)):
        more: dict[str, Any] = {"target_ids": [1, 2, 3]} if given[0] == "pairs" else {}
        change = {"edit": "scale", "site": f"{'L1X1' if more else 'L1H1'}.z", "value": 0}
        check(served.run(*given, changes=[change], **more), "RunCard")
    for card in served.ask("models"):
        check(card, "ModelCard")
    for token in served.post("tokenize", json={"model": "attn-only-2l", "text": "a = b"}).json():
        check(token, "TokenCard")
    check(served.get("runs/unknown").json()["fault"], "Fault")
    check(served.ask(f"runs/{served.run('tiny', IDS)['id']}/lens"), "Answer")


def test_cards_say_what_pictures_may_assume(served: Served) -> None:
    one = Served({"hybrid": tiny("lightning_hybrid"), "both": tiny("masked_pre"), "pairs": tiny("translator_pre")})
    cards = {}
    for name in one.models:
        one.post("models/load", json={"model": name})
    for card in one.ask("models"):
        cards[card["id"]] = [mixer for layer in card["layers"] for mixer in layer["mixers"]]
        assert all(mixer["settings"] in card["applies"] for mixer in cards[card["id"]])
    lightning, softmax = cards["hybrid"]
    assert lightning["pattern"] == "signed" and not lightning["traits"]["has_scores"] and "z" in lightning["sites"]
    assert softmax["pattern"] == "mass" and softmax["support"] == "causal" and softmax["kv_heads"] == 2
    assert cards["both"][0]["support"] == "full"
    assert [m["heads"][0] for m in cards["pairs"]] == ["enc L0H0", "enc L1H0", "L0H0", "L0X0", "L1H0", "L1X0"]
    assert cards["pairs"][3]["crosses"] and cards["pairs"][3]["support"] == "full"


def test_a_card_has_a_text_to_begin_with_if_its_model_reads_texts(served: Served) -> None:
    example = {
        name: served.post("models/load", json={"model": name}).json()["example"] for name in ("attn-only-2l", "tiny")
    }
    assert example["tiny"] == ""
    assert (
        "".join(token["text"] for token in served.run("attn-only-2l", example["attn-only-2l"])["tokens"][1:])
        == (example["attn-only-2l"])
    )


def test_the_page_on_serving_names_every_question() -> None:
    page = (ROOT / "docs" / "how-to" / "serve-a-model.md").read_text(encoding="utf-8")
    tables = "\n".join(line.partition(" | ")[0] for line in page.splitlines() if line.startswith("| `"))
    assert {name for name in QUESTIONS if f"`{name}`" not in tables} == set()
    assert {name for name in ENCODINGS if f"`{name}`" not in tables} == set()


# ------------------------------------------------------------------------------------------------------- tokens


def test_tokens_know_their_bytes_in_the_text(served: Served) -> None:
    text = 'x = "日é"  # 🙂'
    tokens = served.post("tokenize", json={"model": "attn-only-2l", "text": text}).json()
    raw = text.encode()
    for token in tokens:
        if token["span"] is not None:
            first, last = token["span"]
            assert bytes.fromhex(token["bytes"]) in raw[first:last]
    assert "".join(token["bytes"] for token in tokens) == raw.hex()


def test_names_of_special_tokens_are_letters_unless_the_tokens_are_meant(served: Served) -> None:
    spec: dict[str, Any] = {"model": "attn-only-2l", "text": "<bos>def f"}
    letters = served.post("runs", json=spec).json()
    meant = served.post("runs", json=spec | {"specials": "in-text"}).json()
    assert letters["spelled"] == ["<bos>"] and meant["spelled"] == []
    ids = gf.load("attn-only-2l").read(spec["text"], specials="in-text").output.rows[0]
    assert [token["id"] for token in meant["tokens"]] == ids != [token["id"] for token in letters["tokens"]]
    cut = served.post("tokenize", json=spec | {"specials": "in-text"}).json()
    assert [token["id"] for token in cut] == ids and cut[0]["span"] == [0, 5]
    assert "specials='in-text'" in meant["python"]


@pytest.mark.full
def test_a_translation_is_looked_at_from_both_sides() -> None:
    one = Served({"zh-en": gf.load("zh-en")})
    source = one.post("tokenize", json={"model": "zh-en", "text": "我喜欢猫", "side": "source"}).json()
    card = one.run("zh-en", "我喜欢猫")
    assert [token["id"] for token in source] == [token["id"] for token in card["source_tokens"]]
    assert [token["text"] for token in card["tokens"]][1:] == ["I", "like", "cats"]
    for head, keys in (("L1X0", "source_tokens"), ("enc L0H1", "source_tokens"), ("L0H0", "tokens")):
        told = one.ask(f"runs/{card['id']}/row/{head}/-1")
        found = one.copied(told["python"])["found"]
        assert len(told["arrays"]["weights"]["values"]) == len(card[keys])
        ours = [x for x in told["arrays"]["weights"]["values"] if x is not None]
        assert ours == pytest.approx(found["weights"].values[: len(ours)].tolist(), abs=1e-6)
    sweep = {"run": card["id"], "sweep": "ablate_heads"}
    first, *cells = lines(one.post("sweeps", json=sweep))
    found = one.copied(first["python"])["found"].values.values.flatten().tolist()
    assert [cell["value"] for cell in cells] == pytest.approx(found, abs=1e-4)
    first, *steps = lines(one.post("generate", json={"run": card["id"], "max_new_tokens": 2, "temperature": 0}))
    made = one.copied(first["python"])["found"]
    assert list(made.tokens[0]) == [step["token"]["id"] for step in steps]


# ------------------------------------------------------------------------------------------------------- streams


def lines(found: Any) -> list[dict[str, Any]]:
    assert found.status_code == 200, found.text
    return [json.loads(line) for line in found.text.splitlines()]


@pytest.mark.parametrize("sweep", ["patch_positions", "patch_heads", "ablate_heads"])
def test_a_sweep_comes_cell_by_cell_and_is_what_its_code_gives(sweep: str, served: Served) -> None:
    base, donor = served.run("tiny", IDS)["id"], served.run("tiny", [3, 1, 7, 1, 5, 2])["id"]
    changed = served.run("tiny", IDS, changes=[{"edit": "scale", "site": "L0H1.z", "value": 0}])["id"]
    for run in (base, changed):
        spec = {"run": run, "sweep": sweep, "donor": donor, "against": 4}
        first, *cells = lines(served.post("sweeps", json=spec))
        assert len(cells) == len(first["rows"]) * first["columns"]
        found = served.copied(first["python"])["found"].values.values.flatten().tolist()
        assert [cell["value"] for cell in cells] == pytest.approx(found, abs=1e-5)
        assert [(cell["i"], cell["j"]) for cell in cells][:2] == [(0, 0), (0, 1)]


def test_a_patch_of_another_length_is_refused_before_anything_is_sent(served: Served) -> None:
    base, donor = served.run("tiny", IDS)["id"], served.run("tiny", IDS[:3])["id"]
    assert served.post("sweeps", json={"run": base, "sweep": "patch_heads"}).status_code == 400
    found = served.post("sweeps", json={"run": base, "sweep": "patch_heads", "donor": donor})
    assert found.status_code == 400 and found.json()["fault"]["code"] == "ShapeMismatch"


def test_a_text_comes_token_by_token_with_what_each_stage_left(served: Served) -> None:
    card = served.run("attn-only-2l", "def f(x):\n    return")
    ids = [token["id"] for token in card["tokens"]]
    spec = {"run": card["id"], "position": 5, "max_new_tokens": 4, "temperature": 0.8, "top_k": 20, "top_p": 0.9}
    first, *steps = lines(served.post("generate", json=spec | {"seed": 3, "shown": 30}))
    sampling, model = Sampling(0.8, 20, 0.9, seed=3), served.models["attn-only-2l"]
    whole = [*stream(model, [ids[:6]], sampling, max_new_tokens=4)]
    assert [step["token"]["id"] for step in steps] == [step.tokens[0] for step in whole]
    assert tuple(step["token"]["id"] for step in steps) == served.copied(first["python"])["found"].tokens[0]
    for step, theirs in zip(steps, whole):
        assert theirs.draw is not None
        shown = [candidate["id"] for candidate in step["candidates"]]
        assert step["token"]["id"] in shown and shown[:30] == theirs.draw.stages[0].logits[0].topk(30).indices.tolist()
        assert [stage["name"] for stage in step["stages"]] == ["logits", "temperature", "top_k", "top_p"]
        for stage, its in zip(step["stages"], theirs.draw.stages):
            assert stage["kept"] == int(its.kept) == len([x for x in its.probabilities[0] if x > 0])
            assert stage["probabilities"] == pytest.approx(its.probabilities[0, shown].tolist())
            assert [x is None for x in stage["logits"]] == [p == 0 for p in stage["probabilities"]]


def test_what_is_written_is_written_under_the_changes_of_the_run(served: Served) -> None:
    change = {"edit": "add", "site": "blocks.1.resid_post", "value": [3.0] + [0.0] * 15}
    card = served.run("tiny", IDS, changes=[change])
    first, *steps = lines(served.post("generate", json={"run": card["id"], "max_new_tokens": 3, "temperature": 0}))
    model, value = served.models["tiny"], torch.tensor([3.0] + [0.0] * 15)
    edit = gf.Add("blocks.1.resid_post", value)
    whole = generate(model, [IDS], Sampling(0.0), max_new_tokens=3, edit=edit)
    assert [step["token"]["id"] for step in steps] == list(whole.tokens[0])
    assert served.copied(first["python"])["found"].tokens == whole.tokens
    beyond = served.post("generate", json={"run": card["id"], "position": 99})
    assert beyond.status_code == 400 and "the text has 6 tokens" in beyond.json()["fault"]["message"]


# ------------------------------------------------------------------------------------------------------- files


def test_sites_are_exported_as_files(served: Served, tmp_path: Path) -> None:
    card = served.run("attn-only-2l", "import os, os")
    run = served.copied(card["python"].replace("'import os, os'", "'import os, os', read='*.pattern'"))["run"]
    got = {
        form: served.get(f"runs/{card['id']}/export", params={"sites": "L1H6.pattern", "form": form}).content
        for form in ("npz", "safetensors", "csv")
    }
    ours = run["L1H6.pattern"].values
    arrays = numpy.load(io.BytesIO(got["npz"]))
    assert numpy.allclose(arrays["L1H6.pattern"], ours.numpy(), atol=1e-6)
    (tmp_path / "run.safetensors").write_bytes(got["safetensors"])
    loaded = Run.load(tmp_path / "run.safetensors")
    assert torch.allclose(loaded["blocks.1.attn.pattern"].values[:, 6], ours, atol=1e-6)
    rows = got["csv"].decode().splitlines()
    assert len(rows) == 1 + ours.numel() and float(rows[-1].rpartition(",")[2]) == pytest.approx(
        float(ours.flatten()[-1]), rel=1e-3
    )


def test_the_page_of_a_run_is_that_of_its_changes(served: Served) -> None:
    change = {"edit": "scale", "site": "L0H1.pattern", "value": 0.5}
    card = served.run("tiny", IDS, changes=[change])
    page = served.get(f"runs/{card['id']}/export", params={"form": "html"})
    assert page.headers["content-disposition"].endswith('.html"')
    model = served.models["tiny"]
    run = gf.run(model, IDS, read=pattern_sites(model), edit=[gf.Scale("L0H1.pattern", 0.5)])
    assert page.text == attention_page(attention_of(run).to_dict())
    for view in ({"form": "html", "sites": "L0H1.z"}, {"form": "npz"}):
        assert served.get(f"runs/{card['id']}/export", params=view).status_code == 400


# ------------------------------------------------------------------------------------------------------- limits


def test_what_is_too_large_is_refused_and_says_how_much_is_taken() -> None:
    one = Served({"tiny": tiny()}, Limits(text=50, tokens=8, body=500, answer=4_000, new_tokens=4))
    for address, data, said in (
        ("runs", {"model": "tiny", "ids": [1] * 9}, "8 at most"),
        ("runs", {"model": "tiny", "text": "a" * 51}, "50 at most"),
        ("runs", {"model": "tiny", "text": "a" * 600}, "500 at most"),
    ):
        found = one.post(address, json=data)
        assert found.status_code == 413 and said in found.json()["fault"]["message"]
    run = one.run("tiny", [1] * 8)["id"]
    # 4 heads of 8 x 8 pairs, scores and pattern
    one.store.models["tiny"].limits = Limits(memory=2_047)
    found = one.get(f"runs/{run}/pattern/L1H1")
    assert found.status_code == 413 and "2,048, and this server takes 2,047" in found.json()["fault"]["message"]
    assert one.get(f"runs/{run}/export", params={"sites": "*"}).status_code == 413
    assert one.post("generate", json={"run": run, "max_new_tokens": 9}).status_code == 413


def test_a_pattern_is_sent_in_a_byte_for_each_pair_that_its_mask_allows() -> None:
    labels = [f"{i}:  token" for i in range(2_048)]
    weights = torch.rand(2_048, 2_048).masked_fill(torch.ones(2_048, 2_048).triu(1).bool(), torch.nan)
    answer = Answer(
        "pattern", {"weights": Labelled(weights, ("query", "key"), {"query": labels, "key": labels})}, {}, "python"
    )
    view = from_query(PatternView, {"form": "frame", "encoding": "sqrt8", "packing": "tril"})
    assert len(answer.sent(view, Limits())[0]) <= 2_200_000


def test_memory_stays_within_its_limit_and_a_run_that_was_let_go_comes_back() -> None:
    one = Served({"tiny": tiny()}, Limits(memory=20_000))
    first = one.run("tiny", IDS)
    for i in range(24):
        run = one.run("tiny", [i % 11, *range(10)])["id"]
        one.ask(f"runs/{run}/thumbs")
        one.ask(f"runs/{run}/lens")
        assert sum(kept.nbytes for kept in one.store.runs.values()) <= 20_000
    assert one.get(f"runs/{first['id']}").status_code == 404
    # what was read of a run went before any run did
    assert len(one.store.runs) > 4
    again = one.run("tiny", IDS)
    assert again["id"] == first["id"] and again["top"] == first["top"]


# ------------------------------------------------------------------------------------------------------- workers


def test_the_latest_of_a_lane_is_answered_and_older_ones_are_dropped() -> None:
    worker, lanes, going, done = Worker("test"), Lanes(), threading.Event(), list[int]()

    async def ask(i: int) -> int:
        with lanes.turn("page/run") as turn:
            return await worker.ask(lambda: (done.append(i), i)[1], turn=turn)

    async def main() -> list[Any]:
        # what is under way keeps the others waiting
        blocked = asyncio.ensure_future(worker.ask(lambda: going.wait(10)))
        await asyncio.sleep(0)
        waiting = [asyncio.ensure_future(ask(i)) for i in range(5)]
        await asyncio.sleep(0.05)
        going.set()
        found = await asyncio.gather(*waiting, return_exceptions=True)
        await blocked
        return found

    found = asyncio.run(main())
    assert found[-1] == 4 and done == [4]
    assert all(isinstance(one, Superseded) for one in found[:-1])
    worker.stop()


def test_an_older_request_that_has_more_to_do_never_takes_the_place_of_a_newer_one() -> None:
    workers, lanes, going = [Worker("one"), Worker("other")], Lanes(), threading.Event()

    async def ask(*work: tuple[int, Any]) -> Any:
        with lanes.turn("page/run") as turn:
            return [await workers[i].ask(one, turn=turn) for i, one in work][-1]

    async def main() -> list[Any]:
        # the first is at its first part when the second comes, which has to wait
        older = asyncio.ensure_future(ask((0, lambda: going.wait(10)), (1, lambda: "old"), (0, lambda: "old")))
        await asyncio.sleep(0.05)
        newer = asyncio.ensure_future(ask((0, lambda: "new"), (0, lambda: "newest")))
        await asyncio.sleep(0.05)
        going.set()
        return [*await asyncio.gather(older, newer, return_exceptions=True)]

    older, newer = asyncio.run(main())
    assert newer == "newest" and isinstance(older, Superseded)
    for worker in workers:
        worker.stop()


def test_steps_let_other_work_through_and_end_when_nobody_listens() -> None:
    worker, made, closed = Worker("test"), list[int](), threading.Event()

    def steps() -> Any:
        try:
            for i in range(1000):
                made.append(i)
                yield i
        finally:
            closed.set()

    async def main() -> int:
        found = worker.steps(steps)
        assert [await anext(found) for _ in range(3)] == [0, 1, 2]
        between = await worker.ask(lambda: len(made))
        await found.aclose()
        return between

    assert asyncio.run(main()) == 3
    assert closed.wait(5) and len(made) <= 4
    worker.stop()


def test_a_worker_that_has_too_much_to_do_says_so() -> None:
    worker, going = Worker("test", waiting=2), threading.Event()
    for _ in range(2):
        worker.submit(lambda: going.wait(10))
    with pytest.raises(Busy, match="2 requests"):
        for _ in range(3):
            worker.submit(lambda: None)
    going.set()
    worker.stop()


def test_who_leaves_in_the_middle_of_a_stream_frees_the_worker_at_once() -> None:
    model, steps = gf.load("attn-only-2l"), list[int]()

    def slowly(*_: Any) -> None:
        steps.append(1)
        time.sleep(0.05)

    model.unembed.register_forward_hook(slowly)
    server = Listening({"attn-only-2l": lambda: model})
    client = httpx2.Client(base_url=f"{server.root}/api/v1/", headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60)
    with client:
        run = client.post("runs", json={"model": "attn-only-2l", "ids": IDS}).json()["id"]
        for address, spec in (("sweeps", {"sweep": "ablate_heads"}), ("generate", {"max_new_tokens": 200})):
            began = len(steps)
            with client.stream("POST", address, json={"run": run} | spec) as stream:
                found = stream.iter_lines()
                assert "fault" not in json.loads(next(found)) | json.loads(next(found))
                # while it goes on others are answered between its steps: 200 of them take ten seconds
                assert client.get(f"runs/{run}/row/L1H1/3").status_code == 200
            assert client.get(f"runs/{run}/row/L0H1/5").status_code == 200
            until, ended = time.monotonic() + 10, -1
            while len(steps) != ended and time.monotonic() < until:
                ended = len(steps)
                time.sleep(0.15)
            assert len(steps) == ended < began + 200
    server.stop()


# ------------------------------------------------------------------------------------------------------- a process


@pytest.mark.full
def test_a_server_says_where_it_is_drops_who_leaves_and_ends_cleanly() -> None:
    code = "import sys; from glassformer.cli import main; sys.exit(main())"
    environment = {k: v for k, v in os.environ.items() if k != "DISPLAY"} | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-c", code, "serve", "attn-only-1l"], env=environment, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None and process.stderr is not None
    try:
        told = [process.stdout.readline() for _ in range(4)]
        port, token = re.search(r"http://127\.0\.0\.1:(\d+)/\?token=(\S+)", told[1]).groups()  # type: ignore[union-attr]
        assert "ssh -L" in told[2] and "Ctrl-C" in told[3]

        def send(method: str, path: str, data: Any = None) -> socket.socket:
            body = b"" if data is None else json.dumps(data).encode()
            head = (
                f"{method} /api/v1/{path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {token}\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            )
            sock = socket.create_connection(("127.0.0.1", int(port)), timeout=30)
            sock.sendall(head.encode() + body)
            return sock

        def answer(sock: socket.socket) -> Any:
            content = b"".join(iter(lambda: sock.recv(65536), b""))
            return json.loads(content.partition(b"\r\n\r\n")[2])

        run = answer(send("POST", "runs", {"model": "attn-only-1l", "text": "import os, sys, os"}))["id"]
        sock = send("POST", "generate", {"run": run, "max_new_tokens": 200})
        assert b"200 OK" in sock.recv(4096)
        sock.close()  # in the middle of a text
        sock = send("POST", "sweeps", {"run": run, "sweep": "ablate_heads"})
        sock.recv(4096)
        sock.close()
        started = time.monotonic()
        assert answer(send("GET", f"runs/{run}/row/L0H1/3"))["facts"]["query"] == 3
        # what was left is not gone on with, and what is asked comes first
        assert time.monotonic() - started < 20
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=10) == 0
        assert "Traceback" not in process.stderr.read()
    finally:
        process.kill()
