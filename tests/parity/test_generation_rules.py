"""What generation_config.json asks for against transformers' generate, and what is told of it."""

import json
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch

import glassformer as gf
from glassformer.models import GREEDY, Sampling, Serving, beam_search
from one_pass import in_one_pass

VOCAB, NEW = 24, 6
PROMPTS = [[5, 17, 3], [9, 2, 2, 11], [7]]
SPECIALS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
SIZES: dict[str, Any] = {"vocab_size": VOCAB, "max_position_embeddings": 32} | SPECIALS


@cache
def weights_of(pairs: bool) -> Path:
    """Return a folder with a tiny model whose likeliest tokens vary with the text."""
    from transformers import LlamaConfig, LlamaForCausalLM, M2M100Config, M2M100ForConditionalGeneration

    torch.manual_seed(0)
    if pairs:
        halves: dict[str, Any] = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in HALF.items()}
        model: Any = M2M100ForConditionalGeneration(
            M2M100Config(d_model=16, decoder_start_token_id=2, **SIZES, **halves)
        )
    else:
        model = LlamaForCausalLM(
            LlamaConfig(hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, **SIZES)
        )
    for value in model.parameters():
        value.data = 0.5 * torch.randn_like(value)
    model.tie_weights()
    folder = Path(mkdtemp())
    model.save_pretrained(folder)
    return folder


HALF = {"layers": 1, "attention_heads": 2, "ffn_dim": 24}


def saying(pairs: bool, folder: Path, **said: Any) -> Path:
    """Return the folder of that model with another generation_config.json; None leaves it out."""
    for file in weights_of(pairs).iterdir():
        (folder / file.name).unlink(missing_ok=True)
        (folder / file.name).hardlink_to(file)
    (folder / "generation_config.json").unlink(missing_ok=True)
    (folder / "generation_config.json").write_text(json.dumps(said | ({"decoder_start_token_id": 2} if pairs else {})))
    return folder


@cache
def reference(pairs: bool) -> Any:
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    kind = AutoModelForSeq2SeqLM if pairs else AutoModelForCausalLM
    return kind.from_pretrained(weights_of(pairs), dtype=torch.float32)


def theirs(folder: Path, prompt: list[int], pairs: bool) -> list[int]:
    from transformers import GenerationConfig

    model = reference(pairs)
    # as `from_pretrained` does, which takes longer
    model.generation_config = GenerationConfig.from_pretrained(folder)
    found = model.generate(torch.tensor([prompt]), do_sample=False, num_beams=1, max_new_tokens=NEW)[0].tolist()
    return found[1 if pairs else len(prompt) :]


def ours(folder: Path, prompt: list[int], pairs: bool) -> list[int]:
    model = gf.load(folder, dtype=torch.float32)
    if pairs:
        return [*gf.generate(model, [model.start], GREEDY, source=[prompt], max_new_tokens=NEW).tokens[0]]
    return [*gf.generate(model, [prompt], GREEDY, max_new_tokens=NEW).tokens[0]]


# made of what the model writes without rules, so that each of them changes something
RULES: dict[str, Any] = {
    "one stop": lambda t: {"eos_token_id": t[2]},
    "several stops": lambda t: {"eos_token_id": [t[1], t[3]]},
    "never": lambda t: {"suppress_tokens": [t[0], t[2]]},
    "never first": lambda t: {"begin_suppress_tokens": [t[0]]},
    "bad words": lambda t: {"bad_words_ids": [t[0:2], t[1:4], [t[4]]]},
    "bad stop": lambda t: {"bad_words_ids": [[t[1]], [t[0]]], "eos_token_id": [t[1]]},
    "last": lambda t: {"forced_eos_token_id": 2, "eos_token_id": 2},
    "first": lambda t: {"forced_bos_token_id": 21},
    "first and never first": lambda t: {"forced_bos_token_id": 21, "begin_suppress_tokens": [t[0], t[1]]},
    "all": lambda t: {
        "forced_bos_token_id": 21, "forced_eos_token_id": 2, "suppress_tokens": [t[1]], "bad_words_ids": [[21, t[2]]]
    },
}  # fmt: skip


@pytest.mark.parametrize("pairs", [False, True], ids=["one text", "pairs"])
def test_rules_of_a_checkpoint_are_kept_as_transformers_keeps_them(pairs: bool, tmp_path: Path) -> None:
    for prompt in PROMPTS[:1] if pairs else (PROMPTS[0], PROMPTS[2]):
        free = theirs(saying(pairs, tmp_path), prompt, pairs)
        for name, rule in RULES.items():
            folder = saying(pairs, tmp_path, **rule(free))
            expected = theirs(folder, prompt, pairs)
            assert ours(folder, prompt, pairs) == expected, (name, prompt)
            # behind more than one token none is forced for being the first
            assert expected != free or not (pairs or len(prompt) == 1), name


