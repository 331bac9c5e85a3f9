"""Fill the generated tables of the READMEs and of the pages on mechanisms and reliability (`make tables`).

A table lies between `<!-- name -->` and `<!-- /name -->`. Models come from the cards in `src/glassformer/zoo`, measured
figures from `benchmarks/results`, mechanisms from the registry and the docstrings of their modules, groups of them from
`mechanism_groups.json`, claims from the reports in `src/glassformer/studies/found`, calls of the server from its
schema.
"""

import inspect
import json
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from glassformer.attention import MixerConfig
from glassformer.bench.paired import aim_met, aim_said, interval_said, rounds_said
from glassformer.dynamics import EQUIVARIANCE_LAWS
from glassformer.serve import Limits
from glassformer.serve.schema import schema
from glassformer.study import find, names as names_of_studies, shipped
from glassformer.study.replay import read_replays
from glassformer.study.report import chance_in_words, found_in_words, remarks, size_of, tallied
from glassformer.study.shelf import shipped_replays_at

ROOT = Path(__file__).resolve().parent.parent
ZOO = ROOT / "src" / "glassformer" / "zoo"
RESULTS = ROOT / "benchmarks" / "results" / "x86_64-2-cores.json"
CIRCUITS = ROOT / "benchmarks" / "results" / "circuits-x86_64-2-cores.json"
SWEEPS = ROOT / "benchmarks" / "results" / "sweeps-x86_64-2-cores.json"
STRESS = ROOT / "benchmarks" / "results" / "stress-x86_64-2-cores.json"
ENVIRONMENTS = ROOT / "benchmarks" / "results" / "environments-x86_64.json"
PATTERNS = ROOT / "docs" / "images" / "mechanisms"
EXPLORER = ROOT / "benchmarks" / "results" / "explorer-x86_64-2-cores.json"
LARGE = ROOT / "benchmarks" / "results" / "large-x86_64-2-cores.json"
DICTIONARIES = ROOT / "benchmarks" / "results" / "dictionaries-x86_64-2-cores.json"
REAL = ROOT / "benchmarks" / "results" / "real-models.json"
THEORY = ROOT / "docs" / "images" / "theory" / "seen.json"
GROUPS = ROOT / "docs" / "mechanism_groups.json"

# the first figures of a card, and what they are called in each README; the card has them all
FIGURES = {
    "bits_per_byte": ("bits per byte", "每字节比特数"),
    "5-gram_bits_per_byte": ("5-gram", "五元模型"),
    "prefix_matching": ("prefix matching", "前缀匹配"),
    "prefix_matching_on_text": ("on text", "在文本上"),
    "indirect_objects_new_words_and_frames": ("new indirect objects", "新的间接宾语"),
    "samples_that_parse": ("samples parse", "可解析的样本"),
    "masked_accuracy": ("masked tokens", "被遮词元"),
    "exact_match": ("exact match", "完全匹配"),
}
# the first rows of measured speed: (figure, baseline, case) of ratios, (task, peer) of sweeps
RATIOS = {
    ("sites", "the same code, site calls taken out", "gpt-4l shape, 1 x 256"): (
        "a forward pass that reads nothing / the same code without sites, 256 tokens",
        "不读取任何值的前向计算 / 去掉位点的同一代码，256 个词元",
    ),
    ("patterns", "bare copy, eager attention, patterns kept", "gpt-4l shape, 1 x 64"): (
        "reading every pattern / a bare copy that keeps them, 64 tokens",
        "读取全部注意力图 / 同样保留它们的精简版，64 个词元",
    ),
    ("forward", "transformers GPT2LMHeadModel", "GPT-2 small shape, 1 x 256"): (
        "forward pass of GPT-2 small / `transformers`, 256 tokens",
        "GPT-2 small 的前向计算 / `transformers`，256 个词元",
    ),
    ("generation", "transformers generate", "GPT-2 small shape, 16 + 64 tokens"): (
        "generation, GPT-2 small / `transformers`, 16 + 64 tokens",
        "GPT-2 small 的生成 / `transformers`，16 + 64 个词元",
    ),
}
TIMES_FASTER = {
    ("resid-64", "transformer_lens 4.3.0"): (
        "patching every layer and position, 64 tokens / TransformerLens 4.3",
        "修补每一层每个位置，64 个词元 / TransformerLens 4.3",
    ),
    ("lens-64", "transformer_lens 4.3.0"): (
        "logit lens, five likeliest, 64 tokens / TransformerLens 4.3",
        "logit 透镜，前五项，64 个词元 / TransformerLens 4.3",
    ),
}
MET = {
    "yes": ("yes", "是"), "no": ("no", "否"), "unclear": ("unclear", "不明"),
    "within A/A": ("within A/A", "在 A/A 之内"),
}  # fmt: skip
ABOUT = {
    "attn-only-1l": "一层注意力，没有 MLP：只有二元与跳跃三元规律，没有归纳头。",
    "attn-only-2l": "两层注意力，没有 MLP：具有归纳头的最小模型。",
    "encoder-4l": "四层 Llama 式结构，双向阅读 Python，填出被遮住的词元。",
    "gpt-4l": "四层 Llama 式结构（RMSNorm、RoPE、分组键值、SwiGLU），会写 Python。",
    "hybrid-4l": "三层 lightning 注意力加一层 softmax，规模同 gpt-4l，会写 Python。",
    "prose-4l": "与 gpt-4l 同样的四层，读英文：文档字符串、注释，以及答案已知的句子。",
    "zh-en": "采用最初 post-norm 接法的编码器-解码器，把简单的中文句子译成英文。",
}


