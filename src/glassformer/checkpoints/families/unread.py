"""Fields of a published config that say what is computed and that its family does not read: refused by name.

A field is read if the family asked for it. Of the others, most say nothing of a forward pass (tokens, training, where a
file came from) and are passed over, as their own library does. Two kinds are not:

    settings that some covered family computes with            refused if they are set
    second names of a size that the family reads by another    refused unless they say the same
"""

from typing import Any

from glassformer.checkpoints.families.family import Family
from glassformer.checkpoints.families.fields import Fields
from glassformer.errors import CheckpointError

# by name: values that change nothing, beside null, false and what is empty
COMPUTING: dict[str, tuple[Any, ...]] = {
    "add_cross_attention": (),
    "alibi": (),
    "apply_residual_connection_post_layernorm": (),
    "attention_bias": (),
    "attention_chunk_size": (),
    "attention_multiplier": (1,),
    "attention_out_bias": (),
    "attention_window": (),
    "attn_logit_softcapping": (),
    "clip_qkv": (),
    "embedding_multiplier": (1,),
    "final_logit_softcapping": (),
    "is_causal": (True,),
    "kv_lora_rank": (),
    "layer_types": (),
    "logit_scale": (1,),
    "logits_scaling": (1,),
    "mlp_bias": (),
    "multi_query": (),
    "new_decoder_architecture": (),
    "no_rope_layers": (),
    "norm_topk_prob": (),
    "parallel_attn": (),
    "partial_rotary_factor": (1,),
    "q_lora_rank": (),
    "qk_layernorm": (),
    "query_pre_attn_scalar": (),
    "residual_multiplier": (1,),
    "rope_interleave": (),
    "rope_scaling": (),
    "rotary_pct": (1,),
    "routed_scaling_factor": (1,),
    "scale_attn_by_inverse_layer_idx": (),
    "scale_attn_weights": (True,),
    "scale_embedding": (),
    "sliding_window": (),
    "sliding_window_pattern": (),
    "swiglu_alpha": (),
    "swiglu_limit": (),
    "use_bidirectional_attention": (),
    "use_mrope": (),
    "use_parallel_residual": (),
    "use_qk_norm": (),
    "use_qkv_bias": (),
    "use_sliding_window": (),
}
# names of one size; in libraries that know several, the more general one comes first
SAME: tuple[tuple[str, ...], ...] = (
    ("hidden_size", "n_embed", "n_embd", "d_model", "dim"),
    ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads", "encoder_attention_heads"),
    ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers"),
    ("head_dim", "d_kv"),
    ("num_experts", "num_local_experts", "n_routed_experts"),
)


def require_read(family: Family, fields: Fields) -> None:
    """Raise `CheckpointError` for a field that says what is computed, and that a translation did not ask for.

    Args:
        family: Whose translation it was.
        fields: The config it was made of.
    """
    unread = [name for name in fields.data if name not in fields.asked and name not in family.without_effect]
    for name in unread:
        value = fields.data[name]
        if name in COMPUTING and not _is_off(name, fields):
            raise CheckpointError(
                f'"{fields.where}": {name}={_brief(value)} says what is computed, and {family.name} does not read it. '
                "Take it out of the file if the model was trained without it; otherwise it is of another architecture, "
                "whose name belongs into model_type."
            )
        for names in SAME:
            read = next((other for other in names if other in fields.asked and other in fields.data), None)
            if name in names and read is not None and value is not None and value != fields.data[read]:
                raise CheckpointError(
                    f'"{fields.where}": {name}={_brief(value)} and {read}={_brief(fields.data[read])} are one size by '
                    f"two names, and they differ. Keep {read}."
                )


def _is_off(name: str, fields: Fields) -> bool:
    """Whether a setting is there and asks for nothing."""
    value = fields.data[name]
    if name == "sliding_window" and fields.data.get("use_sliding_window") is False:
        return True
    if name == "layer_types" and isinstance(value, list):
        return all(kind == "full_attention" for kind in value)
    if name == "is_causal":
        return value is not False
    return value is None or value is False or value in ([], {}, "") or value in COMPUTING[name]


def _brief(value: object) -> str:
    return repr(value)[:80]
