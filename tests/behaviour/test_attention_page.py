"""What every head looks at, of any model: the page, the table and the document hold the patterns that were read."""

import json
import re
from typing import Any

import pytest
import torch

import glassformer as gf
from explanations import weights
from glassformer.analysis.paths import score_paths
from glassformer.analysis.reports.attention import attention_of, pattern_sites
from glassformer.attention import Alibi, Rope, Softmax
from glassformer.attention.mechanisms import Differential
from glassformer.cli import main
from glassformer.errors import AnalysisUnavailable, SiteNotRead
from glassformer.models import DecoderConfig, EncoderConfig, Mlp, block, repeat

ENCODER = EncoderConfig(20, 16, repeat(block(n_heads=2, mlp=Mlp(24), positions=Rope()), 2), max_len=16, predicts=False)


def test_an_encoder_without_a_head_for_its_vocabulary_has_a_page(tmp_path):
    model = ENCODER.build(0).eval()
    run = gf.run(model, [[3, 1, 4, 1, 5], [9, 2]], read=pattern_sites(model))
    assert run.logits is None
    text = run.html(tmp_path / "page.html").read_text(encoding="utf-8")
    payload = text.partition('id="attention">')[2].partition("</script>")[0]
    document = json.loads(payload)
    assert [token["text"] for token in document["tokens"]] == ["3", "1", "4", "1", "5"]
    assert [entry["label"] for entry in document["patterns"]] == ["L0H0", "L0H1", "L1H0", "L1H1"]
    for entry in document["patterns"]:
        own = run[f"{entry['label']}.pattern"][0]
        assert torch.allclose(torch.tensor(weights(entry)), own.values, atol=entry["scale"] / 65_000)
    other = attention_of(run, 1)
    assert other.texts["tokens"] == ["9", "2"] and {p.weights.shape for p in other.patterns} == {(2, 2)}


def test_both_stacks_and_cross_attention_are_drawn_with_their_own_tokens():
    model = gf.load("zh-en")
    run = gf.run(model, [1, 2, 3], [4, 5], read=pattern_sites(model))
    found = attention_of(run)
    sides = {(p.stack, p.part): (p.query, p.key) for p in found.patterns}
    assert sides["encoder", "attn"] == ("source_tokens", "source_tokens")
    assert sides["decoder", "attn"] == ("tokens", "tokens") and sides["decoder", "cross"] == ("tokens", "source_tokens")
    assert all(p.weights.shape == (len(found.texts[p.query]), len(found.texts[p.key])) for p in found.patterns)


def test_what_was_not_read_or_has_no_pattern_is_said(capsys):
    model = ENCODER.build(0).eval()
    run = gf.run(model, [[3, 1, 4]], read="blocks.1.attn.pattern")
    (note,) = [note for note in attention_of(run).notes if "not read" in str(note)]
    assert "There is no picture of blocks.0.attn." in str(note)
    with pytest.raises(SiteNotRead, match=r"Run again with read="):
        attention_of(gf.run(model, [[3, 1, 4]]))
    run.show()
    assert "L1H0" in capsys.readouterr().out


def test_a_pass_that_overflows_has_no_picture(tmp_path, capsys):
    model: Any = gf.load("attn-only-1l")
    with torch.no_grad():
        model.embed.matrix.mul_(1e38)
    gf.save(model, tmp_path / "model")
    with pytest.raises(AnalysisUnavailable, match="of this pass: NaN or infinite"):
        gf.run(model, "a b", read=pattern_sites(model)).html(tmp_path / "page.html")
    line = [
        "attention",
        str(tmp_path / "model"),
        "a b",
        "--json",
        str(tmp_path / "a.json"),
        "--html",
        str(tmp_path / "a"),
    ]
    assert main(line) == 2
    found = capsys.readouterr()
    assert "NaN or infinite" in found.err and "nan" not in found.out
    assert not (tmp_path / "a.json").exists() and not (tmp_path / "page.html").exists()


def test_the_command_writes_page_and_document(tmp_path, capsys):
    page, document = tmp_path / "page.html", tmp_path / "found.json"
    line = ["attention", "attn-only-1l", "import os", "--html", str(page), "--json", str(document), "--lang", "zh"]
    assert main(line) == 0
    out = capsys.readouterr().out
    assert "最后一个查询" in out and "L0H0" in out
    assert 'lang="zh"' in page.read_text(encoding="utf-8")
    assert json.loads(document.read_text(encoding="utf-8"))["format"] == "glassformer.attention"
    assert main(["attention", "attn-only-1l"]) == 2
    assert "give a text" in capsys.readouterr().err


MIXERS = {"softmax": Softmax(), "capped": Softmax(cap=0.5), "differential": Differential()}


@pytest.mark.parametrize("mixer", MIXERS)
def test_the_command_says_why_a_head_looks_there(mixer, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    layer = block(MIXERS[mixer], n_heads=2, mlp=Mlp(12), positions=Alibi())
    model = DecoderConfig(20, 16, repeat(layer, 2), max_len=16).build(0).eval()
    for parameter in model.parameters():
        # as they are drawn, scores are too small to be told apart
        parameter.data *= 5
    name, capped = str(gf.save(model, tmp_path / "model")), mixer == "capped"
    line, site = ["attention", name, "3 1 4 1 5", "--head", "L1H1"], "L1H1.scores_raw" if capped else "L1H1.scores"
    assert main([*line, "--json", "found.json", "--html", "page.html", "--top", "3"]) == 0
    out = capsys.readouterr().out
    run = gf.run(model, [[3, 1, 4, 1, 5]], read=[score_paths, "L1H1.pattern", site])
    # from the last query at the key it looks at most
    key = int(run["L1H1.pattern"].values[0, -1].abs().argmax())
    document = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert (document["given"]["query"], document["given"]["key"]) == (4, key)
    (found,), expected = document["results"], score_paths(run, head="L1H1", query=-1, key=key)
    for field in ("queries", "keys", "classes", "total"):
        values = found[field]["values"] if isinstance(found[field], dict) else found[field]
        assert torch.allclose(torch.tensor(values), getattr(expected, field).values, atol=1e-5)
    # to three decimals, the last of which another sum may round the other way
    printed, signed = (
        torch.tensor([*map(float, re.findall(sign + r"\d+\.\d{3}\b", out))]) for sign in ("[+-]?", "[+-]")
    )
    for score in run[site].values[0, ..., -1, key].reshape(-1):
        assert ((printed - score).abs() < 1e-3).sum() >= 2 and ((signed - score).abs() < 1e-3).any()
    (_, largest), *_ = expected.terms.top(1, by_size=True)
    assert ((signed - largest).abs() < 1e-3).any()
    assert "ScorePaths" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert main([*line, "--query", "1", "--key", "2"]) == 2
    assert "L1H1 sees no key 2 from query 1: it is masked. It sees 2, from 0 to 1." in capsys.readouterr().err
    assert main(["attention", name, "3 1", "--key", "0"]) == 2
    assert "say which with --head" in capsys.readouterr().err