def tables() -> dict[Path, dict[str, str]]:
    """Return every generated table by file and marker."""
    cards = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(ZOO.glob("*/card.json"))]
    return {
        ROOT / "README.md": readme(cards, chinese=False),
        ROOT / "README.zh.md": readme(cards, chinese=True),
        ROOT / "benchmarks" / "README.md": {
            "speed": speed(), "circuits": circuits(), "sweeps": sweeps(), "explorer": explorer(), "large": large(),
            "dictionaries": dictionaries(),
        },
        ROOT / "docs" / "mechanisms.md": {"mechanisms": mechanisms(), "assumptions": assumptions()},
        ROOT / "docs" / "claims.md": {"claims": claims()},
        ROOT / "docs" / "server-api.md": server_api(),
        **{page: studies(page.read_text(encoding="utf-8")) for page in sorted((ROOT / "docs" / "how-to").glob("*.md"))},
        **{page: theory(page) for page in sorted((ROOT / "docs" / "theory").glob("*.md")) if page.stem != "index"},
        ROOT / "docs" / "reliability.md": {"stress": stress(), "environments": environments()},
        ROOT / "docs" / "real-models.md": {model: real(model) for model in ("smollm2", "gemma3", "minilm")},
    }  # fmt: skip


def readme(cards: Sequence[dict[str, Any]], *, chinese: bool) -> dict[str, str]:
    """Return the tables of a README."""
    return {
        "mechanisms": catalogue(chinese=chinese),
        "models": models(cards, chinese=chinese),
        "speed": headlines(chinese=chinese),
    }


def models(cards: Sequence[dict[str, Any]], *, chinese: bool) -> str:
    """Return one row per shipped model: what it is, its training, and the first of its figures."""
    language = int(chinese)
    heads = (("model", "trained on", "measured"), ("模型", "训练", "实测"))[language]
    rows = [heads]
    for card in cards:
        about = ABOUT.get(card["name"], card["about"]) if chinese else card["about"]
        found = {name: card["figures"][name] for name in FIGURES if name in card["figures"]}
        measured = [f"{FIGURES[name][language]} {_number(value)}" for name, value in found.items()]
        trained = f"{card['tokens'] / 1e6:.1f} M tokens"
        if chinese:
            trained = f"{10 * round(card['tokens'] / 1e5)} 万词元"
        trained += _made_up(card.get("synthetic", {}), chinese=chinese)
        size = (f", {card['parameters'] / 1e6:.2f} M parameters", f"，{card['parameters'] / 1e4:.0f} 万参数")[language]
        rows.append((f"`{card['name']}`{size}<br>{about}", trained, ("; ", "；")[language].join(measured)))
    return _table(rows)


