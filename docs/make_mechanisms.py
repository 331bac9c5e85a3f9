"""Write the page of every mechanism, in English and in Chinese: `python docs/make_mechanisms.py`.

docs/mechanisms/KIND.md       idea, equation, picture, state and cost, what was found, what one can ask, settings
docs/zh/mechanisms/KIND.md    the same headings; settings by name and default alone
docs/zh/mechanisms.md         a list of these

Equations, state and cost come from the docstrings of modules, pictures from `images/mechanisms`, what was found from
the reports of studies and what one can ask from the table of what applies. Ideas, and what is said of state and cost in
Chinese, stand in `mechanism_ideas.json`.
"""

import dataclasses
import inspect
import json
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from glassformer.applicability import applied
from glassformer.attention import MixerConfig
from glassformer.study import find
from glassformer.study.atlas import Entry, atlas
from glassformer.study.report import tallied
from glassformer.words import speaking, spoken

DOCS = Path(__file__).resolve().parent
PATTERNS = DOCS / "images" / "mechanisms" / "patterns.json"
GROUPS, IDEAS = DOCS / "mechanism_groups.json", DOCS / "mechanism_ideas.json"
UP = {"en": "../", "zh": "../../"}
# what stands on pages, in each language
WORDS: dict[str, dict[str, str]] = {
    "en": {
        "idea": "The idea",
        "found": "What was found",
        "asked": "What one can ask",
        "settings": "Settings",
        "no settings": "It has none.",
        "claims": "{n} claims are about it, those that compare it with another among them: {ended}. "
        "[The atlas]({link}) has their numbers.",
        "no claims": "No study whose report ships claims anything of it.",
        "study": "- [{study}]({link}), {ended}. {question}",
        "untested": "Not testable here: {n}, as something that has to be true first was not{conditions}.",
        "answers": "Of {n} analyses {exact} answer with nothing held fixed, {per_run} for one run, and {refused} are "
        "refused. Of those that answer, {compared} were compared with another way to their numbers.",
        "rooms": "So many answer, by room: {rooms}.",
        "refused": "Refused, [each with its reason]({link}): {names}.",
        "comma": ", ",
    },
    "zh": {
        "idea": "思路",
        "found": "发现了什么",
        "asked": "可以问什么",
        "settings": "设置",
        "no settings": "没有设置。",
        "claims": "有 {n} 个论断涉及它（包括与其他机制的比较）：{ended}。各个数值见[论断图集]({link})（英文）。",
        "no claims": "随包报告的研究里，没有关于它的论断。",
        "study": "- [{study}]({link})，{ended}。{question}",
        "untested": "此处不可检验的有 {n} 个，因为必须先成立的前提没有成立。",
        "answers": "{n} 个分析中，{exact} 个不固定任何东西就能回答，{per_run} 个只对一次运行回答，{refused} 个被拒绝。"
        "能回答的分析里，有 {compared} 个的数值与另一种算法比较过。",
        "rooms": "按类别，能回答的有：{rooms}。",
        "refused": "被拒绝的有（[各自的理由]({link})，英文）：{names}。",
        "comma": "、",
    },
}
LIST = """\
# 各种注意力机制

[English](../mechanisms.md)

读完本页，你可以按一个机制看向何处找到它，并打开它的页面：思路、公式、一行文本上的注意力图、状态与代价、研究发现了什么，
以及可以用哪些分析去问它。英文页另有各机制的假设，以及文献中各种打分的名称。

```{toctree}
:maxdepth: 1
:glob:
:hidden:

mechanisms/*
```
"""


def pages() -> dict[Path, str]:
    """Return every generated page by its file."""
    drawn, said = (json.loads(path.read_text(encoding="utf-8")) for path in (PATTERNS, IDEAS))
    configs = registered()
    if sorted(said) != list(configs):
        raise SystemExit(f"{IDEAS.name} has ideas of {sorted(said)}; there are {list(configs)}")
    found = {DOCS / "zh" / "mechanisms.md": listed(said)}
    for kind, config in configs.items():
        found[DOCS / "mechanisms" / f"{kind}.md"] = page(kind, config, drawn, said[kind])
        with speaking("zh"):
            found[DOCS / "zh" / "mechanisms" / f"{kind}.md"] = page_in_chinese(kind, config, drawn, said[kind])
    return found


def registered() -> dict[str, type]:
    """Return the mechanisms that ship with the package, by kind."""
    found = sorted(MixerConfig.registry.items())
    return {kind: config for kind, config in found if config.__module__.startswith("glassformer.")}


