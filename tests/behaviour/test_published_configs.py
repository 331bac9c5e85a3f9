"""What published configs say, in their old layout and the new, and what is refused by name."""

import re
from pathlib import Path
from typing import Any

import pytest

from families import all_cases
from glassformer.attention import Attention, LinearScaling, NoPositions, Rope, Softmax
from glassformer.checkpoints.published import translated
from glassformer.errors import CheckpointError
from glassformer.models import DecoderConfig, EncoderDecoderConfig
from one_pass import in_one_pass

CASES = all_cases()
# the first case of a family
FIRST = {case.family: name for name, case in reversed(CASES.items())}
SIZES: dict[str, Any] = {
    "vocab_size": 23, "hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip


def read(kind: str, **fields: Any) -> DecoderConfig:
    config: Any = translated(SIZES | {"model_type": kind} | fields, Path("config.json"))[1]
    return config


def attention(config: DecoderConfig) -> list[Attention]:
    return [layer.parts[0] for layer in config.layers]  # type: ignore[misc]


def windows(config: DecoderConfig) -> list[int | None]:
    return [part.mixer.window for part in attention(config) if isinstance(part.mixer, Softmax)]


# what no default says, and without which a config is none of ours
NEEDED = {"Reformer": {"is_decoder": True, "num_buckets": 128}}


@pytest.mark.parametrize("name", FIRST.values(), ids=FIRST)
def test_what_a_config_leaves_out_is_what_the_reference_fills_in(name: str) -> None:
    kind, config = CASES[name].make()
    needed: dict[str, Any] = NEEDED.get(CASES[name].family, {})
    said = type(config)(architectures=[kind.__name__], **needed).to_dict()
    whole = translated(said, Path("config.json"))[1]
    for field in said.keys() - {"model_type", "architectures", *needed}:
        try:
            short = translated({key: value for key, value in said.items() if key != field}, Path("config.json"))[1]
        except CheckpointError as error:
            assert "lacks" in str(error)
        else:
            assert short == whole, field


def test_a_window_that_is_not_used_is_none() -> None:
    assert windows(read("qwen2", sliding_window=3, max_window_layers=2)) == [None] * 4
    assert windows(read("qwen2", sliding_window=3, max_window_layers=2, use_sliding_window=True)) == [None, None, 3, 3]


def test_layer_types_come_before_any_rule() -> None:
    kinds = ["full_attention", "sliding_attention", "full_attention", "full_attention"]
    assert windows(read("gemma2", sliding_window=3)) == [3, None, 3, None]
    assert windows(read("gemma2", sliding_window=3, layer_types=kinds)) == [None, 3, None, None]


@pytest.mark.parametrize("kind", ["cohere2", "gemma3_text", "exaone4"])
def test_one_layer_of_a_pattern_sees_everything(kind: str) -> None:
    assert windows(read(kind, sliding_window=3, sliding_window_pattern=2)) == [3, None, 3, None]


def test_every_fourth_layer_of_smollm3_has_no_positions_where_nothing_is_said_of_them() -> None:
    parts = attention(read("smollm3", num_hidden_layers=8))
    assert [i for i, part in enumerate(parts) if isinstance(part.positions, NoPositions)] == [3, 7]


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        (["full_attention"], "layer_types must be a list of 4 names, one per layer"),
        (["full_attention"] * 3 + ["linear_attention"], 'has "linear_attention"; full_attention and sliding_attention'),
    ],
)
def test_kinds_of_layers_that_are_not_known_are_refused(kinds: list[str], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read("qwen3", layer_types=kinds)


def test_old_and_new_layouts_of_local_and_global_rotary_positions_are_the_same_model() -> None:
    old = read(
        "gemma3_text", sliding_window=3, sliding_window_pattern=2, rope_theta=1e6, rope_local_base_freq=1e4,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
    )  # fmt: skip
    new = read(
        "gemma3_text", sliding_window=3, layer_types=["sliding_attention", "full_attention"] * 2,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    )  # fmt: skip
    assert old == new
    local, wide = (part.positions for part in attention(old)[:2])
    assert (local, wide) == (Rope(1e4), Rope(1e6, scaling=LinearScaling(8.0)))


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}


