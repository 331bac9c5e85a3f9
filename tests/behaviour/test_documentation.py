"""What the documentation promises about the package as a whole."""

import importlib.util
import inspect
import json
import pkgutil
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

import glassformer
from families import all_cases
from glassformer import cli, errors
from glassformer.attention import QueryKeyOnly
from glassformer.checkpoints.families import FAMILIES
from glassformer.models import DecoderConfig, Learned, Mlp, block
from one_pass import in_one_pass

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = DOCS / "errors"
NEWCOMERS = DOCS / "coming-from.md"
MECHANISMS, MECHANISMS_ZH = DOCS / "mechanisms", DOCS / "zh" / "mechanisms"
PUBLIC = [
    name
    for name, error in inspect.getmembers(errors, inspect.isclass)
    if issubclass(error, errors.GlassformerError) and error is not errors.GlassformerError
]
# what people read; built pages lie beside them
TEXTS = [*ROOT.glob("*.md"), *(page for page in DOCS.rglob("*.md") if "_build" not in page.parts)]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
BOOK = sorted(str(page.relative_to(DOCS)) for page in (DOCS / "book").rglob("*.md"))
CHINESE = [("README.md", "README.zh.md")] + [
    (f"docs/{page}", f"docs/zh/{page}") for page in ("getting-started.md", *BOOK)
]
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
VALUE = re.compile(r"\{\{ *(.+?) *\}\}")
SPEAKING = re.compile(r' *# .*| --lang zh|, lang="zh"|print\(f\".*')
FENCED = re.compile(r"^```(\w*|\{\w+\}[^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def program(name: str) -> ModuleType:
    """Import one of the scripts in docs/."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@in_one_pass
@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_error_has_a_page_with_symptom_cause_and_fix(name: str) -> None:
    slug = re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower()
    page = (PAGES / f"{slug}.md").read_text(encoding="utf-8")
    assert page.startswith(f"# {name}\n")
    assert re.findall(r"^## (\w+)$", page, re.MULTILINE) == ["Symptom", "Cause", "Fix"]


def test_every_error_page_describes_an_error_that_exists() -> None:
    titles = {page.read_text(encoding="utf-8").split("\n")[0].removeprefix("# ") for page in PAGES.glob("*.md")}
    assert titles - {"Errors"} == set(PUBLIC)


def test_a_size_that_meets_a_rounded_aim_and_not_the_aim_is_said_to_miss_it() -> None:
    row = {"bytes": {"theirs": 2**20 * 100, "ours": 2**20 * 67.1}, "memory_ratio": 100 / 67.1, "memory_aim": 1.5}
    assert program("make_tables")._memory(row) == ("100 / 67 MiB", "≤ 2/3 x", "no")


def test_the_generated_tables_are_what_the_script_makes() -> None:
    tables = program("make_tables")
    for path, found in tables.tables().items():
        page = path.read_text(encoding="utf-8")
        assert tables.fill(page, found) == page, f"{path.name} is out of date: run `make tables`"


@pytest.mark.parametrize("script", ["make_catalogue", "make_mechanisms"])
def test_pages_that_are_generated_whole_are_what_the_script_makes(script: str) -> None:
    for path, text in program(script).pages().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name} is out of date: run `make tables`"


def test_a_mechanism_has_the_same_headings_equations_pictures_and_links_on_its_pages_of_both_languages() -> None:
    making = program("make_mechanisms")
    kinds = set(making.registered())
    assert (
        kinds == {page.stem for page in MECHANISMS.glob("*.md")} == {page.stem for page in MECHANISMS_ZH.glob("*.md")}
    )
    words = making.WORDS
    headings = {words["en"][name]: words["zh"][name] for name in ("idea", "found", "asked", "settings")}
    assert len(headings) == len(set(headings.values())) == 4
    for kind in kinds:
        pages = [folder / f"{kind}.md" for folder in (MECHANISMS, MECHANISMS_ZH)]
        english, chinese = (page.read_text(encoding="utf-8") for page in pages)
        told = [re.findall(r"^#+ .+$", FENCED.sub("", text), re.MULTILINE) for text in (english, chinese)]
        assert told[0] == [f"# `{kind}`", *(f"## {name}" for name in headings)]
        assert told[1] == [f"# `{kind}`", *(f"## {name}" for name in headings.values())]
        assert FENCED.findall(english) == FENCED.findall(chinese) != []
        assert "**State**: " in english and "**Cost**: " in english
        assert "**状态**：" in chinese and "**代价**：" in chinese
        found = [
            [
                (page.parent / link).resolve()
                for link in LINK.findall(FENCED.sub("", text))
                if "api/generated" not in link
            ]
            for page, text in zip(pages, (english, chinese), strict=True)
        ]
        assert found[0].pop() == pages[1] and found[1].pop() == pages[0]
        assert found[0] == found[1]


@pytest.mark.parametrize(("language", "end"), [("en", r"[.?](?= |$)"), ("zh", "[。？]")])
def test_an_idea_is_two_to_four_sentences(language: str, end: str) -> None:
    said = json.loads((DOCS / "mechanism_ideas.json").read_text(encoding="utf-8"))
    sentences = {kind: len(re.findall(end, one[language])) for kind, one in said.items()}
    assert {kind: n for kind, n in sentences.items() if not 2 <= n <= 4} == {}


def test_every_study_that_ships_has_a_page_that_the_page_of_claims_links_to(tmp_path: Path) -> None:
    studies = program("_extensions/studies")
    studies.write_pages(tmp_path)
    pages = {page.stem for page in tmp_path.glob("*.html")}
    text = studies.linked((DOCS / "claims.md").read_text(encoding="utf-8"))
    titles = set(re.findall(r"^## (\S+)$", text, re.MULTILINE))
    assert pages == titles == set(re.findall(r'href="studies/([^"]+)\.html"', text)) != set()
    assert titles == set(re.findall(r"^\| \[([^\]]+)\]\(#\1\) \|", text, re.MULTILINE))


def test_a_card_becomes_a_row_in_both_languages() -> None:
    sizes = {"parameters": 1234567, "tokens": 2_500_000, "seconds": 125, "threads": 2}
    card = {"name": "tiny", "about": "A model."} | sizes | {"figures": {"bits_per_byte": 1.23456, "for_the_card": 0.5}}
    tables = program("make_tables")
    english, chinese = (tables.models([card], chinese=chinese).splitlines()[-1] for chinese in (False, True))
    about = "<br>A model. | "
    assert english == f"| `tiny`, 1.23 M parameters{about}2.5 M tokens | bits per byte 1.23 |"
    assert chinese == f"| `tiny`，123 万参数{about}250 万词元 | 每字节比特数 1.23 |"


@in_one_pass
@pytest.mark.parametrize("names", CHINESE)
def test_a_page_in_chinese_has_the_sections_code_values_links_and_lists_of_the_english_one(
    names: tuple[str, str],
) -> None:
    english, chinese = (ROOT / name for name in names)
    original, programs = english.read_text(encoding="utf-8"), program("_extensions/executed").programs

    def links(page: Path, section: str) -> list[Path]:
        found = [(page.parent / words).resolve() for words in LINK.findall(section)]
        # a page that there is in Chinese too stands for the English one
        to = [DOCS / link.relative_to(DOCS / "zh") if DOCS / "zh" in link.parents else link for link in found]
        return [link for link in to if link not in (english, chinese)]

    def shape(page: Path) -> list[tuple[object, ...]]:
        text = page.read_text(encoding="utf-8")
        codes = iter(programs(text, original))
        blocks = iter([next(codes) if kind == "python" else body for kind, body in FENCED.findall(text)])
        sections = re.split(r"^(?=#+ )", FENCED.sub("\0", text), flags=re.MULTILINE)
        return [
            (
                re.findall(r"^#*", section),
                # what is read is translated, comments and what is printed; what runs is the same, but speaks Chinese
                [re.sub(SPEAKING, "", next(blocks)) for _ in range(section.count("\0"))],
                # in the order of sentences
                sorted(re.sub(SPEAKING, "", value) for value in VALUE.findall(section)),
                links(page, section),
                len(re.findall(r"^(?:- |\d+\. )", section, re.MULTILINE)),
            )
            for section in sections
        ]

    assert shape(chinese) == shape(english)
    first = {page: LINK.findall(page.read_text(encoding="utf-8"))[0] for page in (english, chinese)}
    assert [(page.parent / link).resolve() for page, link in first.items()] == [chinese, english]


@in_one_pass
@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("读它，\n再*加*上去", "读它，再*加*上去"), ("叫做\n词元", "叫做词元"), ("（见\n  “头”", "（见“头”"),
        ("模型\n`gpt-4l`", None), ("如下：\n- 一", None), ("如下：\n1. 一", None), ("如下：\n```python\n", None),
        ("一段。\n\n另一段", None),
        ("| 头 |\n| --- |", None), ("```text\n一，\n二\n```", None), ("one,\nother", None),
    ],
)  # fmt: skip
def test_a_line_of_chinese_ends_without_a_space_unless_a_block_begins_there(written: str, read: str | None) -> None:
    assert program("_extensions/chinese").joined(written) == (written if read is None else read)


@in_one_pass
@pytest.mark.parametrize("page", TEXTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    prose = FENCED.sub("", page.read_text(encoding="utf-8"))
    targets = [link.split("#")[0] for link in LINK.findall(prose) if "://" not in link and not link.startswith("#")]
    # pages of the API reference are made when the documentation is built
    missing = [t for t in targets if "api/generated/" not in t and not (page.parent / t).exists()]
    assert not missing


@in_one_pass
@pytest.mark.parametrize("page", TEXTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_table_has_a_rule_under_its_heads(page: Path) -> None:
    prose = FENCED.sub("", page.read_text(encoding="utf-8"))
    tables = re.findall(r"(?:^\|.*\n?)+", prose, re.MULTILINE)
    assert [table for table in tables if not re.match(r".*\n\|( *:?-+:? *\|)+(\n|$)", table)] == []


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_a_notebook_is_kept_with_the_outputs_of_its_code_and_its_links_lead_somewhere(notebook: Path) -> None:
    text = notebook.read_text(encoding="utf-8")
    found, making = json.loads(text), program("make_notebooks")
    assert found["metadata"]["outputs_of"] == making.digest(found), "run `make notebooks`"
    code = [cell for cell in found["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [cell["outputs"] for cell in code]
    assert sum(map(bool, outputs)) > len(code) // 2 and list(map(making.stored, outputs)) == outputs
    # small, and of no machine
    assert len(text) < 300_000 and not re.search(r"/(tmp|home|root|work|usr|Users)/|iopub|at 0x", text)
    prose = "".join("".join(cell["source"]) for cell in found["cells"] if cell["cell_type"] == "markdown")
    assert [link for link in LINK.findall(prose) if not (notebook.parent / link).exists()] == []


@pytest.mark.parametrize(
    ("now", "told"), [("0.5 and 1e-05", 0), ("0.504 and 2e-05", 0), ("0.6 and 1e-05", 1), ("0", 1)]
)
def test_outputs_of_a_notebook_may_differ_in_their_last_digits_alone(now: str, told: int) -> None:
    before, after = ({"cells": [{"id": "a", "outputs": [{"text": [text]}]}]} for text in ("0.5 and 1e-05", now))
    assert len(program("make_notebooks").differences(before, after)) == told


@pytest.mark.parametrize("page", [ROOT / "README.md", DOCS / "index.md"], ids=lambda page: page.name)
def test_the_first_pages_link_to_every_notebook(page: Path) -> None:
    linked = {(page.parent / link).resolve() for link in LINK.findall(page.read_text(encoding="utf-8"))}
    assert NOTEBOOKS and linked.issuperset(NOTEBOOKS)


def test_every_page_is_in_a_table_of_contents() -> None:
    listed = {
        (index.parent / entry).resolve()
        for index in TEXTS
        for body in re.findall(r"```\{toctree\}\n(.*?)```", index.read_text(encoding="utf-8"), re.DOTALL)
        for entry in body.splitlines()
        if entry and not entry.startswith((":", "*"))
    }
    # errors and mechanisms are listed by a pattern
    apart = {PAGES, MECHANISMS, MECHANISMS_ZH}
    pages = {page.with_suffix("") for page in TEXTS if DOCS in page.parents and page.parent not in apart}
    assert pages - {DOCS / "index"} == {page for page in listed if page.parent not in apart}


def test_every_package_is_in_the_api_reference() -> None:
    listed = re.findall(r"^   glassformer\.(\w+)$", (DOCS / "api.md").read_text(encoding="utf-8"), re.MULTILINE)
    modules = {module.name for module in pkgutil.iter_modules(glassformer.__path__)} - {"__main__"}
    assert sorted(listed) == sorted(modules)


def test_the_sites_on_the_page_for_newcomers_exist() -> None:
    named: dict[str, list[str]] = {}
    for table in re.findall(r"^(?:\|.*\|\n)+", NEWCOMERS.read_text(encoding="utf-8"), re.MULTILINE):
        header, _, *rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in table.splitlines()]
        if "site" in header:
            named[header[0]] = [row[header.index("site")].strip("`") for row in rows]
    layer = block(n_heads=2, positions=QueryKeyOnly(), mlp=Mlp(8, gated=True))
    sites = DecoderConfig(7, 4, (layer,), max_len=8, positions=Learned()).build().sites()
    assert {of: len(names) for of, names in named.items()} == {"bridge": 26, "there, in a GPT-2": 14, "component": 12}
    assert [n for names in named.values() for n in names if n.replace(".i.", ".0.") not in sites] == []


# the changelog also names what is gone
@in_one_pass
@pytest.mark.parametrize("page", [p for p in TEXTS if p.name != "CHANGELOG.md"], ids=lambda p: str(p.relative_to(ROOT)))
def test_every_function_that_a_page_names_in_code_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    code = [body for _, body in FENCED.findall(text)] + re.findall(r"`([^`\n]+)`", FENCED.sub("", text))
    # elsewhere a batch may be called `data`, and a file `models.py`
    ours = "gf|analysis|data|models|training|weights" if page == NEWCOMERS else "gf|analysis"
    called = re.compile(rf"(?<![\w./\"])(?:{ours})(?:\.[A-Za-z_]\w*)+")
    assert [name for name in sorted({n for part in code for n in called.findall(part)}) if lacks(name)] == []


def lacks(name: str) -> bool:
    """Whether a dotted name leads nowhere in the package; behind a class or function it may be anything."""
    found: object = glassformer
    for part in name.replace("gf.", "", 1).split("."):
        found = getattr(found, part, None)
        if found is None or not isinstance(found, ModuleType):
            return found is None
    return False


def test_every_path_that_settings_of_tools_list_exists() -> None:
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    pyright, ruff = tool["pyright"], tool["ruff"]
    packages = tool["setuptools"]["package-data"]
    listed = {
        "pyright": [*pyright["include"], *pyright["extraPaths"], *pyright["strict"]],
        "ruff": [*ruff["src"], *ruff["extend-exclude"]],
        "package-data": [f"src/{package}/{pattern}" for package, patterns in packages.items() for pattern in patterns],
    }
    missing = {name: [path for path in paths if not any(ROOT.glob(path))] for name, paths in listed.items()}
    assert missing == {"pyright": [], "ruff": [], "package-data": []}


def test_the_architecture_states_the_layers_that_are_checked() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    checked = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    stated = re.search(r"for the packages there are:\n\n```\n(.*?)```", page, re.DOTALL)
    assert stated is not None
    assert [layer.strip() for layer in stated[1].replace("\n", " ").split(">")] == checked


def test_every_command_is_in_the_architecture_and_the_changelog() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    verbs = re.search(r"one module per verb: ([\w ]+)\.", page)
    assert verbs is not None and set(verbs[1].split()) == set(cli.VERBS)
    assert [verb for verb in cli.VERBS if f"glassformer {verb}" not in changes] == []


def test_the_page_of_families_lists_those_that_exist() -> None:
    page = (DOCS / "families.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|", page, re.MULTILINE)[2:]
    kinds = {name: tuple(re.findall(r"`([^`]+)`", kinds)) for name, kinds in rows}
    assert kinds == {family.name: family.model_types for family in FAMILIES}, "run `make families`"
    listed = re.findall(r"^- ([^:\n]+): (.+)$", page.partition("## What was compared\n")[2], re.MULTILINE)
    compared = {name: cases.split("; ") for name, cases in listed}
    for name, case in all_cases().items():
        assert name.replace("_", " ") in compared[case.family], "run `make families`"


@pytest.mark.parametrize(("said", "right"), [("a=1 b=…", True), ("a=1 b=20", True), ("a=1 b=2", False)])
def test_an_example_whose_comment_says_another_tensor_than_it_prints_fails(said: str, right: bool) -> None:
    source = f'print("Labelled(a=1 b=20, float32)")  # Labelled({said}, float32)\n'
    # a process of its own: what it prints is not to be captured here
    run = "import runpy, sys; sys.exit(not runpy.run_path(sys.argv[1])['run']('page.md', sys.argv[2]))"
    done = subprocess.run([sys.executable, "-c", run, str(DOCS / "run_examples.py"), source], capture_output=True)
    assert (done.returncode == 0) is right
