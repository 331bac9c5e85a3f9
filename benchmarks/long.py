"""Long and sparse attention beside the implementations that people use: checkpoints of `transformers`, opened here.

Each pair has the same weights: theirs is drawn and saved, ours opens the folder. Models are two layers wide enough for
attention to weigh, next to without the MLP that is the same in both; of some, attention layers are compared alone.
"""

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

import glassformer as gf
from glassformer.attention import Attention, Linformer, Lsh, Tied
from glassformer.models.stack import make_context

LENGTH, WIDTH, HEADS = 4096, 256, 4
_SIZES: dict[str, Any] = {
    "vocab_size": 512, "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": HEADS,
    "intermediate_size": 8, "max_position_embeddings": LENGTH + 2,
}  # fmt: skip

Model = Callable[[], torch.Tensor]
Pair = tuple[str, Model, Model, list[torch.Tensor], list[torch.Tensor]]


def pairs() -> Iterator[Pair]:
    """Yield the name of each mechanism, our pass and theirs, and the weights of both."""
    ids = torch.randint(3, 512, (1, LENGTH), generator=torch.Generator().manual_seed(0))
    for name, theirs, ours_given, theirs_given in (_mistral(), _longformer(ids), _big_bird()):
        ours = opened(theirs)
        yield (
            name,
            partial(ours, ids, **ours_given),
            partial(_output, theirs, ids, theirs_given),
            _weights(ours),
            _weights(theirs),
        )
    yield _lsh()
    yield _linformer()


def opened(theirs: Any) -> Any:
    """Return a checkpoint of `transformers` as we open it."""
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        return gf.load(Path(folder)).eval()


def _weights(model: Any) -> list[torch.Tensor]:
    return [p.requires_grad_() for p in model.parameters()]


def _output(theirs: Any, ids: torch.Tensor, given: dict[str, Any]) -> torch.Tensor:
    out = theirs(ids, **given)
    return out.logits if "logits" in out else out.last_hidden_state


def _mistral() -> tuple[str, Any, dict[str, Any], dict[str, Any]]:
    from transformers import MistralConfig, MistralForCausalLM

    config = MistralConfig(**_SIZES, num_key_value_heads=HEADS, sliding_window=256)
    return "window of 256 (Mistral)", MistralForCausalLM(config).eval(), {}, {"use_cache": False}


def _longformer(ids: torch.Tensor) -> tuple[str, Any, dict[str, Any], dict[str, Any]]:
    from transformers import LongformerConfig, LongformerModel

    config = LongformerConfig(**_SIZES, attention_window=512, pad_token_id=1)
    marked = torch.zeros_like(ids, dtype=torch.bool)
    marked[0, 0] = True
    theirs = LongformerModel(config, add_pooling_layer=False).eval()
    return (
        "Longformer, window of 512 and a global token",
        theirs,
        {"marked": marked},
        {"global_attention_mask": marked.long()},
    )


def _big_bird() -> tuple[str, Any, dict[str, Any], dict[str, Any]]:
    from transformers import BigBirdConfig, BigBirdModel

    config = BigBirdConfig(**_SIZES, block_size=64, num_random_blocks=3)
    return "BigBird, blocks of 64", BigBirdModel(config, add_pooling_layer=False).eval(), {}, {}


def _lsh() -> Pair:
    """Attention layers alone, without what transformers multiplies behind them; in the form that they share.

    In float64: in float32 the two round queries otherwise, and of thousands some fall into another bucket.
    """
    from transformers import ReformerConfig
    from transformers.models.reformer.modeling_reformer import LSHSelfAttention

    told: dict[str, Any] = {
        "hidden_size": WIDTH,
        "num_attention_heads": HEADS,
        "attention_head_size": WIDTH // HEADS,
        "hash_seed": 0,
    }
    config = ReformerConfig(
        **told, num_buckets=128, num_hashes=4, lsh_attn_chunk_length=64, is_decoder=True, attn_layers=["lsh"],
        lsh_attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    theirs = LSHSelfAttention(config).double().eval()
    config = Attention(HEADS, mixer=Lsh(128, 64, 4, "library"), projection=Tied(key="query"))
    ours: Any = config.build(WIDTH, LENGTH, 0, "").double()
    with torch.no_grad():
        maps: Any = ours.projection.qkv
        maps.query.weight.copy_(theirs.query_key.weight)
        maps.value.weight.copy_(theirs.value.weight)
        ours.merge.output.weight.copy_(torch.eye(WIDTH))
    return _layers(
        "Reformer, 4 rounds, layers alone in float64", ours, lambda x: theirs(x).hidden_states, theirs, causal=True
    )


def _linformer() -> Pair:
    from linformer.linformer import LinformerSelfAttention

    theirs = LinformerSelfAttention(WIDTH, LENGTH, k=128, heads=HEADS).eval()
    ours: Any = Attention(HEADS, mixer=Linformer(128)).build(WIDTH, LENGTH, 0, "")
    with torch.no_grad():
        rows = [theirs.to_q.weight, theirs.to_k.weight, theirs.to_v.weight]
        ours.projection.qkv.load_state_dict({"weight": torch.cat(rows)})
        ours.merge.output.weight.copy_(theirs.to_out.weight)
        ours.mixer.maps.columns.copy_(torch.stack((theirs.proj_k, theirs.proj_v))[:, None])
        theirs.to_out.bias.zero_()
    return _layers("Linformer, 128 rows, layers alone", ours, theirs, theirs, causal=False)


def _layers(name: str, ours: Any, run: Any, theirs: Any, *, causal: bool) -> Pair:
    kind = ours.merge.output.weight.dtype
    x = torch.randn(1, LENGTH, WIDTH, generator=torch.Generator().manual_seed(0), dtype=kind)

    def mixed() -> torch.Tensor:
        return ours.eval()(x, make_context(1, LENGTH, x.device, is_causal=causal))[0]

    return name, mixed, partial(run, x), _weights(ours), _weights(theirs)
