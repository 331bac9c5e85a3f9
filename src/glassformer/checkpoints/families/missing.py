"""Architectures that a user may well meet and that no family covers: what each has that no part here has."""

_STATE = "state-space layers"
_NARROW = "position and type vectors of the token vectors' own width, mapped to the stream's behind their norm"

# by model_type
MISSING: dict[str, str] = {
    "albert": _NARROW + ", and one layer that runs many times",
    "apertus": "an activation with learned coefficients (xIELU)",
    "bitnet": "norms inside attention and MLP, in front of what they write with",
    "blenderbot-small": "token vectors normed before positions are added, in the decoder alone",
    "deberta": "scores of contents and relative positions apart",
    "deberta-v2": "scores of contents and relative positions apart",
    "electra": _NARROW,
    "falcon_mamba": _STATE,
    "granitemoehybrid": _STATE,
    "hunyuan_v1_dense": "norms on queries and keys behind their rotation",
    "jamba": _STATE,
    "led": "an encoder of Longformer's attention beside a decoder of the usual one",
    "llama4_text": "experts whose weights multiply what they read",
    "lfm2": "gated short convolutions in the place of attention",
    "mamba": _STATE,
    "ministral3": "queries that grow with their position",
    "modernbert": "a block whose first sub-layer alone reads without a norm",
    "nanochat": "rotary positions that turn backwards, and norms behind them",
    "phimoe": "a router that chooses its experts one after another",
    "qwen2_moe": "a gate on the expert that every position passes",
    "qwen3_next": "gated delta rules, and gates on attention",
    "recurrent_gemma": "gated linear recurrences",
    "switch_transformers": "experts with a capacity, beyond which tokens pass none",
    "xlstm": "matrix memories in the place of attention",
}  # fmt: skip
