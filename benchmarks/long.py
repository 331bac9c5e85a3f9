"""Long and sparse attention beside the implementations that people use: checkpoints of `transformers`, opened here.

Each pair has the same weights: theirs is drawn and saved, ours opens the folder. Models are two layers wide enough for
attention to weigh, without the MLP that is the same in both.
"""

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

import glassformer as gf

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
    for name, theirs, ours_given, theirs_given in (_mistral(), _longformer(ids)):
        ours = opened(theirs)
        weights = [[p.requires_grad_() for p in model.parameters()] for model in (ours, theirs)]
        yield name, partial(ours, ids, **ours_given), partial(_output, theirs, ids, theirs_given), *weights


def opened(theirs: Any) -> Any:
    """Return a checkpoint of `transformers` as we open it."""
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        return gf.load(Path(folder)).eval()


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
