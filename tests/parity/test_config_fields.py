"""Every field of the reference's configs is read by its family, or without effect; edited, it says the same to both.

A field nobody read would be a setting that the reference computes with and ours does not.
"""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
import torch

import glassformer as gf
from families import all_cases, reference_folder
from glassformer.checkpoints.comparison.reference import reference
from glassformer.checkpoints.families import Fields, recognise, trained_length
from glassformer.checkpoints.families.unread import SAME
from glassformer.errors import CheckpointError
from glassformer.models import EncoderDecoder

CASES = all_cases()
FAMILIES: dict[str, list[str]] = {}
for name, case in CASES.items():
    FAMILIES.setdefault(case.family, []).append(name)

# patterns of names, and why they change nothing that a forward pass computes
WITHOUT_EFFECT = {
    r".*(dropout|pdrop|layerdrop).*": "in training alone",
    r"init_std|initializer_.*|axial_norm_std|lambda_std_dev|init_device": "where training begins",
    r"output_.*|return_dict|use_cache|torchscript|onnx_export": "what a call gives back, and how",
    r"(bos|eos|pad|sep|cls|decoder_start|forced_\w+)_token_id": "tokens, which the tokenizer and the call know",
    r"encoder_no_repeat_ngram_size": "how tokens are chosen",
    r"id2label|label2id|problem_type|summary_.*": "heads that are no language models'",
    r"_name_or_path|architectures|transformers_version|model_type|dtype|is_encoder_decoder": "where a file is from",
    r"router_(aux_loss_coef|jitter_noise)|output_router_logits": "in training alone",
    r"chunk_size_.*|pretraining_tp|slow_but_exact|reorder_and_upcast_attn": "the same numbers another way",
    r"(scale_)?attention_softmax_in_fp32": "precision of the softmax",
    r"is_decoder": "of encoders, which refuse it where it would count",
}
# by family: fields that its reference keeps, and does not compute with or computes from others
OF_FAMILY = {
    "BioGPT": {"layer_norm_eps": "norms keep the default of their class"},
    "CodeGen": {"n_ctx": "a second name of the context"},
    "DeepSeek V2": {"head_dim": "the rotary width", "qk_head_dim": "the sum of two widths"},
    "DeepSeek V3": {
        "head_dim": "the rotary width", "qk_head_dim": "the sum of two widths", "num_nextn_predict_layers": "not built",
        "num_mtp_layers": "not built",
    },
    "DistilBERT": {"sinusoidal_pos_embds": "how the table begins, which is stored"},
    "GPT-BigCode": {"num_key_value_heads": "follows from multi_query"},
    "Gemma 3": {"_sliding_window_pattern": "layer_types comes before it"},
    "MiniMax": {"block_size": "the same numbers another way"},
    "Mamba-2": {
        "chunk_size": "the same numbers another way", "rescale_prenorm_residual": "where training begins",
        "time_step_floor": "where training begins", "time_step_max": "where training begins",
        "time_step_min": "where training begins", "time_step_rank": "not built",
    },
    "MPT": {
        "expansion_ratio": "always four", "learned_pos_emb": "never", "embedding_fraction": "never",
        "norm_type": "always without biases",
    },
    "XGLM": {"decoder_start_token_id": "a decoder begins with what it is given"},
}  # fmt: skip

# the reference fills a text up to a multiple of both lengths; several rounds of its hashes are rounded in float32; what
# says where training begins divides matrices that were loaded
NOT_EDITED = {
    "local_attn_chunk_length", "lsh_attn_chunk_length", "num_hashes", "vocab_size", "rescale_prenorm_residual",
}  # fmt: skip


@cache
def asked(family: str) -> frozenset[str]:
    """Return what a family asks of the configs of its cases."""
    found: set[str] = set()
    for name in FAMILIES[family]:
        said = CASES[name].make()[1].to_dict()
        read_as, fields = recognise(said, "config.json"), Fields(said)
        ours = read_as.config(fields)
        read_as.table(fields, ours)
        trained_length(read_as, fields, ours)
        found |= fields.asked | set(read_as.without_effect)
    return frozenset(found)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_field_of_the_references_config_is_read_or_without_effect(family: str) -> None:
    for name in FAMILIES[family]:
        config = CASES[name].make()[1]
        known = asked(family) | set(OF_FAMILY.get(family, ())) | set(recognised_sizes(config))
        unread = set(config.to_dict()) | set(config.attribute_map)
        left = {f for f in unread - known if not any(re.fullmatch(pattern, f) for pattern in WITHOUT_EFFECT)}
        assert not left, f"{family} does not read {sorted(left)}"