def test_the_old_layout_of_scaling_beside_the_new_has_to_say_the_same() -> None:
    new = {"rope_theta": 10000.0} | YARN
    alone = read("llama", rope_parameters=new)
    assert read("llama", rope_parameters=new, rope_scaling=YARN | {"type": "yarn"}) == alone
    assert read("llama", rope_parameters=new, rope_scaling={}) == alone
    default = {"rope_theta": 10000.0, "rope_type": "default"}
    for kind, parameters in (("llama", default), ("qwen3", default), ("gemma3_text", {"full_attention": default})):
        message = r"rope_scaling=.*'yarn'.* stands beside rope_parameters=.*'default'.*, and they differ in rope_type"
        with pytest.raises(CheckpointError, match=message):
            read(kind, sliding_window=3, rope_parameters=parameters, rope_scaling=YARN)
    # what the reference takes from rope_scaling has the base that stands outside
    with pytest.raises(CheckpointError, match="differ in rope_theta"):
        read("llama", rope_parameters=new | {"rope_theta": 5e5}, rope_scaling=YARN)
    assert read("llama", rope_parameters=new | {"rope_theta": 5e5}, rope_scaling=YARN, rope_theta=5e5).max_len == 64


def test_rotary_positions_that_are_no_one_description_are_refused() -> None:
    with pytest.raises(CheckpointError, match="rope_parameters must be one description: all layers of this family"):
        read("llama", rope_parameters={"full_attention": {"rope_type": "default"}})
    with pytest.raises(CheckpointError, match="rope_scaling must be an object, or null, found 'yarn'"):
        read("llama", rope_scaling="yarn")


def test_mistral_with_kinds_of_layers_is_read_as_ministral() -> None:
    kinds = ["full_attention", "sliding_attention"] * 2
    assert windows(read("mistral", sliding_window=3, layer_types=kinds)) == [None, 3, None, 3]
    assert read("mistral", layer_types=kinds) == read("ministral", layer_types=kinds)
    assert windows(read("mistral", sliding_window=3)) == [3] * 4


@pytest.mark.parametrize(("kind", "period"), [("cohere2", 4), ("gemma3_text", 6)])
def test_a_period_that_the_reference_does_not_read_back_is_refused(kind: str, period: int) -> None:
    plain = read(kind, sliding_window=3)
    assert read(kind, sliding_window=3, _sliding_window_pattern=period) == plain
    kinds = ["full_attention"] * 4
    assert windows(read(kind, sliding_window=3, _sliding_window_pattern=2, layer_types=kinds)) == [None] * 4
    with pytest.raises(CheckpointError, match=f"_sliding_window_pattern=2 cannot be .* takes {period}; give layer_ty"):
        read(kind, sliding_window=3, _sliding_window_pattern=2)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("llama", {"qk_layernorm": True}),
        ("llama", {"sliding_window": 16}),
        ("llama", {"layer_types": ["sliding_attention"]}),
        ("mistral", {"is_causal": False}),
        ("qwen2", {"attn_logit_softcapping": 30.0}),
        ("olmo2", {"logit_scale": 0.5}),
    ],
)
def test_a_setting_that_no_layer_reads_is_refused_by_name(kind: str, fields: dict[str, Any]) -> None:
    ((name, value),) = fields.items()
    message = rf"{name}={re.escape(repr(value))} says what is computed, and [\w ]+ does not read it\. Take it out of"
    with pytest.raises(CheckpointError, match=message):
        read(kind, **fields)
    off = {"is_causal": True, "layer_types": ["full_attention"] * 4}.get(name)
    assert read(kind, **{name: off}) == read(kind)


