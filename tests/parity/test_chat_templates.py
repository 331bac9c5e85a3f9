"""Conversations against transformers' apply_chat_template, on a tokenizer made here."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers

import glassformer as gf
from glassformer.checkpoints import convert
from glassformer.cli import main
from glassformer.cli.options import Reading
from glassformer.data import published
from glassformer.errors import MissingExtra, TextError
from glassformer.models import GREEDY
from verbs import taking

SPECIALS = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
CHATML = """{%- for message in messages %}
    {%- if loop.first and message.role != 'system' %}
        {{- bos_token + '<|im_start|>system\\nBe brief.<|im_end|>\\n' }}
    {%- endif %}
    {% if message['content'] is string %}
{{ '<|im_start|>' + message.role + '\\n' + message.content | trim + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
STRICT = """{% set state = namespace(turn='user') %}{% for m in messages %}
{% if m.role != state.turn %}{{ raise_exception('roles alternate') }}{% endif %}
{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}
{% set state.turn = 'user' %}
{% else %}[INST] {{ {'said': m.content} | tojson }} {{ unk_token }}[/INST]{% set state.turn = 'assistant' %}{% endif %}
{% if loop.index > 8 %}{% break %}{% endif %}{% endfor %}"""
TALKS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": " Is it raining, naïve “one”?\n"}],
    [
        {"role": role, "content": content}
        for role, content in (("user", "a <s> b"), ("assistant", "<|im_end|>no"), ("user", "c"))
    ],
]
UNSAFE = ["{{ ().__class__.__base__ }}", "{{ messages.append(1) }}", "{% set n = namespace(_x=1) %}", "{% if"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A published folder with a byte-level tokenizer that knows the marks of conversations."""
    from transformers import LlamaConfig, LlamaForCausalLM

    alphabet = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    inner = tokenizers.Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(SPECIALS)
    sizes: dict[str, Any] = {
        "vocab_size": 260,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**sizes, max_position_embeddings=256)).save_pretrained(tmp_path)
    inner.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def saying(folder: Path, template: Any, file: str | None = None) -> Path:
    told: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": {"content": "</s>"},
    }
    told["eos_token"] |= {"__type": "AddedToken", "special": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(told | {"chat_template": template}))
    if file is not None:
        (folder / "chat_template.jinja").write_text(file)
    return folder


@pytest.mark.parametrize("where", ["config", "several", "file"])
def test_a_conversation_has_the_ids_of_transformers(where: str, folder: Path) -> None:
    from transformers import AutoTokenizer

    for template in (CHATML, STRICT):
        said = [{"name": "tool_use", "template": "-"}, {"name": "default", "template": template}]
        if where == "file":
            saying(folder, "of the config", template)
        else:
            saying(folder, template if where == "config" else said)
        model, theirs = gf.load(folder), AutoTokenizer.from_pretrained(str(folder))
        for talk in TALKS:
            for opens in (True, False):
                expected = theirs.apply_chat_template(talk, add_generation_prompt=opens, return_dict=False)
                assert gf.chat(model, talk, add_generation_prompt=opens) == expected


def test_what_a_conversation_is_can_be_run_generated_from_and_explained(folder: Path, capsys) -> None:
    model = gf.load(saying(folder, CHATML))
    ids = gf.chat(model, TALKS[0])
    assert gf.run(model, ids).tokens[:2] == ["<s>", "<|im_start|>"] and not gf.run(model, ids).notes
    answer = gf.generate(model, ids, GREEDY, max_new_tokens=3)
    assert answer.ids[0][: len(ids)] == tuple(ids)
    typed = TALKS[0][0]["content"]
    written = ["--json", str(folder / "found.json"), "--chat"]
    assert main(["generate", str(folder), typed, "--temperature", "0", "--max-new-tokens", "3", *written]) == 0
    assert capsys.readouterr().out == answer.texts[0] + "\n"
    assert main(["explain", str(folder), typed, *written]) == 0
    tokens = json.loads((folder / "found.json").read_text())["tokens"]
    assert [token["id"] for token in tokens] == ids


def test_a_template_goes_with_the_model_into_our_own_files_and_out_again(folder: Path) -> None:
    model = gf.load(saying(folder, CHATML))
    gf.save(model, folder / "own")
    own = gf.load(folder / "own")
    convert(folder / "own", folder / "theirs", "huggingface")
    for again in (own, gf.load(folder / "theirs")):
        assert gf.chat(again, TALKS[1]) == gf.chat(model, TALKS[1])


def test_what_is_no_conversation_is_refused_in_words(folder: Path, monkeypatch) -> None:
    model = gf.load(saying(folder, STRICT))
    with pytest.raises(TextError, match="refuses these messages: roles alternate"):
        gf.chat(model, TALKS[1][1:])
    for wrong in ([], [{"role": object()}], ["hi"]):
        with pytest.raises(TextError, match=r"a role and a content each|a list of messages"):
            gf.chat(model, wrong)
    for unsafe in UNSAFE:
        found = published(saying(folder, unsafe))
        assert found is not None and found.chat is not None
        with pytest.raises(TextError, match="refuses these messages"):
            found.chat.render(TALKS[0])
    bare = gf.load(saying(folder, None))
    with pytest.raises(TextError, match="has no chat template"):
        gf.chat(bare, TALKS[0])
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingExtra, match=r"glassformer\[chat\]"):
        gf.chat(model, TALKS[0])


TOOLS = [{"type": "function", "function": {"name": "rain", "parameters": {"type": "object", "properties": {}}}}]
WITH_TOOLS = "{{ bos_token }}{{ tools | tojson if tools else 'none' }}" + CHATML


def test_tools_have_the_ids_of_transformers_by_their_own_template_where_there_is_one(folder: Path) -> None:
    from transformers import AutoTokenizer

    both = [{"name": "tool_use", "template": WITH_TOOLS}, {"name": "default", "template": CHATML}]
    for place, said in ((folder / "of one", WITH_TOOLS), (folder / "of two", both)):
        model, theirs = gf.load(saying(folder, said)), AutoTokenizer.from_pretrained(str(folder))
        gf.save(model, place / "own")
        convert(place / "own", place / "back", "huggingface")
        for tools in (None, [], TOOLS):
            expected = theirs.apply_chat_template(TALKS[0], tools=tools, return_dict=False, add_generation_prompt=True)
            for again in (model, gf.load(place / "own"), gf.load(place / "back")):
                assert gf.chat(again, TALKS[0], tools=tools) == expected


def test_tools_that_a_template_does_not_read_are_refused(folder: Path) -> None:
    model = gf.load(saying(folder, CHATML))
    with pytest.raises(TextError, match="chat template reads no tools"):
        gf.chat(model, TALKS[0], tools=TOOLS)
    with pytest.raises(TextError, match=r"tools are plain data, a JSON schema each: .*, in a list; found 'rain'"):
        gf.chat(model, TALKS[0], tools="rain")


def _read_in(document: dict[str, Any]) -> list[str]:
    """Return the tokens that a document says were read."""
    if "tokens" in document:
        return [token["text"] for token in document["tokens"]]
    return document["reading"]["tokens"]["reads"][0]


VERBS_OF_A_TEXT: dict[str, list[str]] = {
    "attention": ["--head", "L0H0"],
    "attribute": ["--method", "direct"],
    "backward": ["--target", "a"],
    "behaviour": ["--habits", "stream-rank"],
    "explain": [],
    "generate": ["--max-new-tokens", "1"],
    "lens": [],
    "route": [],
    "trace": ["--subject", "rain", "--samples", "1", "--kinds", "state"],
}


def test_the_verbs_that_read_a_text_are_these() -> None:
    assert set(taking(Reading)) == VERBS_OF_A_TEXT.keys()


@pytest.mark.parametrize("verb", VERBS_OF_A_TEXT)
def test_a_verb_that_reads_a_text_reads_a_conversation(verb: str, folder: Path, capsys) -> None:
    model, typed = gf.load(saying(folder, CHATML)), TALKS[0][0]["content"]
    written = ["--json", str(folder / "found.json"), *VERBS_OF_A_TEXT[verb]]
    assert main([verb, str(folder), typed, "--chat", *written]) == 0
    found = json.loads((folder / "found.json").read_text())
    assert _read_in(found) == gf.run(model, gf.chat(model, TALKS[0])).tokens
    assert verb == "explain" or found["given"]["chat"] is True
    capsys.readouterr()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["route", "--pairs", "pairs.csv"], "--chat belongs to a text"),
        (["trace", "--pairs", "pairs.csv"], "--chat belongs to a text"),
        (["lens", "--train", "lens.safetensors"], "--chat is how a text is read"),
        (["behaviour", "--habits", "short-circuit"], "--chat is how a text is read"),
    ],
)
def test_a_conversation_without_a_text_is_refused(words: list[str], message: str, capsys) -> None:
    assert main([words[0], "attn-only-2l", *words[1:], "--chat"]) == 2
    assert message in capsys.readouterr().err
