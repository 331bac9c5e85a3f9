"""Words in Chinese: the table holds what is said and nothing else, and no English is left on terminals and pages."""

import json
import re
import string
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import Page

import reports
import results
import runtime_checks
from every_result import result
from explanations import sample
from glassformer.analysis.causal import TracesByRole
from glassformer.cli import VERBS, main
from glassformer.data import Marks
from glassformer.data.marks import mark_notes
from glassformer.errors import WrongArgument
from glassformer.labelled import Labelled
from glassformer.provenance import length_note
from glassformer.render.page import circuits_page, explanation_page, results_page
from glassformer.render.terminal import lines
from glassformer.words import Sentence, listed, saying, sentence, speaking, spoken, table
from pages import Opener, open_everything
from words import names_of_results, said, words_of_what_ships

CHINESE = table("zh")
# what Chinese texts on machine learning write in Latin letters; names of mechanisms, norms and activations in code; of
# fields, axes and special tokens
TERMS = "logit logits Logits softmax MLP KL JSON Shift PyTorch glassformer explanation top Top k p L H X n"
NAMES = "differential lightning rope RoPE rms layer norm silu gelu relu pre post d model bos eos"
FIELDS = "blocks attn mixer lambda init merge factor models published block"
LATIN = {word for words in (TERMS, NAMES, FIELDS) for word in words.split()}

every_sample = pytest.mark.parametrize("name", ["short", "long", "signed", "translation", "image"])


def english_in(texts: Iterable[str], *names: str) -> list[str]:
    """Return the texts that hold Latin words, but for names of models and what stands in Chinese quotes: tokens."""
    found = []
    for text in texts:
        bare = re.sub("“[^”]*”", "", text)
        for name in names:
            bare = bare.replace(name, "")
        if set(re.findall("[A-Za-z]+", bare)) - LATIN:
            found.append(text)
    return found


def test_every_word_that_is_said_is_in_the_table_and_the_table_holds_no_other() -> None:
    used = said() | names_of_results() | words_of_what_ships()
    assert len(used) > 900
    assert sorted(used - set(CHINESE)) == []
    assert sorted(set(CHINESE) - used) == []


def test_chinese_sentences_have_the_slots_of_the_english_ones() -> None:
    def slots(template: str) -> set[str]:
        return {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}

    assert [english for english, chinese in CHINESE.items() if slots(english) != slots(chinese)] == []


def test_a_sentence_is_english_and_is_said_in_the_language_that_is_spoken_with_those_inside_it() -> None:
    attention = sentence("{kind} attention", kind="softmax")
    whole = listed([sentence("{attention}, {n} heads of {size}", attention=attention, n=4, size=16), "untold"])
    assert whole == "softmax attention, 4 heads of 16; untold"
    assert {str(whole): 1} == {"softmax attention, 4 heads of 16; untold": 1}
    with speaking("zh"):
        assert spoken(whole) == "softmax 注意力，4 个 16 维的头；untold"
        with speaking("en"):
            assert spoken(whole) == whole
    assert spoken(whole) == whole


def test_the_examples_of_saying_words_say_what_they_show() -> None:
    shown = re.findall(r'( *)(spoken\(.*\)) +"(.*)"\n', str(saying.__doc__))
    assert len(shown) == 2
    for indent, call, words in shown:
        with speaking("zh" if len(indent) > 4 else "en"):
            assert eval(call, {"spoken": spoken}) == words


def test_notes_are_said_in_chinese_and_stay_english_in_documents() -> None:
    (note,) = length_note(3000, 2048)
    english = str(note), note.to_dict()
    with speaking("zh"):
        assert str(note).startswith("共 3,000 个词元，训练时最长 2,048 个。")
        assert note.to_dict() == english[1]
    assert str(note) == english[0]
    assert all(isinstance(words, Sentence) for words in note.to_dict().values())


@pytest.mark.parametrize(
    ("costs", "told"),
    [
        ((0.0, 0.0), "噪声使 概率或 logit 差 降低的幅度不超过其自身的波动。"),
        ((1.0, 1.0), "提示只有一个，因此没有标准误。"),
    ],
)
def test_what_a_trace_says_of_its_noise_is_said_in_chinese(costs: tuple[float, float], told: str) -> None:
    metrics = {"metric": ["probability", "logit difference"]}
    values = Labelled(torch.ones(2, 1, 1, 1, 1), ("metric", "kind", "role", "layer", "prompt"), metrics)
    (note,) = TracesByRole(values, Labelled(torch.tensor(costs)[:, None], ("metric", "prompt"), metrics)).notes
    with speaking("zh"):
        assert str(note).startswith(told)
        assert english_in([str(note)]) == []


@pytest.mark.parametrize("unknown", [(1,), (1, 2)])
def test_unknown_words_are_noted_in_chinese(unknown: tuple[int, ...]) -> None:
    (note,) = mark_notes(Marks(unknown, words=4, lost=("鲸 [1]",)), "text", "tiny", lambda folder: None)
    with speaking("zh"):
        assert str(note).startswith(f"文本的 4 个词元中有 {len(unknown)} 个是此模型不认识的：鲸 [1]。")
        assert english_in([str(note)]) == []