def test_kinds_of_layers_that_are_written_out_have_to_be_those_of_the_patterns() -> None:
    sizes = {"vocab_size": 23, "hidden_size": 16, "num_layers": 2, "num_heads": 4, "model_type": "gpt_neo"}
    said = sizes | {"attention_types": [[["global", "local"], 1]], "attention_layers": ["global", "local"]}
    assert translated(said, Path("config.json"))[0].name == "GPT-Neo"
    with pytest.raises(
        CheckpointError, match=r"attention_layers must be attention_types written out, \['global', 'local"
    ):
        translated(said | {"attention_layers": ["local", "global"]}, Path("config.json"))


def test_one_size_by_two_names_has_to_be_one() -> None:
    assert read("llama", n_layer=4, n_embd=16, num_heads=4) == read("llama")
    with pytest.raises(CheckpointError, match="n_layer=3 and num_hidden_layers=4 are one size by two names, and they"):
        read("llama", n_layer=3)


# what files that were published say beside what their family reads
LEFT_OVER: dict[str, dict[str, Any]] = {
    "bloom": {"n_embed": 16, "offset_alibi": 100, "seq_length": 2048, "skip_bias_add": True, "num_attention_heads": 4},
    "gemma2": {"sliding_window": 4, "hidden_act": "gelu_pytorch_tanh", "cache_implementation": "hybrid"},
    "gptj": {"rotary": True, "rotary_dim": 2, "scale_attn_weights": True, "summary_use_proj": True},
    "llama": {
        "use_sliding_window": False, "sliding_window": 32768, "max_window_layers": 28, "pretraining_tp": 2,
        "is_llama_config": True, "rope_interleaved": False, "unsloth_version": "2024.9", "torch_dtype": "bfloat16",
        "id2label": {"0": "LABEL_0"}, "task_specific_params": {"text-generation": {"max_length": 50}},
        "_attn_implementation_autoset": True, "quantization_config": None, "auto_map": {"AutoConfig": "a.B"},
    },
    "mistral": {"attention_bias": False, "mlp_bias": False, "rope_scaling": None},
    "qwen2": {"use_mrope": False, "use_sliding_window": False, "sliding_window": 131072, "max_window_layers": 28},
    "qwen3_moe": {"router_aux_loss_coef": 0.001, "output_router_logits": False, "sliding_window": None},
    "smollm3": {"max_window_layers": 28, "use_sliding_window": False, "sliding_window": None, "pretraining_tp": 2},
    "stablelm": {"rope_pct": 0.25, "partial_rotary_factor": 0.5, "norm_eps": 1e-5, "rotary_scaling_factor": 1.0},
}  # fmt: skip


@pytest.mark.parametrize("kind", LEFT_OVER)
def test_what_published_files_say_beside_what_is_computed_is_passed_over(kind: str) -> None:
    sizes = SIZES | {"n_head": 4, "n_layer": 4, "n_embd": 16, "sliding_window": 4}
    plain = {name: value for name, value in sizes.items() if name in NEEDED_SIZES.get(kind, SIZES)}
    found: Any = translated(plain | {"model_type": kind} | LEFT_OVER[kind], Path("config.json"))[1]
    assert len(found.layers) == 4


NEEDED_SIZES = {
    "bloom": ("vocab_size", "hidden_size", "n_layer", "n_head"),
    "gptj": ("vocab_size", "n_embd", "n_layer", "n_head"),
}


def test_null_takes_a_cap_away_and_a_missing_field_leaves_it() -> None:
    capped, bare = read("gemma2", sliding_window=3), read("gemma2", sliding_window=3, attn_logit_softcapping=None)
    assert [part.mixer.cap for config in (capped, bare) for part in attention(config)[:1]] == [50.0, None]  # type: ignore
    assert (capped.logit_cap, read("gemma3_text", sliding_window=3).logit_cap) == (30.0, None)


