"""`glassformer heads`: a folder read, sentences printed and written, a run stopped and gone on with."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from glassformer.analysis import heads
from glassformer.checkpoints import save
from glassformer.cli import main
from glassformer.data import bytes_tokenizer
from glassformer.models import DecoderConfig, block, repeat
from glassformer.words import speaking, spoken

ASKED = ["heads", "tiny", "--corpus", "notes", "--heldout", "0.4"]


@pytest.fixture(autouse=True)
def a_small_model_and_its_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    torch.manual_seed(0)
    tokenizer = bytes_tokenizer()
    model = DecoderConfig(tokenizer.vocab_size, 8, repeat(block(n_heads=2), 1), max_len=24).build()
    model.tokenizer = tokenizer
    save(model, "tiny")
    Path("notes").mkdir()
    for i in range(24):
        Path("notes", f"{i:02}.txt").write_text(f"note {i}: " + "some words come again, and some do not. " * 6)


def done(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[str, Any]:
    assert main([*ASKED, *words, "--json", "found.json"]) == 0, capsys.readouterr().err
    return capsys.readouterr().out, json.loads(Path("found.json").read_text(encoding="utf-8"))


def test_a_folder_is_read_and_every_head_has_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    out, document = done(capsys, "--html", "found.html")
    (result,) = document["results"]
    assert document["command"] == "heads" and document["given"]["corpus"] == ["notes"]
    assert list(result["sentences"]) == ["L0H0", "L0H1"] == list(result["sequences"])
    assert result["documents"] == 24 and min(result["passages"]) > 20
    assert "Heads over" in out and "of 24 documents" in out and "sentences, tested on" in out
    # weights at random look at all keys nearly alike, and it is said
    assert all("spreads its weight" in words for words in result["sentences"].values())
    assert all(claim["holds"] and claim["passages"] == result["passages"][1] for claim in result["claims"])
    page = Path("found.html").read_text(encoding="utf-8")
    assert "HeadsOverCorpus" in page and "spreads its weight" in page


def test_the_sentence_is_said_in_chinese(capsys: pytest.CaptureFixture[str]) -> None:
    out, document = done(capsys, "--lang", "zh")
    assert "权重分散：熵为均匀行的" in out and "spreads" not in out
    assert "spreads its weight" in document["results"][0]["sentences"]["L0H0"]
    with speaking("zh"):
        assert spoken("the last line break") == "最近一个换行"


def test_ctrl_c_says_what_is_kept_and_the_same_command_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = done(capsys)[1]
    read = heads.heads_over_corpus

    def interrupted(*given: Any, report: Any, **options: Any) -> Any:
        def told(step: int, total: int) -> None:
            report(step, total)
            if step == 2:
                signal.raise_signal(signal.SIGINT)

        return read(*given, report=told, rows=8, **options)

    monkeypatch.setattr(heads, "heads_over_corpus", interrupted)
    assert main([*ASKED, "--save-to", "heads.safetensors"]) == 130
    assert "interrupted: kept after 2 batches; the same command goes on" in capsys.readouterr().err
    monkeypatch.setattr(heads, "heads_over_corpus", lambda *given, **options: read(*given, rows=8, **options))
    again = done(capsys, "--save-to", "heads.safetensors")[1]
    sums = ("shares", "measures", "claims", "sequences", "corpus")
    parted = done(capsys)[1]
    assert [again["results"][0][name] for name in sums] == [parted["results"][0][name] for name in sums]
    assert parted["results"][0]["corpus"] == whole["results"][0]["corpus"]


def test_what_cannot_be_read_twice_or_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for corpus, told in (("-", "can be read once"), ("nowhere", 'no file "nowhere"')):
        assert main(["heads", "tiny", "--corpus", corpus]) == 2
        out, err = capsys.readouterr()
        assert told in err and out == "" and "Traceback" not in err
