"""Families of published models, one table each; a checkpoint is recognised by its config's structure."""

from collections.abc import Collection, Mapping
from typing import Any

from glassformer.checkpoints.families.assemble import Source, assembled, sources, stored_names, taken_apart
from glassformer.checkpoints.families.bart import BART, MARIAN
from glassformer.checkpoints.families.bert import BERT, DISTILBERT, ROBERTA
from glassformer.checkpoints.families.bloom import BLOOM
from glassformer.checkpoints.families.diffllama import DIFFLLAMA
from glassformer.checkpoints.families.falcon import FALCON
from glassformer.checkpoints.families.family import Family, Piece, Table
from glassformer.checkpoints.families.fields import Fields
from glassformer.checkpoints.families.gemma import GEMMA, GEMMA2, GEMMA3
from glassformer.checkpoints.families.gpt2 import GPT2
from glassformer.checkpoints.families.gpt_neo import GPT_NEO
from glassformer.checkpoints.families.gpt_neox import GPT_NEOX
from glassformer.checkpoints.families.gpt_oss import GPT_OSS
from glassformer.checkpoints.families.gptj import GPTJ
from glassformer.checkpoints.families.llama import LLAMA
from glassformer.checkpoints.families.llama_params import LLAMA_PARAMS
from glassformer.checkpoints.families.mistral import MISTRAL, MIXTRAL
from glassformer.checkpoints.families.nanogpt import NANOGPT
from glassformer.checkpoints.families.olmo import OLMO, OLMO2
from glassformer.checkpoints.families.opt import OPT
from glassformer.checkpoints.families.per_head import PER_HEAD
from glassformer.checkpoints.families.phi import PHI
from glassformer.checkpoints.families.phi3 import PHI3
from glassformer.checkpoints.families.qwen import QWEN2, QWEN3
from glassformer.checkpoints.families.stablelm import STABLELM
from glassformer.checkpoints.families.t5 import T5
from glassformer.checkpoints.families.trained import FIELD, trained_length
from glassformer.checkpoints.families.transformer_lens import TRANSFORMER_LENS
from glassformer.errors import CheckpointError, nearest

# the first that covers a config reads it
FAMILIES: list[Family] = [
    BART, BERT, BLOOM, DIFFLLAMA, DISTILBERT, FALCON, GEMMA, GEMMA2, GEMMA3, GPT2, GPTJ, GPT_NEO, GPT_NEOX,
    GPT_OSS, LLAMA, LLAMA_PARAMS, MARIAN, MISTRAL, MIXTRAL, NANOGPT, OLMO, OLMO2, OPT, PER_HEAD, PHI, PHI3, QWEN2,
    QWEN3, ROBERTA, STABLELM, T5, TRANSFORMER_LENS,
]  # fmt: skip


def register(family: Family) -> Family:
    """Let checkpoints of a family of your own be opened; return it.

    It is asked before those that ship, and takes the place of one of the same name.

    Args:
        family: Its config's translation and its table.
    """
    FAMILIES[:] = [family, *(known for known in FAMILIES if known.name != family.name)]
    return family


def recognise(config: Mapping[str, Any], where: str, names: Collection[str] = ()) -> Family:
    """Return the family of a config.json.

    Args:
        config: Its content.
        where: The file, for the message.
        names: Of the tensors beside it, which tell layouts apart that share a config.

    Raises:
        CheckpointError: No family covers it; the message says which is closest and what works all the same.
    """
    for family in FAMILIES:
        if family.covers(config, names):
            return family
    known = [kind for family in FAMILIES for kind in family.model_types]
    kind = config.get("model_type")
    code = " It asks for code of its own (auto_map), which is never run." if "auto_map" in config else ""
    asked = f'the architecture "{kind}"' if kind is not None else "a config without model_type"
    raise CheckpointError(
        f'"{where}" describes {asked}, which no family covers.{code}{nearest(str(kind), known)}\n'
        f"    Known: {', '.join(sorted(known))}.\n"
        "    Any live module works now through gf.foreign (docs/how-to/use-any-module.md); a table for the family is "
        "docs/how-to/add-a-family.md."
    )


__all__ = [
    "FAMILIES",
    "FIELD",
    "LLAMA_PARAMS",
    "NANOGPT",
    "PER_HEAD",
    "TRANSFORMER_LENS",
    "Family",
    "Fields",
    "Piece",
    "Source",
    "Table",
    "assembled",
    "recognise",
    "register",
    "sources",
    "stored_names",
    "taken_apart",
    "trained_length",
]