def _made_up(shares: dict[str, float], *, chinese: bool) -> str:
    """Return what of a model's batches was made up, to stand behind what it was trained on."""
    called = {
        "Random tokens, repeated to the end of the row": ("random tokens", "重复的随机词元"),
        "Spans of text, each repeated to the end of its row": ("repeated text", "重复的文本片段"),
        "Sentences from templates, with the answer in its place": ("templates", "由模板生成的句子"),
        "Sentence pairs from the Chinese-English grammar": ("a grammar", "由语法生成的句子"),
    }
    said = [f"{100 * share:.3g} % {called.get(about, (about, about))[int(chinese)]}" for about, share in shares.items()]
    return "".join(("，其中 " if chinese else "; ") + part for part in said)


def catalogue(*, chinese: bool) -> str:
    """Return one row per group of mechanisms, which leads to the rows of its mechanisms."""
    rows: list[tuple[str, ...]] = [(("group", "mechanisms"), ("类别", "机制"))[int(chinese)]]
    for name, group in groups().items():
        said = group["zh"][0] if chinese else name
        link = f"[{said}](docs/mechanisms.md#{name.lower().replace(' ', '-')})"
        rows.append((link, ("、" if chinese else ", ").join(f"`{kind}`" for kind in group["mechanisms"])))
    return _table(rows)


def groups() -> dict[str, dict[str, Any]]:
    """Return the groups of mechanisms: words for the group, and for each mechanism six words and the study about it."""
    found = json.loads(GROUPS.read_text(encoding="utf-8"))
    grouped = [kind for group in found.values() for kind in group["mechanisms"]]
    if sorted(grouped) != [kind for kind, _ in _registered()]:
        raise SystemExit(f"{GROUPS.name} groups {sorted(grouped)}; there are {[kind for kind, _ in _registered()]}")
    for name, study in ((kind, row[1]) for group in found.values() for kind, row in group["mechanisms"].items()):
        if study and name not in find(study).mechanisms:
            raise SystemExit(f'{GROUPS.name}: the study "{study}" has no case of "{name}"')
    return found


def claims() -> str:
    """Return a list of the studies whose small scale ships, and a section for each: its question, its paper, and every
    claim with its verdict."""
    found = {name: report for name in names_of_studies() if (report := shipped(name)) is not None}
    parts = [
        _table([("study", "question", "found"),
                *((f"[{name}](#{name})", report["question"], tallied(report)) for name, report in found.items())])
    ]  # fmt: skip
    for name, report in found.items():
        differs = "\n".join(f"- {line}" for line in report["differs"])
        told = (report["question"], f"{report['paper']}. {_ran(report)}", decided(report), chance_in_words(report))
        notes = ["Why, and how near:", "\n".join(lines)] if (lines := remarks(report)) else []
        parts += [f"## {name}", *told, *notes, *(["What differs:", differs] if differs else [])]
    return "\n\n".join(parts)


def decided(report: dict[str, Any]) -> str:
    """Return the claims of a report with their verdicts, as a table."""
    rows = [("claim", "expected", "found", "verdict")]
    rows += [(one["text"], one["expected"], found_in_words(one), one["verdict"]) for one in report["claims"]]
    return _table(rows)


def studies(page: str) -> dict[str, str]:
    """Return what studies that a page has a marker for found, by their names."""
    found = {name: shipped(name) for name in names_of_studies() if f"<!-- {name} -->" in page}
    return {
        name: "What it finds does not come with the package yet."
        if report is None
        else f"{decided(report)}\n\n{_ran(report)}"
        for name, report in found.items()
    }


def theory(page: Path) -> dict[str, str]:
    """Return what was seen of a view, as `make theory` computed it, and what studies that its page names found."""
    facts: dict[str, dict[str, str]] = json.loads(THEORY.read_text(encoding="utf-8"))
    rows = THEORY.with_name(f"{page.stem}.json")
    return (
        {"seen": _table([("what", "seen"), *facts[page.stem].items()])}
        | studies(page.read_text(encoding="utf-8"))
        | (equivariance(json.loads(rows.read_text(encoding="utf-8"))) if rows.is_file() else {})
    )