def listed(said: Mapping[str, Mapping[str, str]]) -> str:
    """Return the Chinese list: a table for each group, of mechanisms and the first sentences of their ideas."""
    parts = [LIST]
    for group in json.loads(GROUPS.read_text(encoding="utf-8")).values():
        name, about = group["zh"]
        rows = ["| 机制 | 思路 |", "| --- | --- |"]
        rows += [
            f"| [`{kind}`](mechanisms/{kind}.md) | {re.match('.*?[。？]', said[kind]['zh'])[0]} |"  # type: ignore[index]
            for kind in group["mechanisms"]
        ]
        parts.append(f"## {name}\n\n{about}。\n\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def page(kind: str, config: type, drawn: Mapping[str, Mapping[str, Any]], said: Mapping[str, str]) -> str:
    """Return the page of one mechanism."""
    about, words = _about(config), WORDS["en"]
    summary, rest = about[0], about[1:]
    shown = [_paragraph(part) for part in rest]
    # the picture stands behind the equation
    place = 1 + next((i for i, part in enumerate(rest) if part.startswith("    ")), -1)
    shown.insert(place, _picture(kind, drawn))
    told = dict(re.findall(r"^ {4}(\w+): (.+?)(?=^ {4}\w+: |^\S|\Z)", inspect.getdoc(config) or "", re.M | re.S))
    settings = [_setting(field, " ".join(told.get(field.name, "").split())) for field in _fields(config)]
    link = (
        f"In the reference: [`{config.__name__}`](../api/generated/{config.__module__}.rst). "
        f"[In Chinese](../zh/mechanisms/{kind}.md)."
    )
    return "\n\n".join(
        [
            f"# `{kind}`", summary, f"## {words['idea']}", said["en"], *shown, *_sections(kind, "en"),
            f"## {words['settings']}", "\n".join(settings) or words["no settings"], link,
        ]
    ) + "\n"  # fmt: skip


def page_in_chinese(kind: str, config: type, drawn: Mapping[str, Mapping[str, Any]], said: Mapping[str, str]) -> str:
    """Return the Chinese page of one mechanism, with the headings, equations and picture of the English one."""
    equations, words = [_paragraph(part) for part in _about(config) if part.startswith("    ")], WORDS["zh"]
    settings = [
        f"- `{field.name}`，" + ("必须给出" if (default := _default(field)) == "needed" else f"默认 `{default}`")
        for field in _fields(config)
    ]
    link = f"设置的含义、出处，以及与参考代码的不同，见[英文页](../../mechanisms/{kind}.md)。"
    return "\n\n".join(
        [
            f"# `{kind}`", f"## {words['idea']}", said["zh"], *equations[:1], _picture_in_chinese(kind, drawn),
            *equations[1:], f"**状态**：{said['state']}", f"**代价**：{said['cost']}", *_sections(kind, "zh"),
            f"## {words['settings']}", "\n".join(settings) or words["no settings"], link,
        ]
    ) + "\n"  # fmt: skip


def _sections(kind: str, language: str) -> list[str]:
    """Return what was found of a mechanism and what one can ask of it."""
    words = WORDS[language]
    return [f"## {words['found']}", *_found(kind, language), f"## {words['asked']}", *_asked(kind, language)]


def _found(kind: str, language: str) -> list[str]:
    """Return how claims about a mechanism ended, study by study, and why some could not be tested."""
    words, up = WORDS[language], UP[language]
    claims = [entry for cell in atlas().mechanisms[kind] for entry in cell.claims]
    if not claims:
        return [words["no claims"]]
    by_study: dict[str, list[Entry]] = {}
    for entry in claims:
        by_study.setdefault(entry.study, []).append(entry)
    lines = [
        words["study"].format(
            study=study, link=f"{up}claims.md#{study}", ended=_ended(own), question=spoken(find(study).question)
        )
        for study, own in by_study.items()
    ]
    parts = [words["claims"].format(n=len(claims), ended=_ended(claims), link=f"{up}atlas.md#{kind}"), "\n".join(lines)]
    untested = [entry for entry in claims if entry.verdict == "not testable here"]
    if untested:
        unmet = dict.fromkeys(re.match('"(.*?)" is not met', entry.why)[1] for entry in untested)  # type: ignore[index]
        conditions = "".join(f'{", " if i else ": "}"{one}"' for i, one in enumerate(unmet))
        parts.append(words["untested"].format(n=len(untested), conditions=conditions))
    return parts


def _ended(claims: Sequence[Entry]) -> str:
    return tallied({"claims": [{"verdict": entry.verdict} for entry in claims]})


def _asked(kind: str, language: str) -> list[str]:
    """Return how many analyses answer for a mechanism, by room, and which are refused."""
    words, rooms = WORDS[language], {one.name: one.room for one in applied().analyses}
    cells = {cell.analysis: cell.outcome for cell in atlas().mechanisms[kind] if cell.outcome is not None}
    status = Counter(outcome.status for outcome in cells.values())
    refused = [name for name, outcome in cells.items() if outcome.status == "refused"]
    of, answering = Counter(rooms.values()), Counter(rooms[name] for name in cells if name not in refused)
    comma = words["comma"]
    return [
        words["answers"].format(
            n=len(cells), exact=status["exact"], per_run=status["per run"], refused=status["refused"],
            compared=sum(outcome.compared for outcome in cells.values()),
        ),
        words["rooms"].format(rooms=comma.join(f"`{room}` {answering[room]}/{n}" for room, n in of.items())),
        words["refused"].format(
            names=comma.join(f"`{name}`" for name in refused), link=f"{UP[language]}what-applies.md#{kind}"
        ),
    ]  # fmt: skip


def _about(config: type) -> list[str]:
    """Return the paragraphs of the docstring of a mechanism's module."""
    return (inspect.getdoc(sys.modules[config.__module__]) or "").split("\n\n")


def _paragraph(part: str) -> str:
    """Return a paragraph of a docstring as a page has it: equations as code, each named line by itself."""
    if part.startswith("    "):
        return "```text\n" + inspect.cleandoc(part) + "\n```"
    text = " ".join(part.split())
    names = "Pattern|State|Cost|Source|Forms|Differs from [^:.,]{1,40}"
    # what stands in a docstring may look like markup
    escaped = re.sub(r"([*<>])", r"\\\1", text)
    return re.sub(rf"(^|(?<=[.)]) )({names}): ", r"\n\n**\2**: ", escaped).strip()


def _picture(kind: str, drawn: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the picture of a mechanism and what it is of; nothing of one that was not drawn yet."""
    if kind not in drawn:
        return "No pattern of it was drawn yet: `python docs/make_patterns.py " + kind + "`."
    facts, softmax = drawn[kind], drawn["softmax"]["loss"]
    trained = (
        f"two blocks of width 64 as the mechanism's paper builds them, {facts['parameters']:,} parameters, "
        f"{facts['steps']} steps on the standard library: {facts['loss']:.2f} nats per token on held-out files"
    )
    beside = "" if kind == "softmax" else f", where the same model with softmax attention has {softmax:.2f}"
    if "masked" in facts:
        # of another task: no loss of a decoder stands beside it
        beside = ", as an encoder that is asked for one token in seven"
    if "head" not in facts:
        return f"It has no pattern to draw. A model of it, {trained}{beside}."
    return (
        f"![What {facts['head']} of a small model looks at](../images/mechanisms/{kind}.png)\n\n"
        f"*{facts['head']} on a line of text. It is the head with most weight, {100 * facts['share']:.0f} % of sizes, "
        f"neither on the first token nor on the query's own. The model: {trained}{beside}.*"
    )


def _picture_in_chinese(kind: str, drawn: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the picture of a mechanism and what it is of, in Chinese."""
    facts, softmax = drawn[kind], drawn["softmax"]["loss"]
    beside = "" if kind == "softmax" else f"；同样的模型用 softmax 注意力时为 {softmax:.2f}"
    if "masked" in facts:
        beside = "；它是编码器，每七个词元问一个"
    model = (
        f"两个块，宽 64，按该机制的论文搭建，{facts['parameters']:,} 个参数，在标准库上训练 {facts['steps']} 步，"
        f"在留出的文件上每个词元 {facts['loss']:.2f} 奈特{beside}"
    )
    if "head" not in facts:
        return f"它没有注意力图可画。一个模型：{model}。"
    return (
        f"![小模型的 {facts['head']} 看向何处](../../images/mechanisms/{kind}.png)\n\n"
        f"*{facts['head']} 读一行文本。它是落在第一个词元和查询自身之外的权重最多的头，占各项大小之和的 "
        f"{100 * facts['share']:.0f} %。模型：{model}。*"
    )


def _fields(config: type) -> Sequence[Any]:
    return dataclasses.fields(config)  # type: ignore[arg-type]


def _setting(field: Any, meaning: str) -> str:
    """Return one setting as a line of a list: name, default, meaning."""
    default = _default(field)
    shown = default if default == "needed" else f"`{default}` by default"
    return f"- `{field.name}`, {shown}: " + re.sub(r"([*<>])", r"\\\1", meaning)


def _default(field: Any) -> str:
    if field.default is not dataclasses.MISSING:
        return repr(field.default)
    return repr(field.default_factory()) if field.default_factory is not dataclasses.MISSING else "needed"


if __name__ == "__main__":
    for path, text in pages().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