def test_a_language_without_a_table_is_refused(tmp_path: Path) -> None:
    found: Any = sample("short")
    with runtime_checks.lifted(), pytest.raises(WrongArgument, match="lang= takes 'en' or 'zh'; found 'fr'"):
        found.html(tmp_path / "page.html", lang="fr")
    assert not list(tmp_path.iterdir())


@every_sample
def test_the_terminal_explains_in_chinese(name: str) -> None:
    found = sample(name)
    texts = {token.text for token in (*found.tokens, *(found.source_tokens or ()))}
    texts |= {c.text for row in (*found.lens, found.next_token, *found.sampling.steps) for c in row.candidates}
    with speaking("zh"):
        printed = list(lines(found, 200))
    # tokens stand bare in tables, some of them cut, and control characters as escapes
    tokens = set(re.findall("[A-Za-z]+", " ".join([*texts, found.translation.text if found.translation else ""])))
    bare = [re.sub(r"\\u[0-9a-f]{4}|<0x..>", "", line) for line in printed]
    left = {word for line in english_in(bare, found.model.name) for word in re.findall("[A-Za-z]+", line)} - LATIN
    assert [word for word in left if not any(token.startswith(word) for token in tokens)] == []


@pytest.mark.parametrize("name", ["PathPatching", "EdgeAttribution", "Acdc", "DirectLogitAttribution"])
def test_how_circuits_were_measured_is_said_in_chinese(name: str) -> None:
    said = {"frozen", "live", "recomputed", "clean", "corrupt", "receivers", "senders"}
    with speaking("zh"):
        printed = " ".join(lines(result(name), 200))
    assert re.search("[一-鿿]", printed)
    assert set(re.findall("[a-z]+", printed)) & said == set()


@pytest.mark.parametrize("name", ["AttentionSinks", "Suppression", "StreamRank"])
def test_conditions_and_variants_of_ours_are_said_in_chinese(name: str) -> None:
    english = {"masked", "dropped", "without", "first", "written", "earlier", "trained", "initial", "attention", "full"}
    with speaking("zh"):
        printed = " ".join(lines(result(name), 200))
    assert set(re.findall("[a-z]+", printed)) & english == set()


# what can be seen or is read aloud, but for tokens, and the names and digests behind the numbers
TEXTS = """() => {
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [document.title];
    while (walker.nextNode()) {
        const {parentElement: parent, textContent: text} = walker.currentNode;
        if (!parent.closest("script, style, .token, code, .of dd, [lang=und]")) found.push(text);
    }
    for (const name of ["title", "aria-label", "aria-roledescription"])
        for (const element of document.querySelectorAll(`[${name}]`)) found.push(element.getAttribute(name));
    return found;
}"""


@pytest.mark.browser
@every_sample
def test_the_page_explains_in_chinese(opened: Opener, name: str) -> None:
    found = sample(name)
    shown = opened(lambda path: found.html(path, lang="zh"))
    open_everything(shown)
    shown.locator(".thumbs button").first.click()
    shown.locator("dialog[open] :is(.strip, .patches)").wait_for()
    said = shown.evaluate(TEXTS)
    assert sum(bool(re.search("[一-鿿]", text)) for text in said) > 300
    translated = [found.translation.text] if found.translation else []
    assert english_in(said, found.model.name, *translated) == []
    assert shown.evaluate("document.documentElement.lang") == "zh"


@pytest.mark.browser
def test_a_narrow_chinese_page_scrolls_only_downwards(opened: Opener) -> None:
    shown: Page = opened(lambda path: sample("translation").html(path, lang="zh"), width=360)
    assert shown.evaluate("document.documentElement.scrollWidth") == 360


# fields and their descriptions are English beside these words
@pytest.mark.browser
@pytest.mark.parametrize(
    ("heading", "make"),
    [
        ("各头的角色", lambda: circuits_page(reports.sample("gpt").to_dict())),
        ("激活修补", lambda: results_page(results.sample("patching"), results.HEAD)),
        ("逐处透镜", lambda: results_page(results.sample("lens"), results.HEAD)),
        ("信息流路线", lambda: results_page(results.sample("routes"), results.HEAD)),
        ("ACDC：留下的电路", lambda: results_page(results.sample("pruning"), results.HEAD)),
        ("直接 logit 归因", lambda: results_page(results.sample("direct"), results.HEAD)),
    ],
)
def test_no_words_of_the_table_are_english_on_other_pages(
    opened: Opener, heading: str, make: Callable[[], str]
) -> None:
    def write(path: Path) -> None:
        with speaking("zh"):
            path.write_text(make(), encoding="utf-8")

    shown = opened(write)
    open_everything(shown)
    texts = shown.evaluate(TEXTS)
    assert any(heading in text for text in texts)
    # descriptions hold code, with a space or a full stop behind it
    assert [text for text in texts if CHINESE.get(text, text) != text and text not in (" ", ".")] == []


