"""Every mechanism is served as the card of its layer says; what it does not define is refused with the reason."""

from typing import Any, cast

import pytest
import torch

import glassformer.attention.mechanisms  # noqa: F401 (registers)
from glassformer.attention import MixerConfig
from glassformer.models import DecoderConfig, EncoderConfig, block
from glassformer.serve.questions import QUESTIONS
from glassformer.testing.models import ALTERNATING, ARCHITECTURES, ENCODERS, RECURRENT, drawn, subject
from served import Served

MECHANISMS = sorted(
    kind
    for kind, mechanism in cast("dict[str, type[MixerConfig]]", MixerConfig.registry).items()
    if mechanism.__module__.startswith("glassformer.")
)


def asked_everything(served: Served, name: str, ids: list[int]) -> dict[str, int]:
    """Ask every question at every layer; return the statuses, by address. A refusal has to say why."""
    more: dict[str, Any] = {"target_ids": [1, 2, 3]} if served.store.model(name).model.reads_pairs else {}
    run = served.run(name, ids, **more)["id"]
    card = next(one for one in served.ask("models") if one["id"] == name)
    mixers = [mixer for layer in card["layers"] for mixer in layer["mixers"]]
    heads = {mixer["heads"][0]: mixer for mixer in mixers if mixer["heads"]}
    found: dict[str, int] = {}
    for question, one in QUESTIONS.items():
        addresses = {
            "run": [f"runs/{run}/{question}"],
            "head": [f"runs/{run}/{question}/{head}" for head in heads],
            "row": [f"runs/{run}/{question}/{head}/-1" for head in heads],
            "model": [f"models/{name}/{question}"],
            "head of a model": [f"models/{name}/{question}/{head}" for head in heads],
        }[one.of]
        stages = ("products", "scores", "weights", "value_weighted") if question == "pattern" else (None,)
        for address in addresses:
            for stage in stages:
                told = served.get(address, params={"form": "frame"} | ({"stage": stage} if stage else {}))
                assert told.status_code in (200, 422), (address, stage, told.text)
                if told.status_code == 422:
                    fault = told.json()["fault"]
                    assert fault["code"] in ("AnalysisUnavailable", "NoPattern") and len(fault["message"]) > 30, fault
                found[f"{address} {stage or ''}"] = told.status_code
    for head, mixer in heads.items():
        # what the card says is what is answered: one pattern, or one for each value
        shown = mixer["pattern"] is not None or mixer["traits"]["value_streams"] > 1
        assert (found[f"runs/{run}/pattern/{head} weights"] == 200) == shown
    return found


def test_what_a_recurrent_mixture_does_not_define_is_refused_with_why() -> None:
    found = asked_everything(
        Served({"m": subject("lightning_hybrid", batch=1, dtype=torch.float32).model}), "m", [3, 1]
    )
    assert {*found.values()} == {200, 422}


@pytest.mark.full
@pytest.mark.parametrize("kind", MECHANISMS)
def test_so_it_is_of_every_mechanism(kind: str) -> None:
    mixer = cast("type[MixerConfig]", MixerConfig.registry[kind])()
    layers = tuple(block(n_heads=2, mixer=mixer) for _ in range(2))
    # what needs a text whole is no decoder's
    stack = EncoderConfig if mixer.bidirectional else DecoderConfig
    config = stack(vocab_size=11, max_len=32, d_model=16, layers=layers)
    asked_everything(Served({"m": drawn(kind, config, batch=1, dtype=torch.float32).model}), "m", [3, 1, 4, 1, 5])


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(ARCHITECTURES | ENCODERS | RECURRENT | ALTERNATING))
def test_so_it_is_of_every_architecture(name: str) -> None:
    served = Served({"m": subject(name, batch=1, dtype=torch.float32).model})
    found = asked_everything(served, "m", [3, 1, 4, 1, 5])
    assert 200 in found.values()
