"""Low-rank adapters in PEFT's layout: `adapter_config.json` and `adapter_model.safetensors`.

    ours       blocks.0.attn.query          rows of the joined map
    theirs     base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight, .lora_B.weight

Which of their modules a matrix is, and how its rows lie there, is what the family's table says by which the model was
opened. What begins from a product that was in the matrix already (MiLoRA, CorDA) is written as a LoRA of twice the rank
on the base as it is: [B, B0] [A; -A0].
"""

from collections import Counter
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Int
from safetensors.torch import save as serialise
from torch import Tensor

from glassformer import files
from glassformer.adaptation._adapter import Adapter
from glassformer.adaptation._low_rank import Lora, LowRank
from glassformer.arguments import checked
from glassformer.checkpoints.adapters import LoraFolder
from glassformer.checkpoints.families import FAMILIES, Fields, Piece, Source, sources
from glassformer.checkpoints.tensors import ADAPTER, ADAPTER_WEIGHTS
from glassformer.errors import CheckpointError, nearest
from glassformer.models import Matrix, Model, ModelLike, require_model
from glassformer.numerics.parametrized import original, seen_state

_ROOT = "base_model.model."


class _Theirs(NamedTuple):
    """Where a matrix lies in the published layout.

    Args:
        module: The module.
        order: For each of our rows, which of theirs it is.
    """

    module: str
    order: Int[Tensor, " row"]


@checked
def save_peft(adapter: Adapter, folder: str | Path, model: ModelLike) -> Path:
    """Write a low-rank adapter as a folder that PEFT loads beside the published model.

    Args:
        adapter: LoRA, MiLoRA, CorDA, or a mixture of these.
        folder: Made if missing.
        model: The model it was made for, opened from a published folder.

    Raises:
        CheckpointError: The adapter is of another kind, the model came from no published layout, or that stores a
            matrix in a way that a product cannot be added to.
        SaveError: The folder cannot be written to; what was there before is still whole.
    """
    model, tensors = require_model(model, "save_peft"), dict[str, Tensor]()
    scales = dict[str, tuple[int, float]]()
    theirs = _layout(model)
    for name, matrix in adapter.matrices(model).items():
        change = adapter.changes[name]
        if not isinstance(change, LowRank):
            raise CheckpointError(
                f"save_peft: its layout is of products that are added, and {adapter.config.described} is none.\n"
                "    A folder of our own: save_adapter(adapter, folder). Merged: glassformer.save(model, folder)."
            )
        place = _place(theirs, matrix, model)
        b, a = (value.detach().cpu() for value in change.unscaled())
        laid = torch.empty_like(b)
        laid[place.order] = b
        tensors[f"{_ROOT}{place.module}.lora_A.weight"] = a.contiguous()
        tensors[f"{_ROOT}{place.module}.lora_B.weight"] = laid
        scales[place.module] = len(a), float(change.scale) * len(a)
    said = files.json_text(_said(scales, adapter.model_name), indent=2)
    return files.write_all(Path(folder), {ADAPTER_WEIGHTS: serialise(tensors), ADAPTER: said})