# the same English word may name two things, of which the table has one
@pytest.mark.browser
@pytest.mark.parametrize(
    ("name", "field", "where", "said"),
    [
        ("direct", "norm", "dl.facts dt", "归一化尺度"),
        ("pruning", "passes", "dl.facts dt", "passes"),
        ("routes", "heads", "figure h3", "头"),
        ("flow", "layers", "figure h3", "层"),
        ("lens", "first", "figure h3", "首个"),
    ],
)
def test_a_field_is_not_said_as_another_thing_of_its_name(
    opened: Opener, name: str, field: str, where: str, said: str
) -> None:
    def write(path: Path) -> None:
        with speaking("zh"):
            path.write_text(results_page(results.sample(name)), encoding="utf-8")

    assert any(hasattr(found, field) for found in results.sample(name))
    shown = opened(write)
    open_everything(shown)
    assert said in [text.lower() for text in shown.locator(where).all_inner_texts()]


def dictionary(page: str) -> dict[str, str]:
    """Return the words that a page carries in its language."""
    carried = re.search(r"^const DICTIONARY = new Map\((.*)\);$", page, re.MULTILINE)
    assert carried is not None
    return dict(json.loads(carried[1]))


@pytest.mark.full
def test_a_page_carries_the_words_of_its_scripts_and_its_document_alone() -> None:
    payload: dict[str, Any] = sample("short").to_dict()
    english = explanation_page(payload)
    with speaking("zh"):
        chinese = explanation_page(payload)
    assert dictionary(english) == {} and '<html lang="en">' in english
    carried = dictionary(chinese)
    assert carried["Telling heads"] == "重要的头"
    assert carried["block 3"] == "第 3 块"
    # the terminal's alone
    assert "{answer} (entropy {bits:.2f} bits)" in CHINESE
    assert "{answer} (entropy {bits:.2f} bits)" not in carried
    document = re.compile(r'<script type="application/json".*?</script>', re.DOTALL)
    assert document.findall(english) == document.findall(chinese) != []


@pytest.mark.full
def test_the_command_speaks_chinese_and_its_json_english(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, plain, asked = (tmp_path / name for name in ("page.html", "plain.json", "asked.json"))
    arguments = ["explain", "attn-only-1l", "import os\nimport"]
    assert main([*arguments, "--json", str(plain)]) == 0
    assert "Telling heads" in capsys.readouterr().out
    assert main([*arguments, "--lang", "zh", "--html", str(page), "--json", str(asked)]) == 0
    out = capsys.readouterr().out
    assert "重要的头" in out and "Telling heads" not in out and f"网页：{page}" in out.replace("\n", "")
    assert asked.read_text(encoding="utf-8") == plain.read_text(encoding="utf-8")
    assert '<html lang="zh">' in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_takes_a_language_and_its_help_begins_in_it(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--help"]) == 0
    english = capsys.readouterr().out
    assert "--lang {en,zh}" in english
    assert main([verb, "--help", "--lang", "zh"]) == 0
    usage, does, *others = capsys.readouterr().out.split("\n\n")
    assert does.replace("\n", "") == f"{CHINESE[VERBS[verb]]}。各选项的说明为英文。"
    assert "\n\n".join([usage, *others]) == english


def test_the_overview_of_verbs_is_in_the_language_that_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, speaks in ((["--help"], "en"), (["--help", "--lang", "zh"], "zh"), (["help", "--lang=zh"], "zh")):
        assert main(arguments) == 0
        printed = capsys.readouterr().out
        assert all((about in printed) is (speaks == "en") for about in VERBS.values())
        assert all((CHINESE[about] in printed) is (speaks == "zh") for about in VERBS.values())


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("sites attn-only-1l --glob blocks.0.attn.*", "惰性"),
        ("params attn-only-1l", "解嵌入"),
        ("plan attn-only-1l --length 8 --mesh dp=2", "最满的进程"),
        ("models", "具有归纳头的最小模型"),
        ("models attn-only-1l", "共用机器上"),
        ("models --applies softmax", "固定了什么"),
        ("models --applies pre", "其各块按此方式连接"),
        ("study list", "不比较词元"),
        ("study report rank-collapse", "均值与 95 % 区间"),
        ("plot attn-only-1l attn-only-2l --out FILE", "留出损失"),
    ],
)
def test_what_a_verb_prints_is_in_the_language_that_was_asked_for(
    line: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(tmp_path / "losses.svg") if word == "FILE" else word for word in line.split()]
    assert main([*words, "--lang", "zh"]) == 0
    chinese = capsys.readouterr().out
    assert main(words) == 0
    english = capsys.readouterr().out
    assert not re.search("[一-鿿]", english) and re.search("[一-鿿]", chinese)
    assert told in re.sub(r"\s", "", chinese).replace("95%", "95 %") or told in chinese
