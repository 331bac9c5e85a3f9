"""BigBird."""

from pathlib import Path
from typing import Any

import torch

import glassformer as gf
from families import TOLERANCE, case, reference_folder
from families.bert import check_encoder
from glassformer.checkpoints.comparison.reference import relative, wide

_SIZES: dict[str, Any] = {
    "vocab_size": 23, "hidden_size": 12, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 3,
    "max_position_embeddings": 48, "block_size": 2, "num_random_blocks": 1, "attention_probs_dropout_prob": 0.0,
    "hidden_dropout_prob": 0.0,
}  # fmt: skip


def check_big_bird(kind: Any, config: Any, folder: Path, dtype: torch.dtype = torch.float64) -> dict[str, float]:
    """Compare as every encoder, on texts that are read by blocks, whole ones or not, and with the table of training."""
    errors = check_encoder(kind, config, folder, dtype)
    sparse = config.attention_type == "block_sparse"
    for n in (14, 15, 16, 21, 48):
        theirs = reference_folder(kind, config, folder, dtype)
        ours: Any = gf.load(folder, dtype=dtype)
        tokens = torch.randint(3, ours.config.vocab_size, (2, n), generator=torch.Generator().manual_seed(n))
        with torch.no_grad(), wide(dtype):
            out = theirs(input_ids=tokens)
            errors[f"{n} tokens"] = relative(ours(tokens), _output(out))
            if sparse and n > 14:
                trained = _with_the_authors_table(ours)
                out = theirs.train()(input_ids=tokens)
                errors[f"{n} tokens in training"] = relative(trained(tokens), _output(out))
    bad = {name: error for name, error in errors.items() if not error <= TOLERANCE[dtype]}
    assert not bad, f"beyond {TOLERANCE[dtype]} of the reference: {bad}"
    return errors


def _output(out: Any) -> torch.Tensor:
    return out.logits if "logits" in out else out.last_hidden_state


def _with_the_authors_table(model: Any) -> Any:
    layers = [
        layer.replace(
            parts=(layer.parts[0].replace(mixer=layer.parts[0].mixer.replace(random="authors")), *layer.parts[1:])
        )
        for layer in model.config.layers
    ]
    changed = model.config.replace(layers=tuple(layers)).build().to(model.embed.matrix.dtype)
    changed.load_state_dict(model.state_dict())
    return changed.eval()


@case("BigBird", check_big_bird)
def big_bird() -> tuple[Any, Any]:
    from transformers import BigBirdConfig, BigBirdForMaskedLM

    return BigBirdForMaskedLM, BigBirdConfig(**_SIZES)


@case("BigBird", check_big_bird)
def big_bird_with_full_attention() -> tuple[Any, Any]:
    from transformers import BigBirdConfig, BigBirdForMaskedLM

    changes: dict[str, Any] = {"attention_type": "original_full", "tie_word_embeddings": False, "hidden_act": "relu"}
    return BigBirdForMaskedLM, BigBirdConfig(**_SIZES, **changes)


@case("BigBird", check_big_bird)
def big_bird_without_a_head() -> tuple[Any, Any]:
    from transformers import BigBirdConfig, BigBirdModel

    return BigBirdModel, BigBirdConfig(**_SIZES, rescale_embeddings=True)