@checked
def load_peft(folder: str | Path, model: ModelLike) -> Adapter:
    """An adapter from a folder in PEFT's layout, frozen, for the model it was trained beside.

    `glassformer.load(base, adapter=folder)` merges it instead, and takes what this refuses: embeddings, biases and
    modules that were trained whole.

    Args:
        folder: With `adapter_config.json` and `adapter_model.safetensors`.
        model: The base, opened from a published folder.

    Raises:
        CheckpointError: The folder is damaged or of another kind, or holds what no matrix of the model is.
    """
    lora, model = LoraFolder(Path(folder)), require_model(model, "load_peft")
    layout = _layout(model)
    by_module = dict[str, tuple[Matrix, _Theirs]]()
    for matrix in model.matrices():
        if (place := layout.get(matrix.name)) is not None:
            by_module[place.module] = matrix, place
    way = f'\n    Merge it as a whole: glassformer.load(BASE, adapter="{folder}").'
    if lora.whole:
        raise CheckpointError(f'"{folder}" holds "{next(iter(lora.whole))}", which is no product of factors.{way}')
    changes, scale, rank = dict[str, LowRank](), 1.0, 1
    for module, factors in lora.factors.items():
        if module not in by_module or lora.is_transposed(factors):
            raise CheckpointError(
                f'"{folder}" changes "{module}", which is no matrix of this model.{nearest(module, by_module)}{way}'
            )
        matrix, place = by_module[module]
        weight = original(matrix.module, "weight")
        a, b = (lora.files.read(name) for name in (factors.a, factors.b))
        if (len(b), a.shape[1]) != matrix.shape or b.shape[1] != len(a):
            raise CheckpointError(
                f'"{folder}": the factors of "{module}" make {len(b)} x {a.shape[1]}, and "{matrix.name}" is '
                f"{matrix.shape[0]} x {matrix.shape[1]}: it was trained beside another model."
            )
        kind = torch.promote_types(weight.dtype, torch.float32)
        a, b = (value.to(weight.device, kind, copy=True) for value in (a, b))
        rank, scale = len(a), factors.scale
        changes[matrix.name] = LowRank(b[place.order.to(b.device)], a, scale)
    if not changes:
        raise CheckpointError(f'"{folder}" holds no factors.')
    name = str(lora.said.get("base_model_name_or_path", "") or model.name)
    return Adapter(Lora(rank, scale * rank), changes, model=name).requires_grad_(False).eval()


def _said(scales: dict[str, tuple[int, float]], base: str) -> dict[str, object]:
    """Return what `adapter_config.json` says; modules of another rank or scale than most have patterns."""
    (rank, alpha), _ = Counter(scales.values()).most_common(1)[0]
    return {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base, "r": rank, "lora_alpha": alpha,
        "target_modules": list(scales), "lora_dropout": 0.0, "bias": "none", "fan_in_fan_out": False,
        "use_rslora": False, "init_lora_weights": True, "inference_mode": True,
        "rank_pattern": {module: r for module, (r, _) in scales.items() if r != rank},
        "alpha_pattern": {module: one for module, (_, one) in scales.items() if one != alpha},
    }  # fmt: skip


def _layout(model: Model) -> dict[str, _Theirs | None]:
    """Return where matrices lie in the layout that a model was opened from; None for those without their own module."""
    origin = model.origin
    family = None if origin is None else next((one for one in FAMILIES if one.name == origin.family), None)
    if origin is None or family is None:
        raise CheckpointError(
            f'PEFT\'s layout goes by the names of a published model, and "{model.name}" was opened from none.\n'
            "    Convert it first, and open that: glassformer convert IN OUT --to huggingface."
        )
    fields = Fields(origin.config, family.config_name)
    parts = sources({name: tuple(t.shape) for name, t in seen_state(model).items()}, family.names(fields, model.config))
    paths = {id(module): path for path, module in model.named_modules()}
    return {one.name: _found(one, parts[f"{paths[id(one.module)]}.weight"]) for one in model.matrices()}


def _found(matrix: Matrix, source: Source) -> _Theirs | None:
    start = 0
    for piece in source.pieces:
        rows = source.shape[0] - start if piece.rows is None else piece.rows
        if start == matrix.rows.start and rows == len(matrix.rows) and len(source.shape) == 2:
            order = _order(piece, rows)
            return None if order is None else _Theirs(piece.name.removesuffix(".weight"), order)
        start += rows
    return None


def _order(piece: Piece, rows: int) -> Int[Tensor, " row"] | None:
    """Return which of their rows each of ours is; None where ours are no rows of theirs, or not all of them."""
    if piece.transposed or piece.layers is not None or piece.zero:
        return None
    every = torch.arange(rows)[:, None]
    order = (every if piece.view is None else piece.view(every)).flatten()
    return order if len(order) == rows and torch.equal(order.sort().values, every.flatten()) else None


def _place(theirs: dict[str, _Theirs | None], matrix: Matrix, model: Model) -> _Theirs:
    place = theirs[matrix.name]
    if place is None:
        raise CheckpointError(
            f'"{matrix.name}" is no module of its own in the layout that "{model.name}" was opened from, so no product '
            "can be added to it there.\n    A folder of our own: save_adapter(adapter, folder)."
        )
    return place
