"""Families of published models, one table each; a checkpoint is recognised by its config's structure."""

from collections.abc import Collection, Mapping
from typing import Any

from glassformer.checkpoints.families.assemble import Source, assembled, sources, stored_names, taken_apart
from glassformer.checkpoints.families.bart import BART, BLENDERBOT, M2M100, MARIAN, MBART, PEGASUS, PLBART
from glassformer.checkpoints.families.bert import BERT, DISTILBERT, ROBERTA
from glassformer.checkpoints.families.big_bird import BIG_BIRD
from glassformer.checkpoints.families.bloom import BLOOM
from glassformer.checkpoints.families.cohere import COHERE, COHERE2
from glassformer.checkpoints.families.deepseek import DEEPSEEK_V2, DEEPSEEK_V3
from glassformer.checkpoints.families.diffllama import DIFFLLAMA
from glassformer.checkpoints.families.exaone import EXAONE4
from glassformer.checkpoints.families.experts import OLMOE, QWEN3_MOE
from glassformer.checkpoints.families.fairseq import BIOGPT, XGLM
from glassformer.checkpoints.families.falcon import FALCON
from glassformer.checkpoints.families.family import Family, Piece, Table
from glassformer.checkpoints.families.fields import Fields
from glassformer.checkpoints.families.gemma import GEMMA, GEMMA2, GEMMA3, VAULTGEMMA
from glassformer.checkpoints.families.glm import GLM, GLM4
from glassformer.checkpoints.families.gpt2 import GPT2
from glassformer.checkpoints.families.gpt_neo import GPT_NEO
from glassformer.checkpoints.families.gpt_neox import GPT_NEOX
from glassformer.checkpoints.families.gpt_oss import GPT_OSS
from glassformer.checkpoints.families.gptj import CODEGEN, GPTJ
from glassformer.checkpoints.families.granite import GRANITE
from glassformer.checkpoints.families.heads import as_filed, head_of, labels_of, notes_of_head
from glassformer.checkpoints.families.hooked_encoder import HOOKED_ENCODER
from glassformer.checkpoints.families.llama import LLAMA
from glassformer.checkpoints.families.llama_kin import (
    ARCEE,
    CWM,
    ERNIE45,
    HELIUM,
    JAIS2,
    MINISTRAL,
    NEMOTRON,
    SEED_OSS,
    SMOLLM3,
)
from glassformer.checkpoints.families.llama_params import LLAMA_PARAMS
from glassformer.checkpoints.families.longformer import LONGFORMER
from glassformer.checkpoints.families.mamba2 import MAMBA2
from glassformer.checkpoints.families.minimax import MINIMAX
from glassformer.checkpoints.families.missing import MISSING
from glassformer.checkpoints.families.mistral import MISTRAL, MIXTRAL
from glassformer.checkpoints.families.mpt import MPT
from glassformer.checkpoints.families.nanogpt import NANOGPT
from glassformer.checkpoints.families.olmo import OLMO, OLMO2, OLMO3
from glassformer.checkpoints.families.opt import OPT
from glassformer.checkpoints.families.per_head import PER_HEAD
from glassformer.checkpoints.families.persimmon import PERSIMMON
from glassformer.checkpoints.families.phi import PHI
from glassformer.checkpoints.families.phi3 import PHI3
from glassformer.checkpoints.families.qwen import QWEN2, QWEN3
from glassformer.checkpoints.families.reformer import REFORMER
from glassformer.checkpoints.families.rwkv import RWKV
from glassformer.checkpoints.families.stablelm import STABLELM
from glassformer.checkpoints.families.starcoder import GPT_BIGCODE, STARCODER2
from glassformer.checkpoints.families.t5 import T5
from glassformer.checkpoints.families.trained import FIELD, trained_length
from glassformer.checkpoints.families.transformer_lens import TRANSFORMER_LENS
from glassformer.checkpoints.families.unread import require_read
from glassformer.errors import CheckpointError, nearest

# the first that covers a config reads it
FAMILIES: list[Family] = [
    ARCEE, BART, BERT, BIG_BIRD, BIOGPT, BLENDERBOT, BLOOM, CODEGEN, COHERE, COHERE2, CWM, DEEPSEEK_V2, DEEPSEEK_V3,
    DIFFLLAMA, DISTILBERT, ERNIE45, EXAONE4, FALCON, GEMMA, GEMMA2, GEMMA3, GLM, GLM4, GPT2, GPTJ, GPT_BIGCODE,
    GPT_NEO, GPT_NEOX, GPT_OSS, GRANITE, HELIUM, HOOKED_ENCODER, JAIS2, LLAMA, LLAMA_PARAMS, LONGFORMER, M2M100,
    MAMBA2, MARIAN, MBART, MINIMAX, MINISTRAL, MISTRAL, MIXTRAL, MPT, NANOGPT, NEMOTRON, OLMO, OLMO2, OLMO3, OLMOE,
    OPT, PEGASUS, PERSIMMON, PER_HEAD, PHI, PHI3, PLBART, QWEN2, QWEN3, QWEN3_MOE, REFORMER, ROBERTA, RWKV, SEED_OSS,
    SMOLLM3, STABLELM, STARCODER2, T5, TRANSFORMER_LENS, VAULTGEMMA, XGLM,
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
    """The family of a config.json.

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
    lacking = f" It has {lack}, which no part here computes." if (lack := MISSING.get(str(kind))) else ""
    lacking += _half(config)
    asked = f'the architecture "{kind}"' if kind is not None else "a config without model_type"
    raise CheckpointError(
        f'"{where}" describes {asked}, which no family covers.{code}{lacking}{nearest(str(kind), known)}\n'
        f"    Known: {', '.join(sorted(known))}.\n"
        "    Any live module works now through gf.foreign (docs/how-to/use-any-module.md); a table for the family is "
        "docs/how-to/add-a-family.md."
    )


def _half(config: Mapping[str, Any]) -> str:
    """Return what to say of a config in which the one of a covered architecture lies; empty if there is none."""
    for name, inner in config.items():
        if isinstance(inner, Mapping) and "model_type" in inner:
            family = next((family for family in FAMILIES if family.covers(inner)), None)
            if family is not None:
                return (
                    f' Its {name} is of "{inner["model_type"]}", which is covered ({family.name}): a folder with that '
                    "part as its config.json, and with its tensors alone, opens."
                )
    return ""


__all__ = [
    "FAMILIES",
    "FIELD",
    "HOOKED_ENCODER",
    "LLAMA_PARAMS",
    "NANOGPT",
    "PER_HEAD",
    "TRANSFORMER_LENS",
    "Family",
    "Fields",
    "Piece",
    "Source",
    "Table",
    "as_filed",
    "assembled",
    "head_of",
    "labels_of",
    "notes_of_head",
    "recognise",
    "register",
    "require_read",
    "sources",
    "stored_names",
    "taken_apart",
    "trained_length",
]