def equivariance(rows: dict[str, list[dict[str, list[str]]]]) -> dict[str, str]:
    """Return a table of laws for each group of layers: a row for settings that obey the same, laws that are defined."""
    kinds = {one.partition("(")[0] for row in rows["mechanism"] for one in row["settings"]}
    if sorted(kinds) != [kind for kind, _ in _registered()]:
        raise SystemExit("laws were tried of other mechanisms than there are: python docs/make_theory.py symmetries")
    tables = dict[str, str]()
    for group, found in rows.items():
        asked = [at for at in range(len(EQUIVARIANCE_LAWS)) if any(row["signs"][at] != "–" for row in found)]
        laws = [[*EQUIVARIANCE_LAWS][at].replace(" ", "<br>") for at in asked]
        of_rows = [(_settings(row["settings"]), *(row["signs"][at] for at in asked)) for row in found]
        tables[group] = _table([(group, *laws), *of_rows])
    return tables


def _settings(names: Sequence[str], width: int = 120) -> str:
    """Return as many names as a cell has room for, and how many more there are."""
    shown = [name for i, name in enumerate(names) if i == 0 or sum(map(len, names[: i + 1])) <= width]
    more = f"<br>and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return "<br>".join(f"`{name}`" for name in shown) + more


def _ran(report: dict[str, Any]) -> str:
    replayed = read_replays(shipped_replays_at()).get(report["study"])
    return f"{size_of(report)}: {tallied(report)}. {'Not made again.' if replayed is None else replayed.said()}"


def headlines(*, chinese: bool) -> str:
    """Return a few of the measured figures, the missed aims among them; the others stand beside the benchmarks."""
    language = int(chinese)
    heads = (("compared, one CPU thread", "measured", "aim", "met"), ("比较（单个 CPU 线程）", "实测", "目标", "达到"))
    rows: list[Sequence[str]] = [heads[language]]
    ours = {(row["figure"], row["baseline"], row["case"]): row for row in _ratios() if row["threads"] == 1}
    for key, names in RATIOS.items():
        row = ours[key]
        faster, sign = row["ratio_of"] == "speeds", "≥" if row["ratio_of"] == "speeds" else "≤"
        said = (("{} x the time", "{} 倍的时间"), ("{} x the speed", "{} 倍的速度"))[faster][language]
        measured, aim = said.format(_interval(row["cpu"])), f"{sign} {row['aim']:g}"
        rows.append((names[language], measured, aim, MET[row["met"]][language]))
    theirs = {(row["task"], row["peer"]): row for row in _sweeps() if row["threads"] == 1}
    for key, names in TIMES_FASTER.items():
        row, said = theirs[key], ("{} x faster", "快 {} 倍")[language]
        found = row["faster"]["cpu"], *row["faster_quartiles"]
        met = MET[_met(*found, aim=row["aim"])][language]
        rows.append((names[language], said.format(interval_said(*found, digits=2)), f"≥ {row['aim']:g}", met))
    return _table(rows)


def _ratios() -> list[dict[str, Any]]:
    return json.loads(RESULTS.read_text(encoding="utf-8"))["rows"]


def _sweeps() -> list[dict[str, Any]]:
    return json.loads(SWEEPS.read_text(encoding="utf-8"))["rows"]


def speed() -> str:
    """Return one row per measured ratio: what against what, the ratio of CPU times, and the aim it met or missed."""
    heads = ("compared", "case", "threads", "ratio", "rounds", "aim", "met")
    rows: list[Sequence[str]] = [heads]
    for row in _ratios():
        unit = {"times": "", "speeds": " (speed)", "bytes": " (bytes)"}[row["ratio_of"]]
        ratio, rounds = _interval(row["cpu"]), rounds_said(row["rounds"], row.get("sittings", []), row["cpu"])
        sign = "≥" if row["ratio_of"] == "speeds" else "≤"
        aim = "" if row["aim"] is None else f"{sign} {row['aim']}"
        if "aim_extra_seconds" in row["notes"]:
            rounds = str(row["rounds"])
            ratio, aim = f"{row['notes']['extra_cpu_seconds']:+.2f} s", f"≤ +{row['notes']['aim_extra_seconds']:g} s"
        compared = f"{row['subject']} / {row['baseline']}{unit}"
        rows.append((compared, row["case"], str(row["threads"]), ratio, rounds, aim, row["met"] or ""))
    return _table(rows)