def recognised_sizes(config: Any) -> set[str]:
    """Return second names of sizes, which have to say the same as the first."""
    return {name for name in config.attribute_map if any(name in names for names in SAME)}


def changed(value: Any, draw: int) -> Any:
    """Return another value of the same kind; None where there is none to take."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1 if draw % 2 else max(1, value // 2)
    if isinstance(value, float):
        return value * 1.5 + 0.25
    if isinstance(value, str):
        return next((act for act in ("relu", "silu", "gelu") if act != value), None)
    return value[::-1] if isinstance(value, list) and value != value[::-1] else None


def edited(family: str) -> list[str]:
    """Return the fields of a family's first case that say what is computed."""
    said = CASES[FAMILIES[family][0]].make()[1].to_dict()
    of_no_pass = [name for name in said if any(re.fullmatch(pattern, name) for pattern in WITHOUT_EFFECT)]
    return sorted(set(said) - set(of_no_pass) - NOT_EDITED)


EVERY = 6


def logits_of(model: Any, ids: torch.Tensor, *, pair: bool) -> torch.Tensor:
    """Return the logits of a text; of an encoder-decoder, those of the text backwards after it."""
    with torch.no_grad():
        if not pair:
            found = model(ids)
        elif isinstance(model, EncoderDecoder):
            found = model(ids, ids.flip(1))
        else:
            found = model(input_ids=ids, decoder_input_ids=ids.flip(1))
    return getattr(found, "logits", found)


def compare(family: str, name: str, folder: Path) -> str:
    """Edit one field of a family's checkpoint; return what came of it."""
    kind, config = CASES[FAMILIES[family][0]].make()
    reference_folder(kind, config, folder, torch.float32)
    said = json.loads((folder / "config.json").read_text())
    other = changed(said.get(name), crc32(name.encode()))
    if other is None:
        return "nothing to edit"
    (folder / "config.json").write_text(json.dumps(said | {name: other}))
    ids = torch.randint(3, said["vocab_size"], (1, 12), generator=torch.Generator().manual_seed(0))
    pair = config.is_encoder_decoder
    try:
        ours = logits_of(gf.load(folder, dtype=torch.float32), ids, pair=pair)
    except CheckpointError:
        return "refused"
    try:
        # Falcon's fused attention is another formula than its eager one where it has ALiBi, and ours is the fused one
        theirs = logits_of(reference(folder, attention="sdpa" if family == "Falcon" else "eager"), ids, pair=pair)
    except (CheckpointError, ValueError, RuntimeError, IndexError, ZeroDivisionError, AssertionError):
        return "the reference cannot run it"
    assert ours.shape == theirs.shape, f"{family}: {name}={other!r}"
    error = float((ours - theirs).abs().max() / theirs.square().mean().sqrt())
    assert error < 1e-3, f"{family}: with {name}={other!r} the logits are {error:.1e} from the reference's"
    return "the same numbers"


@pytest.mark.parametrize("family", [family for family in FAMILIES if crc32(family.encode()) % EVERY == 0])
def test_an_edited_field_says_the_same_to_both(family: str, tmp_path: Path) -> None:
    names = edited(family)
    compare(family, names[crc32(b"one of " + family.encode()) % len(names)], tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("family", FAMILIES)
def test_each_edited_field_says_the_same_to_both(family: str, tmp_path: Path) -> None:
    outcomes = [compare(family, name, tmp_path / name) for name in edited(family)]
    assert "the same numbers" in outcomes


def test_an_unembedding_beside_that_of_the_decoder_alone_is_refused_where_the_config_ties_them(tmp_path: Path) -> None:
    kind, config = CASES["marian_with_more_tokens_to_write_untied"].make()
    reference_folder(kind, config, tmp_path, torch.float32)
    said = json.loads((tmp_path / "config.json").read_text()) | {"tie_word_embeddings": True}
    (tmp_path / "config.json").write_text(json.dumps(said))
    message = 'ties "lm_head.weight" to "model.decoder.embed_tokens.weight", and the two differ'
    with pytest.raises(CheckpointError, match=message):
        gf.load(tmp_path)


@pytest.mark.parametrize("name", ["dense_act_fn", "is_gated_act"])
def test_what_t5_took_its_word_for_a_feed_forward_layer_for_counts_where_a_file_says_it(
    name: str, tmp_path: Path
) -> None:
    assert compare("T5", name, tmp_path) == ("refused" if name == "is_gated_act" else "the same numbers")
