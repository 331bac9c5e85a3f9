"""Steering and recording while a shipped model generates: texts in, texts and labelled values out."""

import pytest
import torch

import glassformer as gf
from glassformer.errors import UnknownAxis, UnknownSite
from glassformer.models import GREEDY, generate, stream

TEXTS = ["def transform_matrix(matrix, vector):\n    return transform_", "import os\n"]


@pytest.fixture(scope="module")
def model() -> gf.Decoder:
    found = gf.load("attn-only-2l")
    assert isinstance(found, gf.Decoder)
    return found


def test_texts_come_back_as_texts_with_their_ids(model: gf.Decoder) -> None:
    found = generate(model, TEXTS, GREEDY, max_new_tokens=6)
    for text, row, ids, new in zip(TEXTS, found.texts, found.ids, found.tokens, strict=True):
        assert model.tokenizer.decode(new) == row
        begin, _ = model.tokenizer.around("opening")
        assert ids == (*begin, *model.tokenizer.encode(text), *new)


def test_a_model_without_its_induction_head_is_less_sure_of_what_followed(model: gf.Decoder) -> None:
    plain = generate(model, TEXTS[0], GREEDY, max_new_tokens=1)
    without = generate(model, TEXTS[0], GREEDY, max_new_tokens=1, edit=gf.Scale("L1H6.z", 0.0))
    assert plain.texts == ("mat",)
    assert without.log_probs[0][0] < -0.5 < -0.01 < plain.log_probs[0][0]


def test_a_steering_vector_raises_the_token_that_it_points_to(model: gf.Decoder) -> None:
    token = model.tokenizer.encode("vector")[-1]
    push = gf.Add("blocks.1.resid_post", 60 * model.unembed.weight[token] / model.unembed.weight[token].norm())
    assert set(generate(model, TEXTS, GREEDY, max_new_tokens=4, edit=push).tokens) == {(token,) * 4}
    # from the second new token on
    first = len(generate(model, TEXTS[1], GREEDY, max_new_tokens=1).ids[0]) - 1
    later = gf.Add(push.site, push.value, at=gf.At(pos=slice(first, None)))
    steered = generate(model, TEXTS[1], GREEDY, max_new_tokens=4, edit=later).tokens[0]
    assert steered[0] == generate(model, TEXTS[1], GREEDY, max_new_tokens=1).tokens[0][0]
    assert steered[1:] == (token,) * 3


def test_what_is_recorded_bears_the_names_that_a_run_gives_it(model: gf.Decoder) -> None:
    read = ["L1H6.pattern", "blocks.*.resid_post"]
    found = generate(model, TEXTS, GREEDY, max_new_tokens=5, read=read)
    run = gf.run(model, [list(ids[:-1]) for ids in found.ids], read=read)
    for name, value in found.sites.items():
        assert value.rows == run[name].rows and value.coords == run[name].coords and value.of == run[name].of
        one, other = value.select(batch=1), run[name].select(batch=1)
        assert one.coords == other.coords
        torch.testing.assert_close(one.values, other.values, rtol=1e-4, atol=1e-4)
    assert list(found.sites) == list(run)
    last = found.sites["L1H6.pattern"].select(batch=1, query=-1).labels("key")
    assert str(last[-1]).endswith(model.tokenizer.token(found.ids[1][-2]))


def test_values_are_on_the_cpu_and_of_each_step_alone(model: gf.Decoder) -> None:
    steps = list(stream(model, TEXTS, GREEDY, max_new_tokens=3, read="blocks.1.resid_post"))
    assert [step.sites["blocks.1.resid_post"].size("pos") for step in steps[1:]] == [1, 1]
    assert all(value.values.device.type == "cpu" for step in steps for value in step.sites.values())


def test_an_unknown_site_is_refused_at_the_call_with_the_nearest_name(model: gf.Decoder) -> None:
    with pytest.raises(UnknownSite, match=r"blocks\.1\.resid_post"):
        stream(model, TEXTS, edit=gf.Scale("blocks.1.resid_pos", 0.0))
    with pytest.raises(UnknownSite, match=r"blocks\.1\.attn\.pattern"):
        stream(model, TEXTS, read="blocks.1.attn.patern")
    with pytest.raises(UnknownAxis, match="Axes: batch pos d_model"):
        stream(model, TEXTS, edit=gf.Scale("blocks.1.resid_post", 0.0, at=gf.At(head=1)))


def test_edits_of_an_encoder_are_made_once_and_reach_every_word() -> None:
    model = gf.load("zh-en")
    source, start = ["我吃了一个苹果"], [[model.tokenizer.bos]]
    edit, site = gf.Scale("encoder.blocks.*.attn.out", 0.0), "encoder.blocks.1.resid_post"
    found = generate(model, start, GREEDY, source=source, max_new_tokens=6, edit=edit, read=[site, "decoder.*.cross.z"])
    plain = generate(model, start, GREEDY, source=source, max_new_tokens=6)
    assert found.log_probs != plain.log_probs
    run = gf.run(model, source[0], torch.tensor([found.ids[0][:-1]]), edit=edit, read=[site, "decoder.*.cross.z"])
    for name, value in found.sites.items():
        torch.testing.assert_close(value.values, run[name].values, rtol=1e-4, atol=1e-4)
        assert value.coords == run[name].coords
