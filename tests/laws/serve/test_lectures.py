"""States, value matrices, lanes and mixtures as they are sent are those of the model's own tensors and passes."""

from typing import Any

import pytest
import torch

import glassformer as gf
from glassformer.attention import Differential, Lightning, Linear, MixerConfig, Softmax
from glassformer.models import DecoderConfig, Mlp, block
from glassformer.models.accounting import count_flops, count_parameters, state_bytes
from glassformer.serve import Limits
from glassformer.testing.models import drawn, subject
from one_pass import in_one_pass
from served import Served, agree, values_of

IDS = [3, 1, 4, 1, 5, 9, 2]
MIXERS: dict[str, tuple[MixerConfig, int]] = {
    "softmax": (Softmax(), 4),
    "windowed": (Softmax(window=3), 4),
    "grouped": (Softmax(), 2),
    "linear": (Linear(), 4),
    "lightning": (Lightning(), 4),
    "differential": (Differential(), 4),
}


def model_of(name: str) -> Any:
    mixer, kv_heads = MIXERS[name]
    layers = tuple(block(mixer, n_heads=4, n_kv_heads=kv_heads, mlp=Mlp(12)) for _ in range(2))
    config = DecoderConfig(vocab_size=11, max_len=16, d_model=16, layers=layers)
    return drawn(name, config, batch=1, dtype=torch.float32).model