def circuits() -> str:
    """Return one row per task, shape and peer: times faster and peak memory of both sides, aims and whether met."""
    heads = (
        "all heads of a model",
        "shape",
        "against",
        "times faster",
        "aim",
        "met",
        "peak memory",
        "aim",
        "met",
    )
    tasks = {"composition": "Q-, K-, V-composition scores", "copying": "OV copying eigenvalues, full vocabulary"}
    rows: list[Sequence[str]] = [heads]
    found = json.loads(CIRCUITS.read_text(encoding="utf-8"))
    for row in found["rows"]:
        low, high = row["faster_quartiles"]
        faster, peer = row["faster"]["cpu"], row["peer"].replace("transformer_lens", "TransformerLens")
        rows.append((
            tasks[row["task"]], row["shape"], peer, interval_said(faster, low, high, digits=1),
            f"≥ {row['aim']:g}", _met(faster, low, high, aim=row["aim"]), *_memory(row),
        ))  # fmt: skip
    alone = {
        "scores": "the same scores, one layer at a time from disk",
        "pairs": "100 largest entries of full QK and OV circuits",
    }
    for row in found["large"]:
        seconds, memory = f"{row['cpu_seconds']:,.0f} s CPU", f"{row['peak_bytes_beyond_start'] / 2**20:,.0f} MiB"
        shape = f"{row['shape']}, {row['heads']:,} heads"
        rows.append((alone[row["task"]], shape, "", seconds, "", "", memory, "", ""))
    return _table(rows)


def sweeps() -> str:
    """Return one row per task, peer and number of threads: times faster and peak memory, aims and whether met."""
    heads = (
        "GPT-2 small shape", "against", "threads", "times faster", "aim", "met", "peak memory", "aim", "met"
    )  # fmt: skip
    tasks = {
        "resid": "patch resid_pre, layers x positions, {} tokens",
        "z": "patch every head's z, {} tokens",
        "blocks": "patch resid_pre, attn.out and mlp.out, layers x positions, {} tokens",
        "lens": "logit lens, top 5, {} tokens",
        "dla": "direct effects of every head, {} tokens",
    }
    rows: list[Sequence[str]] = [heads]
    for row in _sweeps():
        kind, size = row["task"].split("-")
        (low, high), faster = row["faster_quartiles"], row["faster"]["cpu"]
        peer = row["peer"].replace("transformer_lens", "TransformerLens")
        rows.append((
            tasks[kind].format(size.replace("x", " x ")), peer, str(row["threads"]),
            interval_said(faster, low, high, digits=0 if faster >= 100 else 2), f"≥ {row['aim']:g}",
            _met(faster, low, high, aim=row["aim"]), *_memory(row),
        ))  # fmt: skip
    return _table(rows)


def explorer() -> str:
    """Return one row per figure of the explorer, model and length of text: waits, and the CPU time in them."""
    found = json.loads(EXPLORER.read_text(encoding="utf-8"))["figures"]
    rows: list[Sequence[str]] = [
        ("figure", "model, tokens", "wait (all rounds)", "CPU ms: server, page", "baseline", "aim", "met")
    ]

    def median(figure: dict[str, Any], name: str) -> str:
        return f"{figure[name]['median']:.0f}" if name in figure else ""

    for figure in sorted(found, key=lambda one: (one["tokens"], one["model"])):
        wall = figure["wall"]
        cpu = ", ".join(median(figure, name) or "–" for name in ("server_cpu", "page_cpu"))
        rows.append(
            (
                figure["figure"],
                f"{figure['model']}, {figure['tokens']:,}",
                f"{wall['median']:.0f} {figure['unit']} ({wall['least']:.0f}-{wall['largest']:.0f})",
                "" if cpu == "–, –" else cpu,
                median(figure, "baseline"),
                "" if figure["aim"] is None else f"{figure['aim']:.0f}",
                figure["met"] or "",
            )
        )
    return _table(rows)


