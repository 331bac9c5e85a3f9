"""What a published folder says of generating: generation_config.json, or where that is missing config.json.

Every field of generation_config.json is a rule that is kept, a suggestion, known to be without effect on which tokens
come, or told as not done.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from glassformer.errors import GlassformerError
from glassformer.files import read_object
from glassformer.models import ModelConfig, Sampling
from glassformer.models.generation_rules import GenerationRules

FILE = "generation_config.json"
DRAWN = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
# what says of a field that it asks for nothing, besides null
NOT_DONE: Mapping[str, tuple[Any, ...]] = {
    "min_length": (0,), "min_new_tokens": (0,), "no_repeat_ngram_size": (0,), "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1.0,), "typical_p": (1.0,), "epsilon_cutoff": (0.0,), "eta_cutoff": (0.0,),
    "top_h": (), "exponential_decay_length_penalty": (), "sequence_bias": (), "guidance_scale": (1.0,),
    "watermarking_config": (), "penalty_alpha": (0.0,), "dola_layers": (), "diversity_penalty": (0.0,),
    "num_beam_groups": (1,), "constraints": (), "force_words_ids": (), "stop_strings": (), "token_healing": (False,),
    "length_penalty": (1.0,), "early_stopping": (False,),
}  # fmt: skip
# how many tokens, how fast, what is returned besides them, and what pads rows
WITHOUT_EFFECT = {
    "max_length", "max_new_tokens", "max_time", "use_cache", "cache_implementation", "cache_config", "max_cache_len",
    "use_mtp", "renormalize_logits", "remove_invalid_values", "num_return_sequences", "output_attentions",
    "output_hidden_states", "output_scores", "output_logits", "return_dict_in_generate", "pad_token_id",
    "bos_token_id", "is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule",
    "assistant_confidence_threshold", "prompt_lookup_num_tokens", "max_matching_ngram_size", "assistant_early_exit",
    "assistant_lookbehind", "target_lookbehind", "assistant_ensemble_weight", "speculation_type", "compile_config",
    "disable_compile", "continuous_batching_config", "low_memory", "prefill_chunk_size", "_from_model_config",
    "transformers_version",
}  # fmt: skip
READ = {
    "eos_token_id", "forced_bos_token_id", "forced_eos_token_id", "bad_words_ids", "suppress_tokens",
    "begin_suppress_tokens", "do_sample", "num_beams", "decoder_start_token_id", *DRAWN,
}  # fmt: skip


def rules_of(folder: Path, config: Mapping[str, Any], ours: ModelConfig) -> GenerationRules:
    """What a folder says of generating.

    Args:
        folder: The folder.
        config: What its config.json says.
        ours: The config made of it.

    Raises:
        CheckpointError: generation_config.json is broken.
    """
    own = read_object(folder / FILE)
    # as in transformers, the one file counts or the other, not both
    said = own if (folder / FILE).exists() else config
    said = {name: value for name, value in said.items() if value is not None}
    not_done: dict[str, Any] = {}
    size = ours.n_outputs

    def ids(name: str) -> tuple[int, ...]:
        given = said.get(name, ())
        given = given if isinstance(given, list | tuple) else [given]
        # an id outside the vocabulary is never drawn, and ends nothing
        if not all(type(id) is int for id in given):
            not_done[name] = said[name]
            return ()
        return tuple(id for id in given if 0 <= id < size)

    def forced(name: str) -> int | None:
        found = ids(name)
        if len(found) > 1 or (name in said and not found):
            not_done[name] = said[name]
        return found[0] if len(found) == 1 else None

    stops = ids("eos_token_id")
    words = list(_words(said.get("bad_words_ids", ()), size, not_done))
    rules = GenerationRules(
        stops=stops,
        first=forced("forced_bos_token_id"),
        last=forced("forced_eos_token_id"),
        never=ids("suppress_tokens"),
        never_first=ids("begin_suppress_tokens"),
        # a text may end, whatever words are bad
        never_words=tuple(tuple(row) for row in words if len(row) > 1 or row[0] not in stops),
        sampling=_sampling(said, not_done),
        n_beams=said["num_beams"] if type(said.get("num_beams")) is int else 1,
    )
    start = getattr(ours, "start_id", None)
    if own and start is not None and said.get("decoder_start_token_id", start) != start:
        not_done["decoder_start_token_id"] = said["decoder_start_token_id"]
    known = READ | WITHOUT_EFFECT | set(NOT_DONE)
    for name, value in said.items():
        asks = name in NOT_DONE and value not in (*NOT_DONE[name], [], {})
        if asks or (name in own and name not in known):
            not_done[name] = value
    told = tuple(f"{name}={_short(value)}" for name, value in not_done.items())
    return rules if not told else GenerationRules.from_dict(rules.to_dict() | {"not_done": told})


def _words(given: Any, size: int, not_done: dict[str, Any]) -> Iterator[list[int]]:
    for row in given if isinstance(given, list | tuple) else [given]:
        if not isinstance(row, list) or not row or not all(type(id) is int for id in row):
            not_done["bad_words_ids"] = given
        elif all(0 <= id < size for id in row):
            yield row


def _sampling(said: Mapping[str, Any], not_done: dict[str, Any]) -> Sampling | None:
    """Return the settings that are suggested: of drawing if it is said to draw, else of taking the likeliest."""
    given = {name: said[name] for name in DRAWN if name in said}
    if said.get("do_sample") is not True:
        penalty = given.get("repetition_penalty", 1.0)
        given = {} if penalty == 1.0 else {"temperature": 0.0, "repetition_penalty": penalty}
    # as transformers writes that a filter is off
    given = {name: value for name, value in given.items() if (name, value) not in [("top_k", 0), ("top_p", 1.0)]}
    if not given and said.get("do_sample") is not True:
        return None
    try:
        numbers: dict[str, Any] = {name: value if name == "top_k" else float(value) for name, value in given.items()}
        return Sampling(**numbers)
    except (GlassformerError, TypeError, ValueError):
        not_done |= given
        return None


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}…"