def test_stops_stand_in_config_json_where_no_other_file_says_them(tmp_path: Path) -> None:
    folder = saying(False, tmp_path)
    free = theirs(folder, PROMPTS[0], False)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").unlink()
    (folder / "generation_config.json").unlink()
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": [free[2]]}))
    assert ours(folder, PROMPTS[0], False) == free[: free.index(free[2]) + 1]


def test_rules_hold_in_batches_searches_and_serving_and_in_our_own_files(tmp_path: Path) -> None:
    free = theirs(saying(False, tmp_path), PROMPTS[0], False)
    said = {"suppress_tokens": free[:2], "forced_bos_token_id": 21, "bad_words_ids": [[21, 3]], "eos_token_id": free[4]}
    model = gf.load(saying(False, tmp_path, **said, forced_eos_token_id=2), dtype=torch.float32)
    alone = [gf.generate(model, [p], GREEDY, max_new_tokens=NEW).tokens[0] for p in PROMPTS]
    assert gf.generate(model, PROMPTS, GREEDY, max_new_tokens=NEW).tokens == tuple(alone)
    serving = Serving(model, n_pages=32)
    requests = [serving.submit(p, GREEDY, max_new_tokens=NEW) for p in PROMPTS]
    assert {request.number for request in serving.run()} == {0, 1, 2}
    assert [request.tokens for request in requests] == alone
    found = [beam_search(model, [p], n_beams=1, max_new_tokens=NEW).best[0].tokens for p in PROMPTS]
    assert found == alone
    gf.save(model, tmp_path / "own")
    again = gf.load(tmp_path / "own", dtype=torch.float32)
    assert again.generation == model.generation
    assert gf.generate(again, PROMPTS, GREEDY, max_new_tokens=NEW).tokens == tuple(alone)
    assert len(gf.generate(again, [PROMPTS[0]], GREEDY, max_new_tokens=NEW, stop_ids=()).tokens[0]) == NEW


@in_one_pass
@pytest.mark.parametrize(
    ("said", "asked", "told"),
    [
        ({"do_sample": True, "temperature": 0.6, "top_p": 0.9}, GREEDY, ["temperature=0.6, top_p=0.9"]),
        ({"do_sample": True, "temperature": 0.6, "top_k": 0}, Sampling(temperature=0.6, seed=4), []),
        ({"temperature": 0.6, "top_k": 50}, GREEDY, []),
        ({"repetition_penalty": 1.1}, GREEDY, ["temperature=0.0, repetition_penalty=1.1"]),
        ({"num_beams": 4}, GREEDY, ["with 4 beams"]),
        ({"no_repeat_ngram_size": 3, "min_length": 0}, GREEDY, ["no_repeat_ngram_size=3"]),
        ({"language_of_the_day": "x", "max_length": 20, "typical_p": 1.0}, GREEDY, ["language_of_the_day=x"]),
        ({"suppress_tokens": "x"}, GREEDY, ["suppress_tokens=x"]),
        ({"forced_eos_token_id": VOCAB}, GREEDY, [f"forced_eos_token_id={VOCAB}"]),
        ({"bad_words_ids": [7]}, GREEDY, ["bad_words_ids=[7]"]),
        ({"do_sample": True, "temperature": -1}, GREEDY, ["temperature=-1"]),
        ({"do_sample": True, "top_k": [5]}, GREEDY, ["top_k=[5]"]),
        ({}, GREEDY, []),
    ],
)
def test_what_is_suggested_or_not_done_is_told_unless_it_is_what_was_asked(said, asked, told) -> None:
    model = gf.load(saying(False, Path(mkdtemp()), **said), dtype=torch.float32)
    notes = [note.seen for note in gf.generate(model, [PROMPTS[0]], asked, max_new_tokens=1).notes]
    assert len(notes) == len(told)
    assert all(words in note for words, note in zip(told, notes))


def test_every_field_of_the_reference_is_read_known_or_told() -> None:
    from transformers import GenerationConfig

    from glassformer.checkpoints.generation import NOT_DONE, READ, WITHOUT_EFFECT

    assert set(GenerationConfig().to_dict()) <= READ | WITHOUT_EFFECT | set(NOT_DONE)
    assert not READ & WITHOUT_EFFECT and not READ & set(NOT_DONE) and not WITHOUT_EFFECT & set(NOT_DONE)
