"""DeepSeek V2 and V3: latent attention with a rotary key, and from some layer on experts beside a shared one.

Their query and key heads are the latent's part first and the rotary part behind it, as ours are. Biases within the
latents are refused, and so is what older files say of a router that the reference passes over.
"""

from typing import Any

from torch import Tensor

from glassformer.attention import Attention, Latent, Softmax
from glassformer.checkpoints.families.experts import separate_experts
from glassformer.checkpoints.families.family import Family, Piece, Table
from glassformer.checkpoints.families.fields import Fields
from glassformer.checkpoints.families.llama import LLAMA_NAMES
from glassformer.checkpoints.families.llama_shaped import LLAMA_FILES, gated_mlp
from glassformer.checkpoints.families.rotary import longest, rope, score_growth
from glassformer.errors import CheckpointError
from glassformer.models import BlockConfig, DecoderConfig, MixtureOfExperts, RmsNorm

_EXPERTS = {"gate": "gate_proj", "input": "up_proj", "output": "down_proj"}


def _decoder(fields: Fields, experts: MixtureOfExperts, pairing: Any, dense: int, max_len: int) -> DecoderConfig:
    """Return the decoder that both have, of which the first `dense` blocks have MLPs."""
    fields.only("attention_bias", False, "no part has biases between what is read and its latent")
    fields.only("moe_layer_freq", 1, "experts stand in every layer behind the dense ones")
    n_heads = fields.whole("num_attention_heads")
    fields.only("num_key_value_heads", n_heads, "every head has keys of its own, made of the latent")
    content, turned = fields.whole("qk_nope_head_dim", 128), fields.whole("qk_rope_head_dim", 64)
    positions = rope(fields, pairing=pairing)
    d_head, norm = content + turned, RmsNorm(fields.number("rms_norm_eps", 1e-6))
    growth = score_growth(fields)
    attention = Attention(
        n_heads,
        d_head=d_head,
        d_value=fields.whole("v_head_dim", 128),
        mixer=Softmax(scale=None if growth == 1 else d_head**-0.5 * growth),
        positions=positions,
        # the norms within have an epsilon of their own, whatever that of the others is
        projection=Latent(fields.whole("kv_lora_rank", 512), turned, _query_rank(fields), norm=True, eps=1e-6),
    )
    mlp = gated_mlp(fields)
    layers = range(fields.whole("num_hidden_layers"))
    return DecoderConfig(
        fields.whole("vocab_size"),
        fields.whole("hidden_size"),
        tuple(BlockConfig((attention, mlp if i < dense else experts), norm) for i in layers),
        max_len=longest(fields, positions, max_len),
        tied=fields.flag("tie_word_embeddings", False),
        final_norm=norm,
    )


def _query_rank(fields: Fields) -> int | None:
    # null says that there is none, as in V2-Lite; what is not there is what their code takes by default
    ranked = "q_lora_rank" in fields or not fields.says("q_lora_rank")
    return fields.whole("q_lora_rank", 1536) if ranked else None


def _experts(fields: Fields, *, n: int, chosen: int, neurons: int, shared: int, **more: Any) -> MixtureOfExperts:
    width = fields.whole("moe_intermediate_size", neurons)
    beside = fields.whole("n_shared_experts", shared)
    return MixtureOfExperts(
        fields.whole("n_routed_experts", n),
        fields.whole("num_experts_per_tok", chosen),
        width,
        fields.activation("hidden_act", "silu"),
        d_shared=width * beside or None,
        **more,
    )


def _config_2(fields: Fields) -> DecoderConfig:
    fields.only("mlp_bias", False, "shared experts have no biases apart from the others")
    fields.only("scoring_func", "softmax", "this family's router takes a softmax")
    fields.only("norm_topk_prob", False, "the code that computes these models does not do it")
    more = {"n_groups": 1, "n_chosen_groups": 1}
    if fields.choice("topk_method", {"greedy": False, "group_limited_greedy": True}, "greedy"):
        more = {"n_groups": fields.whole("n_group"), "n_chosen_groups": fields.whole("topk_group")}
    # how many are chosen has no default in the reference, whose router cannot do without; published models choose six
    experts = _experts(
        fields, n=64, chosen=6, neurons=1407, shared=2, renormalised=False,
        factor=fields.number("routed_scaling_factor", 1.0), **more,
    )  # fmt: skip
    return _decoder(fields, experts, "interleaved", fields.whole("first_k_dense_replace", 0), 2048)


def _config_3(fields: Fields) -> DecoderConfig:
    fields.only("scoring_func", "sigmoid", "this family's router takes a sigmoid of each logit")
    fields.only("topk_method", "noaux_tc", "this family's router chooses by shares and a bias")
    experts = _experts(
        fields, n=256, chosen=8, neurons=2048, shared=1, scoring="sigmoid", choice_bias=True, group_best=2,
        renormalised=fields.flag("norm_topk_prob", True), factor=fields.number("routed_scaling_factor", 2.5),
        n_groups=fields.whole("n_group", 8), n_chosen_groups=fields.whole("topk_group", 4),
    )  # fmt: skip
    pairing = "interleaved" if fields.flag("rope_interleave", True) else "half"
    return _decoder(fields, experts, pairing, fields.whole("first_k_dense_replace", 3), 4096)


def _table(fields: Fields, config: Any) -> Table:
    attention: Attention = config.layers[0].parts[0]
    dims, latent = attention.dims(config.d_model, config.max_len), attention.projection
    if not isinstance(latent, Latent):
        raise CheckpointError(f'"{fields.where}": this family has latent attention, found "{latent.kind}".')
    ours, theirs = "stack.blocks.{i}.attn.projection", "model.layers.{i}.self_attn"
    content = dims.d_head - latent.rotary
    both = content + dims.d_value

    def of_heads(which: slice) -> Piece:
        # their rows: head by head, its key, its value
        def view(rows: Tensor) -> Tensor:
            return rows.unflatten(0, (dims.n_heads, both))[:, which]

        return Piece(f"{theirs}.kv_b_proj", dims.n_heads * both, view=view)

    short = latent.query_rank is not None
    mlp, published = "stack.blocks.{i}.mlp", "model.layers.{i}.mlp"
    return {
        **separate_experts(config, f"{published}.experts", _EXPERTS),
        **LLAMA_NAMES,
        f"{ours}.query_down": f"{theirs}.q_a_proj",
        f"{ours}.query_norm": f"{theirs}.q_a_layernorm",
        f"{ours}.query": f"{theirs}.q_b_proj" if short else f"{theirs}.q_proj",
        f"{ours}.down": f"{theirs}.kv_a_proj_with_mqa",
        f"{ours}.norm": f"{theirs}.kv_a_layernorm",
        f"{ours}.up": (of_heads(slice(None, content)), of_heads(slice(content, None))),
        f"{mlp}.router": f"{published}.gate",
        f"{mlp}.choice_bias": f"{published}.gate.e_score_correction_bias",
        **{f"{mlp}.shared_{name}": f"{published}.shared_experts.{one}" for name, one in _EXPERTS.items()},
    }


# files may hold the layers that predict tokens further on, which the reference passes over as well
_FILES: dict[str, Any] = LLAMA_FILES | {"ignored": (*LLAMA_FILES["ignored"], "model.layers.61.*")}
DEEPSEEK_V2 = Family("DeepSeek V2", ("deepseek_v2",), _config_2, _table, **LLAMA_FILES)
DEEPSEEK_V3 = Family("DeepSeek V3", ("deepseek_v3",), _config_3, _table, **_FILES)