def large() -> str:
    """Return one row per question and number of threads about the large checkpoint, ours and theirs side by side."""
    found = json.loads(LARGE.read_text(encoding="utf-8"))
    size = found["file_bytes"]
    heads = (
        f"1.5 billion parameters, bf16, {size / 1e9:.1f} GB",
        "threads",
        "glassformer",
        "transformers",
        "aim",
        "met",
    )
    rows: list[Sequence[str]] = [heads]
    for row in found["rows"]:
        sides = row["sides"]
        both = [sides["glassformer"], sides["transformers"]]
        firsts = [_seconds({c: side["load"][c] + side["first"][c] for c in ("cpu", "wall")}) for side in both]
        rates = [f"{side['per_second']['cpu']:.1f} CPU, {side['per_second']['wall']:.1f} wall" for side in both]
        memory = "peak memory / file size"
        answers: dict[str, Sequence[str]] = {
            "load": [_seconds(side["load"]) for side in both],
            "load, and the first token of a prompt of 64": firsts,
            memory: [f"{side['peak_bytes'] / size:.2f}" for side in both],
            "tokens per second of CPU time and of the clock, 32 new ones": rates,
            "`explain`, 25 tokens": [_seconds(sides["explain"]["explain"])],
            "its peak memory, the same": [f"{sides['explain']['peak_bytes'] / size:.2f}"],
            "streamed forward pass of 64 tokens, files on disk": [_seconds(sides["streamed"]["first"])],
            "the same, files in the system's cache": [_seconds(sides["streamed"]["again"])],
            "streamed, peak memory / file size": [f"{sides['streamed']['peak_bytes'] / size:.2f}"],
        }
        for asked, values in answers.items():
            held = sides["glassformer"]["peak_bytes"] / size
            aim = ("≤ 1.15", aim_met(held, held, held, 1.15, at_least=False)) if asked == memory else ("", "")
            rows.append((asked, str(row["threads"]), *values, *[""] * (2 - len(values)), *aim))
    return _table(rows)


def dictionaries() -> str:
    """Return one row per kind of dictionary and shape: times faster than sae-lens and share of its memory."""
    if not DICTIONARIES.is_file():
        return "There is no record of it yet."
    heads = (
        "a step of",
        "shape",
        "times faster",
        "floor",
        "met",
        "aim",
        "met",
        "peak memory",
        "floor",
        "met",
        "aim",
        "met",
    )
    rows: list[Sequence[str]] = [heads]
    for row in json.loads(DICTIONARIES.read_text(encoding="utf-8"))["rows"]:
        ours, theirs = (row["bytes"][side] / 2**20 for side in ("glassformer", "sae_lens"))
        rows.append((
            row["kind"], row["shape"], interval_said(*row["faster"].values(), digits=2), f"≥ {row['floor']:g}",
            row["floor_met"], f"≥ {row['aim']:g}" if row["aim"] else "", row["aim_met"] or "",
            f"{ours:.0f} of {theirs:.0f} MiB = {row['memory']:.2f}", f"≤ {row['memory_floor']:g}",
            row["memory_floor_met"], f"≤ {row['memory_aim']:g}", row["memory_aim_met"],
        ))  # fmt: skip
    return _table(rows)


def _seconds(spent: dict[str, float]) -> str:
    return f"{spent['cpu']:.2f} s CPU, {spent['wall']:.2f} s wall"


def _met(faster: float, low: float, high: float, *, aim: float) -> str:
    return aim_met(faster, low, high, aim, at_least=True)


def _interval(spread: dict[str, float]) -> str:
    return interval_said(spread["median"], spread["low"], spread["high"])