def test_what_a_family_cannot_say_is_refused_by_field() -> None:
    for kind, fields, message in (
        ("gemma", {"use_bidirectional_attention": True}, "use_bidirectional_attention=True cannot be represented"),
        ("gemma3_text", {"attn_logit_softcapping": 30.0}, "attn_logit_softcapping=30.0 cannot be represented"),
        ("gemma2", {}, 'lacks "sliding_window"'),
        ("deepseek_v2", {"norm_topk_prob": True}, "norm_topk_prob=True cannot be represented"),
        ("deepseek_v2", {"num_experts_per_tok": 2, "topk_method": "noaux_tc"}, "topk_method must be one of greedy"),
        ("deepseek_v3", {"attention_bias": True}, "attention_bias=True cannot be represented"),
        ("deepseek_v3", {"scoring_func": "softmax"}, "scoring_func='softmax' cannot be represented"),
        ("diffllama", {"num_key_value_heads": 1}, "num_key_value_heads must be an even number"),
        ("gpt_oss", {"swiglu_alpha": 1.0, "sliding_window": 3}, "swiglu_alpha=1.0 cannot be represented"),
    ):
        with pytest.raises(CheckpointError, match=message):
            read(kind, **fields)


def test_experts_stored_in_four_bits_are_refused() -> None:
    with pytest.raises(CheckpointError, match=r"holds quantised weights \(MXFP4: quantization_config\)"):
        read("gpt_oss", sliding_window=3, quantization_config={"quant_method": "mxfp4"})


@in_one_pass
@pytest.mark.parametrize("kind", ["gpt_neox", "phi", "phi3", "stablelm"])
def test_a_share_that_turns_half_a_pair_is_refused(kind: str) -> None:
    sizes = {"hidden_size": 48, "partial_rotary_factor": 0.5, "rope_scaling": None}
    assert attention(read(kind, **sizes))[0].positions.fraction == 0.5  # type: ignore[attr-defined]
    with pytest.raises(CheckpointError, match=r"0.25 turns 3 of the 12 coordinates of a head"):
        read(kind, **sizes | {"partial_rotary_factor": 0.25})


PAIR = {"layers": 1, "attention_heads": 2, "ffn_dim": 16}


def marian(**fields: Any) -> EncoderDecoderConfig:
    sides = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in PAIR.items()}
    said = {"model_type": "marian", "vocab_size": 23, "d_model": 16, "decoder_vocab_size": 17} | sides | fields
    config: Any = translated(said, Path("config.json"))[1]
    return config


def test_two_vocabularies_are_read_and_written_and_the_last_token_written_is_the_padding_unless_said() -> None:
    config = marian(share_encoder_decoder_embeddings=False)
    assert (config.source_vocab_size, config.vocab_size) == (23, 17)
    assert (config.start_id, config.never_ids) == (16, (16,))
    said = marian(share_encoder_decoder_embeddings=False, pad_token_id=3, decoder_start_token_id=5)
    assert (said.start_id, said.never_ids) == (5, (3,))


def test_embeddings_that_two_vocabularies_share_are_refused() -> None:
    with pytest.raises(CheckpointError, match=r"decoder_vocab_size=17 .* both sides share their embeddings"):
        marian()
    assert marian(decoder_vocab_size=23).source_vocab_size is None


def test_a_model_that_reads_no_position_at_its_padding_never_writes_it() -> None:
    said = {"model_type": "m2m_100", "vocab_size": 23, "d_model": 16, "decoder_start_token_id": 2}
    said |= {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in PAIR.items()}
    plain: Any = translated(said, Path("config.json"))[1]
    moved: Any = translated(said | {"pad_token_id": 4}, Path("config.json"))[1]
    assert (plain.never_ids, moved.never_ids) == ((1,), (4,))
    assert (plain.positions.offset, moved.positions.offset) == (2, 5)
