"""What came from memory, features, the backward grid and verdicts, as they are sent, are the library's own."""

from pathlib import Path
from typing import Any

import pytest
import torch

import glassformer as gf
from glassformer.analysis.dictionaries import TopK, attach, save_dictionary
from glassformer.analysis.gradients import backward_lens
from glassformer.analysis.reports import explain
from glassformer.attention import NearestMemory, NeuralMemory, Persistent, SegmentRecurrence
from glassformer.models import DecoderConfig, Mlp, block
from glassformer.study.atlas import atlas, tally
from glassformer.testing import close
from glassformer.testing.models import drawn, subject
from served import Served, agree, values_of

IDS = [3, 1, 4, 1, 5, 9, 2, 6]
SITE = "blocks.0.resid_post"


def asked(served: Served, address: str, **view: Any) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Return the facts and the arrays of an answer, which its code gives too."""
    told, arrays = served.ask(address, **view), served.arrays(address, **view)
    found = served.copied(told["python"])["found"]
    for name, sent in arrays.items():
        agree(sent, values_of(found, name))
    return told["facts"], arrays


def test_what_came_from_memory_is_what_an_explanation_says() -> None:
    mixers = Persistent(), NearestMemory(), SegmentRecurrence(segment=3), NeuralMemory()
    layers = tuple(block(mixer, n_heads=2) for mixer in mixers)
    config = DecoderConfig(vocab_size=11, max_len=32, d_model=16, layers=layers)
    model = drawn("memories", config, batch=1, dtype=torch.float32).model
    served = Served({"m": model})
    run = served.run("m", IDS)["id"]
    for position in (4, len(IDS) - 1):
        _, arrays = asked(served, f"runs/{run}/memories", position=position)
        told = explain(model, IDS, position=position).memories
        assert told is not None and len(told) == 4
        for name, sent in arrays.items():
            expected = [torch.nan if (x := getattr(use, name)) is None else x for use in told]
            torch.testing.assert_close(sent, torch.tensor(expected), equal_nan=True)
    assert sum(bool(one.isfinite().any()) for one in arrays.values()) == 5  # no gate is among these
    changed = served.run("m", IDS, changes=[{"edit": "scale", "site": "blocks.0.attn.z", "value": 0}])["id"]
    _, without = asked(served, f"runs/{changed}/memories")
    assert not torch.equal(without["memory"], arrays["memory"])


def test_a_model_without_memories_says_so() -> None:
    served = Served({"m": subject("gpt2", batch=1, dtype=torch.float32).model})
    found = served.get(f"runs/{served.run('m', IDS)['id']}/memories")
    assert found.status_code == 422 and "nearest_memory" in found.json()["fault"]["hint"]


def test_features_are_those_of_a_dictionary_beside_the_server_and_its_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = subject("gpt2", batch=1, dtype=torch.float32).model
    served = Served({"m": model})
    run = served.run("m", IDS)["id"]
    assert "features train" in served.get(f"runs/{run}/features").json()["fault"]["hint"]
    dictionary = TopK(model.config.d_model, 24, k=5).build(seed=1)
    dictionary.facts = {"site": SITE, "digest": model.digest()}
    place = save_dictionary(dictionary, Path("runs/features/m") / SITE)
    facts, arrays = asked(served, f"runs/{run}/features", position=3, k=4)
    assert facts["dictionaries"] == [str(place)] and facts["fired"] == 5 and facts["site"] == SITE
    name = f"{SITE}.features"
    values = gf.run(attach(model, dictionary), IDS, read=[name])[name].values[0]
    largest = values[3].topk(4)
    close(arrays["activations"], largest.values)
    close(arrays["along"], values[:, largest.indices].mT)
    assert len(facts["raised_tokens"]) == 4
    refused = served.get(f"runs/{run}/features", params={"dictionary": "../../etc"})
    assert refused.status_code == 422 and str(place) in refused.text
    other = served.run("m", [3, 1])["id"]
    assert served.get(f"runs/{run}/features", params={"minus": other}).status_code == 400


@pytest.mark.parametrize("name", ["gpt2", "masked_pre", "translator_pre"])
def test_the_backward_grid_is_that_of_the_model_as_it_is(name: str) -> None:
    model = subject(name, batch=1, dtype=torch.float32).model
    served, pair = Served({"m": model}), model.reads_pairs
    more: dict[str, Any] = {"target_ids": [1, 4, 7]} if pair else {}
    run = served.run("m", IDS, **more)["id"]
    facts, arrays = asked(served, f"runs/{run}/backward", position=1, answer=5)
    told = backward_lens(model, IDS, 5, positions=[1], k=5, target=[1, 4, 7] if pair else None)
    assert facts["loss"] == pytest.approx(told.loss) and facts["asked"] == [1]
    agree(arrays["norm"], told.norm.values.float())
    site = "decoder.blocks.0.attn.z" if pair else "blocks.0.attn.z"
    changed = served.run("m", IDS, changes=[{"edit": "scale", "site": site, "value": 0}], **more)["id"]
    found = served.get(f"runs/{changed}/backward")
    assert found.status_code == 422 and "has changes" in found.json()["fault"]["message"]


@pytest.mark.full
def test_verdicts_are_those_of_the_atlas_in_the_language_of_the_page() -> None:
    config = DecoderConfig(vocab_size=11, max_len=32, d_model=16, layers=(block(n_heads=2, mlp=Mlp(8)),))
    served = Served({"m": drawn("verdicts", config, batch=1, dtype=torch.float32).model})
    facts, arrays = asked(served, "models/m/verdicts/L0H1")
    claims = [claim for cell in atlas().mechanisms["softmax"] for claim in cell.claims]
    assert facts["mechanism"] == "softmax" and set(facts["questions"]) == {claim.study for claim in claims}
    assert arrays["counts"].sum(0).tolist() == [*tally(claims).values()]
    chinese, _ = asked(served, "models/m/verdicts/L0H1", lang="zh")
    assert all(chinese["questions"][study] != question for study, question in facts["questions"].items())