def _memory(row: dict[str, Any]) -> tuple[str, str, str]:
    """Return the memory of both sides, what part of theirs is aimed at, and whether it is met, by what was measured."""
    sizes = (row["bytes"][who] / 2**20 for who in ("theirs", "ours"))
    theirs, ours = (f"{size:,.{int(size < 10)}f}" for size in sizes)
    ratio, aim = row["memory_ratio"], row["memory_aim"]
    return f"{theirs} / {ours} MiB", f"≤ {aim_said(1 / aim)} x", _met(ratio, ratio, ratio, aim=aim)


def stress() -> str:
    """Return how many trials there were of each kind, and how they ended."""
    found: dict[str, Counter[str]] = {}
    for name, outcomes in json.loads(STRESS.read_text(encoding="utf-8")).items():
        found.setdefault(name.partition("[")[0], Counter()).update(outcomes)
    rows = [
        (
            name.removeprefix("test_").replace("_", " "),
            f"{outcomes.total():,}",
            ", ".join(f"{n:,} {outcome}" for outcome, n in sorted(outcomes.items())),
        )
        for name, outcomes in sorted(found.items())
    ]
    return _table([("what has to hold", "trials", "outcomes"), *rows])


def environments() -> str:
    """Return the environments that the default tests ran in, and pytest's closing line in each."""
    found = json.loads(ENVIRONMENTS.read_text(encoding="utf-8"))
    rows = [tuple(entry[name] for name in ("environment", "versions", "tests")) for entry in found]
    return _table([("environment", "Python and PyTorch", "default tests"), *rows])


def real(model: str) -> str:
    """Return what was asked of a real model, what came out, whether it had to, and what it cost."""
    found = json.loads(REAL.read_text(encoding="utf-8"))["checks"]
    rows = [
        (
            name.removeprefix(f"{model} "),
            check["expected"],
            textwrap.shorten(check["said"] or "it does", 140, placeholder=" …")
            if check["holds"]
            else f"**not so:** {check['said']}",
            f"{check['cpu_s']:.1f}",
            f"{check['peak_mib'] / 1024:.1f}",
        )
        for name, check in found.items()
        if name.startswith(f"{model} ")
    ]
    return _table([("asked", "must come out", "came out", "CPU s", "GiB"), *rows])


def server_api() -> dict[str, str]:
    """Return every call of the server, and the fields of what it takes and answers, from its schema."""
    whole, limits = schema(), inspect.getdoc(Limits) or ""
    rows: list[tuple[str, ...]] = [("call", "takes", "answers", "does")]
    taken, answered = dict[str, None](), dict[str, None]()
    for call, told in whole["calls"].items():
        given, made = (
            [told[key]["$ref"].split("/")[-1] for key in keys if key in told]
            for keys in (("body", "query"), ("answer",))
        )
        taken |= dict.fromkeys(given)
        answered |= dict.fromkeys(made)
        linked = ["".join(f"[{name}](#{name.lower()})" for name in names) for names in (given, made)]
        rows.append((f"`{call}`", *linked, str(told["about"])))
    most = re.findall(r"^    (\w+): (.+)\.$", limits, re.MULTILINE)
    sent = _definitions(whole["$defs"], taken, is_sent=True)
    answer = _definitions(whole["$defs"], answered | {"Fault": None}, is_sent=False)
    return {
        "calls": _table(rows),
        "taken": "\n\n".join(sent.values()),
        "answered": "\n\n".join(part for name, part in answer.items() if name not in sent),
        "limits": _table([("at most", "of what"), *((f"{getattr(Limits(), name):,}", what) for name, what in most)]),
    }


def _definitions(known: dict[str, Any], names: dict[str, None], *, is_sent: bool) -> dict[str, str]:
    """Return the fields of definitions, and behind them those of the definitions that they are made of."""
    parts, waiting, every_view = dict[str, str](), list(names), known["View"]["properties"]
    for name in waiting:
        one = known[name]
        waiting += [n for n in re.findall(r"#/\$defs/(\w+)", json.dumps(one)) if n not in waiting]
        is_view = name != "View" and every_view.keys() <= one["properties"].keys()
        own = {field: told for field, told in one["properties"].items() if not (is_view and field in every_view)}
        fields = ["- what every [View](#view) has"] * is_view + [
            _field(field, told, is_sent and field in one["required"]) for field, told in own.items()
        ]
        parts[name] = "\n\n".join((f"### {name}", str(one["description"]), "\n".join(fields)))
    return parts


