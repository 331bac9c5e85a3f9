"""Quantised checkpoints, told by their config or by the names of their tensors, and refused."""

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from glassformer.errors import CheckpointError

# endings of tensors that only quantised layers have
ENDINGS = {
    r"\.(qweight|qzeros|g_idx)": "GPTQ or AWQ",
    r"\.(SCB|weight_format)": "bitsandbytes, 8 bits",
    r"\.(absmax|quant_map|nested_absmax|quant_state\.bitsandbytes__\w+)": "bitsandbytes, 4 bits",
    r"\.(weight_packed|weight_global_scale|weight_zero_point)": "compressed-tensors",
    r"\.(weight_scale_inv|weight_scale|input_scale)": "FP8 with scales",
    r"_(blocks|scales)": "MXFP4",
    r"\.(q_weight|q_scale|q_groups|q_invperm)": "EXL2",
}
METHODS = {
    "gptq": "GPTQ", "awq": "AWQ", "fp8": "FP8", "fbgemm_fp8": "FP8", "mxfp4": "MXFP4", "hqq": "HQQ", "aqlm": "AQLM",
    "eetq": "EETQ", "quanto": "Quanto", "exl2": "EXL2", "quip": "QuIP#", "modelopt": "ModelOpt",
}  # fmt: skip


def require_unquantised(config: Mapping[str, Any], where: Path, names: Collection[str] = ()) -> None:
    """Raise `CheckpointError` if a published folder holds quantised weights.

    Args:
        config: What its config says.
        where: The config file.
        names: Of its tensors.
    """
    found = _by_config(config) or _by_names(names)
    if found:
        raise CheckpointError(
            f'"{where.parent}" holds quantised weights ({found}). Weights in F16, BF16, F32 and F64 are read: what is '
            "computed from rounded codes and scales is not the published model.\n    Take the checkpoint it was made "
            "from, or have the library that wrote it dequantise it: in transformers, model.dequantize() and then "
            "model.save_pretrained(FOLDER). A GGUF file opens, as the rounded model that it holds."
        )


def _by_config(config: Mapping[str, Any]) -> str:
    said = config.get("quantization_config", config.get("compression_config"))
    if not isinstance(said, Mapping):
        return ""
    method = str(said.get("quant_method", "of an unknown method"))[:40]
    bits = next((said[key] for key in ("bits", "w_bit", "nbits") if isinstance(said.get(key), int)), None)
    bits = 4 if said.get("load_in_4bit") is True else 8 if said.get("load_in_8bit") is True else bits
    return f"{METHODS.get(method, method)}{f', {bits} bits' if bits else ''}: quantization_config"


def _by_names(names: Collection[str]) -> str:
    for ending, method in ENDINGS.items():
        found = next((name for name in names if re.search(f"{ending}$", name)), None)
        if found is not None:
            return f'{method}: a tensor "{found[:80]}"'
    return ""