def asked(served: Served, address: str, **view: Any) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Return the facts and the arrays of an answer, which its code gives too."""
    told, arrays = served.ask(address, **view), served.arrays(address, **view)
    found = served.copied(told["python"])["found"]
    for name, sent in arrays.items():
        agree(sent, values_of(found, name))
    return told["facts"], arrays


@in_one_pass
@pytest.mark.parametrize("name", MIXERS)
def test_what_is_kept_has_the_bytes_of_the_state_that_a_pass_leaves_behind(name: str) -> None:
    model = model_of(name)
    served = Served({name: model})
    run, ids = served.run(name, IDS)["id"], torch.tensor([IDS])
    for at in (0, 5):
        facts, arrays = asked(served, f"runs/{run}/added-token/L1H1/{at}")
        with torch.no_grad():
            _, left = model(ids[:, : at + 1], state=model.begin(1))
        own = [one for one in left.layers[1][0].mixer]
        assert arrays["bytes"][1].tolist() == [one.nbytes for one in own]
        assert [shape for shape in facts["shapes"][1].values()] == [list(one.shape) for one in own]
        assert arrays["all_bytes"].tolist() == [state_bytes(model.config, n) for n in (at, at + 1)]
        for sent, kept in zip((arrays[name] for name in facts["shapes"][1]), own):
            torch.testing.assert_close(sent, kept.select(-3, 1 * kept.shape[-3] // 4)[0], rtol=1e-4, atol=1e-5)
        stores = name not in ("linear", "lightning")
        assert facts["stores_keys"] == stores and facts["left_out"] == {}
        # a window of three sees two keys before its query
        visible = [min(q + 1, 3) if name == "windowed" else q + 1 for q in range(at + 1)]
        assert arrays["weights"].isfinite().sum(-1).tolist() == visible
    # without a state, what is counted is the layer's part of the whole model
    of_layer = arrays["operations"][1].sum()
    mlps = sum(n for part, n in count_flops(model.config, 6).items() if part.startswith("mlp"))
    assert 2 * of_layer + mlps + 2 * 6 * 16 * 11 == sum(count_flops(model.config, 6).values())
    assert arrays["operations"][0].sum() < of_layer


def test_a_model_that_reads_texts_whole_keeps_nothing_and_says_so() -> None:
    served = Served({"m": subject("masked_pre", batch=1, dtype=torch.float32).model})
    refused = served.get(f"runs/{served.run('m', IDS)['id']}/added-token/L1H1/2")
    assert refused.status_code == 422 and "reads a text whole" in refused.json()["fault"]["message"]


def test_states_that_are_more_than_the_server_may_keep_are_refused() -> None:
    served = Served({"m": model_of("softmax")}, Limits(memory=2000))
    run = served.run("m", IDS)["id"]
    refused = served.get(f"runs/{run}/added-token/L1H1/6")
    assert refused.status_code == 413 and "states around a token" in refused.json()["fault"]["message"]
    assert served.get(f"runs/{run}/added-token/L1H1/1").status_code == 200


def test_of_a_changed_run_a_state_has_sizes_and_no_numbers() -> None:
    served = Served({"m": model_of("softmax")})
    change = {"edit": "scale", "site": "L0H1.z", "value": 0}
    run = served.run("m", IDS, changes=[change])["id"]
    facts, arrays = asked(served, f"runs/{run}/added-token/L1H1/3")
    assert "mixer.key" not in arrays and "without its changes" in facts["left_out"]["state"]
    assert arrays["bytes"].tolist() == [[4 * 3 * 16] * 2, [4 * 4 * 16] * 2]


@in_one_pass
@pytest.mark.parametrize("name", MIXERS)
def test_value_matrices_are_those_of_the_model_and_their_product_moves_values(name: str) -> None:
    model = model_of(name)
    facts, arrays = asked(Served({name: model}), f"models/{name}/value-matrices/L1H3")
    weights, kv = gf.weights.of(model)[1], MIXERS[name][1]
    assert torch.equal(arrays["down"], weights.V[3 * kv // 4]) and torch.equal(arrays["up"], weights.O[3])
    if "product" in arrays:
        torch.testing.assert_close(arrays["product"], weights.ov().dense()[3])
        ranks = [int(torch.linalg.matrix_rank(arrays[one])) for one in ("down", "up", "product")]
        assert arrays["dimensions"][:, 0].tolist() == ranks
    else:
        assert "gate" in facts["left_out"]["product"]
    held = count_parameters(model.config)
    assert arrays["numbers"][2, :2].tolist() == [held["value"], held["output"]] and facts["kv_heads"] == kv
    assert arrays["numbers"][1].tolist() == [kv * 16 * 4, 4 * 4 * 16, 4 * 16 * 16]
    # of blocks the number of largest size
    small = Served({name: model}).arrays(f"models/{name}/value-matrices/L1H3", size=4)["down"]
    assert small.shape == (4, 4) and float(small.abs().max()) == float(weights.V[3 * kv // 4].abs().max())


@in_one_pass
@pytest.mark.parametrize("name", MIXERS)
def test_rows_of_a_mixture_sum_to_what_its_pattern_does(name: str) -> None:
    model = model_of(name)
    served = Served({name: model})
    run, pattern = served.run(name, IDS)["id"], gf.run(model, IDS, read=["blocks.*.attn.pattern"])
    for view, path in (({}, "blocks.1.attn"), ({"path": "blocks.0.attn", "position": 3}, "blocks.0.attn")):
        facts, arrays = asked(served, f"runs/{run}/mixtures", **view)
        rows = pattern[f"{path}.pattern"].values[0, :, view.get("position", -1)]
        torch.testing.assert_close(arrays["weights"].nan_to_num(), rows)
        torch.testing.assert_close(arrays["sums"], rows.sum(-1))
        assert facts["path"] == path
        if facts["rows"] == "mass":
            torch.testing.assert_close(arrays["sums"], torch.ones(4))
    assert facts["rows"] == ("signed" if name in ("lightning", "differential") else "mass")


@in_one_pass
@pytest.mark.parametrize("name", ["gpt2", "post", "parallel", "sandwich", "llama", "linear"])
def test_a_write_on_a_lane_is_as_long_as_what_is_added_to_the_stream(name: str) -> None:
    model = subject(name, batch=1, dtype=torch.float32).model
    served = Served({name: model})
    _, arrays = asked(served, f"runs/{served.run(name, [3, 1, 4, 1, 5])['id']}/lanes")
    layers = model.sub_layers()
    run = gf.run(model, [3, 1, 4, 1, 5], read="*")
    for i, layer in enumerate(layers):
        behind = run[layer.at_sum or layer.at_behind].values[0]
        torch.testing.assert_close(arrays["stream"][i], behind.norm(dim=-1))
        if layer.block.wiring == "pre" and layer.at_sum is None:
            added = behind - run[layer.at_stream].values[0]
            torch.testing.assert_close(
                arrays["share"][i], added.norm(dim=-1) / behind.norm(dim=-1), rtol=1e-3, atol=1e-4
            )