def _field(name: str, told: dict[str, Any], is_needed: bool) -> str:
    default = told.get("default")
    by_default = "" if default is None or default in ("", []) else f", `{json.dumps(default)}` by default"
    meaning = f": {told['description']}" if "description" in told else ""
    return f"- `{name}`, {_kind(told)}{', needed' if is_needed else ''}{by_default}{meaning}"


def _kind(told: dict[str, Any]) -> str:
    """Return what a field may be, in words."""
    if "$ref" in told:
        name = told["$ref"].split("/")[-1]
        return f"[{name}](#{name.lower()})"
    if "enum" in told:
        return " or ".join(f"`{value}`" for value in told["enum"])
    if "anyOf" in told:
        return " or ".join(_kind(one) for one in told["anyOf"])
    if "prefixItems" in told:
        return f"list of {len(told['prefixItems'])} x {_kind(told['prefixItems'][0])}"
    if told.get("type") == "array":
        return f"list of {_kind(told['items'])}"
    low = f" from {told['minimum']}" if "minimum" in told else ""
    return f"{told.get('type', 'anything')}{low}"


def mechanisms() -> str:
    """Return a section per group: one row per registered mechanism that ships with the package."""
    configs, parts = dict(_registered()), []
    for name, group in groups().items():
        rows = [("mechanism", "paper", "in short", "study about it")]
        for kind, (about, study) in group["mechanisms"].items():
            told = f"[{study}](claims.md#{study}): {tallied(shipped(study))}" if study else ""
            rows.append((f"[`{kind}`](mechanisms/{kind}.md)", _paper(configs[kind]), about, told))
        parts += [f"### {name}", f"{group['about'][0].upper()}{group['about'][1:]}.", _table(rows)]
    return "\n\n".join(parts)


def assumptions() -> str:
    """Return what an analysis may assume of each mechanism: its traits."""
    rows = [("mechanism", "linear in v", "rows sum to one", "scores", "streams")]
    for kind, config in _registered():
        traits = config.traits  # type: ignore[attr-defined]
        scores = "bilinear" if traits.bilinear_scores else "yes" if traits.has_scores else "none"
        sums = "yes" if traits.rows_sum_to_one else "no"
        rows.append((f"`{kind}`", traits.linear_in_value, sums, scores, str(traits.streams)))
    return _table(rows)


def _registered() -> list[tuple[str, type]]:
    """Return the mechanisms that ship with the package, by kind."""
    found = sorted(MixerConfig.registry.items())
    return [(kind, config) for kind, config in found if config.__module__.startswith("glassformer.")]


def _paper(config: type) -> str:
    """Return authors and year of the first paper that the module of a mechanism names."""
    source = re.search(r"Source: (.+)", inspect.getdoc(sys.modules[config.__module__]) or "", re.DOTALL)
    cited = source and re.search(r"(compare )?[A-Z][^\W\d]+( et al\.|(,| and) [A-Z][^\W\d]+)* \d{4}", source[1])
    return " ".join(cited[0].split()) if cited else ""


def fill(page: str, found: dict[str, str]) -> str:
    """Return a page with its tables replaced; a marker that is missing is an error."""
    for name, table in found.items():
        place = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        if not place.search(page):
            raise SystemExit(f"no <!-- {name} --> … <!-- /{name} --> to fill")
        page = place.sub(lambda match, table=table: f"{match[1]}\n{table}\n\n{match[2]}", page)
    return page


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown; its first row is the heads."""
    ruled = [rows[0], ("---",) * len(rows[0]), *rows[1:]]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in ruled)


if __name__ == "__main__":
    for path, found in tables().items():
        path.write_text(fill(path.read_text(encoding="utf-8"), found), encoding="utf-8")
