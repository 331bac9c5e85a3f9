"""Fill the generated tables of both READMEs and of the pages on mechanisms and reliability (`make tables`).

A table lies between `<!-- name -->` and `<!-- /name -->`. Models come from the cards in `src/glassformer/zoo`,
measured figures from `benchmarks/results`, and mechanisms from the registry and the docstrings of their modules.
"""

import inspect
import json
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from glassformer.attention import MixerConfig

ROOT = Path(__file__).resolve().parent.parent
ZOO = ROOT / "src" / "glassformer" / "zoo"
RESULTS = ROOT / "benchmarks" / "results" / "x86_64-2-cores.json"
CIRCUITS = ROOT / "benchmarks" / "results" / "circuits-x86_64-2-cores.json"
SWEEPS = ROOT / "benchmarks" / "results" / "sweeps-x86_64-2-cores.json"
STRESS = ROOT / "benchmarks" / "results" / "stress-x86_64-2-cores.json"
ENVIRONMENTS = ROOT / "benchmarks" / "results" / "environments-x86_64.json"
LARGE = ROOT / "benchmarks" / "results" / "large-x86_64-2-cores.json"

# what a figure is called in each README; a figure without an entry goes by its name
FIGURES = {
    "heldout_loss": ("held-out loss", "留出损失"),
    "bits_per_byte": ("bits per byte", "每字节比特数"),
    "bigram_loss": ("bigram loss", "二元模型损失"),
    "5-gram_loss": ("5-gram loss", "五元模型损失"),
    "xz_bits_per_byte": ("`xz -9` bits per byte", "`xz -9` 每字节比特数"),
    "icl_score": ("in-context learning", "上下文学习得分"),
    "prefix_matching": ("prefix matching", "前缀匹配"),
    "prefix_matching_on_text": ("on text", "在文本上"),
    "previous_token": ("previous token", "前一词元"),
    "previous_token_on_text": ("on text", "在文本上"),
    "duplicate_token": ("duplicate token", "重复词元"),
    "duplicate_token_on_text": ("on text", "在文本上"),
    "samples_that_parse": ("samples that parse", "可解析的样本"),
    "exact_match": ("exact match", "完全匹配"),
}
# said in the table by another figure of the same thing; the cards have both
LEFT_TO_CARDS = {"bigram_bits_per_byte", "5-gram_bits_per_byte"}
ABOUT = {
    "attn-only-1l": "一层注意力，没有 MLP：只有二元与跳跃三元规律，没有归纳头。",
    "attn-only-2l": "两层注意力，没有 MLP：具有归纳头的最小模型。",
    "gpt-4l": "四层 Llama 式结构（RMSNorm、RoPE、分组键值、SwiGLU），会写 Python。",
    "zh-en": "采用最初 post-norm 接法的编码器-解码器，把简单的中文句子译成英文。",
}


def tables() -> dict[Path, dict[str, str]]:
    """Return every generated table by file and marker."""
    cards = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(ZOO.glob("*/card.json"))]
    return {
        ROOT / "README.md": readme(cards, chinese=False),
        ROOT / "README.zh.md": readme(cards, chinese=True),
        ROOT / "docs" / "mechanisms.md": {"mechanisms": mechanisms()},
        ROOT / "docs" / "reliability.md": {"stress": stress(), "environments": environments()},
    }


def readme(cards: Sequence[dict[str, Any]], *, chinese: bool) -> dict[str, str]:
    """Return the tables of a README."""
    made = {"models": models(cards, chinese=chinese), "speed": speed(chinese=chinese)}
    made |= {"circuits": circuits(chinese=chinese), "sweeps": sweeps(chinese=chinese)}
    return made | {"large": large(chinese=chinese)}


def models(cards: Sequence[dict[str, Any]], *, chinese: bool) -> str:
    """Return one row per shipped model: what it is, its size, its training, and what was measured."""
    language = int(chinese)
    heads = (("model", "parameters", "trained on", "measured"), ("模型", "参数量", "训练", "实测"))[language]
    rows = [heads, ("---",) * len(heads)]
    for card in cards:
        about = ABOUT.get(card["name"], card["about"]) if chinese else card["about"]
        figures = {name: value for name, value in card["figures"].items() if name not in LEFT_TO_CARDS}
        names = {name: FIGURES.get(name, (name.replace("_", " "),) * 2)[language] for name in figures}
        measured = [f"{names[name]} {_number(value)}" for name, value in figures.items()]
        minutes, threads = f"{card['seconds'] / 60:.0f}", card["threads"]
        trained = f"{card['tokens'] / 1e6:.1f} M tokens, {minutes} min, {threads} CPU thread" + "s" * (threads > 1)
        if chinese:
            trained = f"{card['tokens'] / 1e4:.0f} 万词元，{minutes} 分钟，{threads} 个 CPU 线程"
        trained += _made_up(card.get("synthetic", {}), chinese=chinese)
        separator = "；" if chinese else "; "
        rows.append((f"`{card['name']}`<br>{about}", f"{card['parameters']:,}", trained, separator.join(measured)))
    return _table(rows)


def _made_up(shares: dict[str, float], *, chinese: bool) -> str:
    """Return what of a model's batches was made up, to stand behind what it was trained on."""
    called = {
        "Random tokens, repeated to the end of the row": ("repeated random tokens", "重复的随机词元"),
        "Sentence pairs from the Chinese-English grammar": ("sentences of a grammar", "由语法生成的句子"),
    }
    said = [f"{100 * share:.3g} % {called.get(about, (about, about))[int(chinese)]}" for about, share in shares.items()]
    return "".join(("，每批其中 " if chinese else "; of every batch ") + part for part in said)


def speed(*, chinese: bool) -> str:
    """Return one row per measured ratio: what against what, the ratio of CPU times, and the aim it met or missed."""
    heads = (("compared", "case", "threads", "ratio", "aim", "met"), ("比较", "情形", "线程", "比值", "目标", "达到"))[
        int(chinese)
    ]
    rows: list[Sequence[str]] = [heads, ("---",) * len(heads)]
    for row in json.loads(RESULTS.read_text(encoding="utf-8"))["rows"]:
        unit = (" (speed)", "（速度）")[int(chinese)] if row["ratio_of"] == "speeds" else ""
        ratio = f"{row['cpu']['median']:.3f} ({row['cpu']['low']:.3f}-{row['cpu']['high']:.3f})"
        sign = "≥" if row["ratio_of"] == "speeds" else "≤"
        aim = "" if row["aim"] is None else f"{sign} {row['aim']}"
        if "aim_extra_seconds" in row["notes"]:
            ratio, aim = f"{row['notes']['extra_cpu_seconds']:+.2f} s", f"≤ +{row['notes']['aim_extra_seconds']:g} s"
        compared = f"{row['subject']} / {row['baseline']}{unit}"
        rows.append((compared, row["case"], str(row["threads"]), ratio, aim, row["met"] or ""))
    return _table(rows)


def circuits(*, chinese: bool) -> str:
    """Return one row per task, shape and peer: times faster and peak memory of both sides, aims and whether met."""
    language = int(chinese)
    heads = (
        ("all heads of a model", "shape", "against", "times faster (CPU)", "aim", "met", "peak memory", "aim", "met"),
        ("全部注意力头", "形状", "对照", "快多少倍（CPU）", "目标", "达到", "峰值内存", "目标", "达到"),
    )[language]
    tasks = {
        "composition": ("Q-, K-, V-composition scores", "Q、K、V 组合得分"),
        "copying": ("OV copying eigenvalues, full vocabulary", "OV 复制特征值，完整词表"),
    }
    rows: list[Sequence[str]] = [heads, ("---",) * len(heads)]
    found = json.loads(CIRCUITS.read_text(encoding="utf-8"))
    for row in found["rows"]:
        low, high = row["faster_quartiles"]
        theirs, ours = (row["bytes"][who] / 2**20 for who in ("theirs", "ours"))
        faster, peer = row["faster"]["cpu"], row["peer"].replace("transformer_lens", "TransformerLens")
        rows.append((
            tasks[row["task"]][language], row["shape"], peer, f"{faster:.1f} ({low:.1f}-{high:.1f})",
            f"≥ {row['aim']:g}", _met(faster, row["aim"]), f"{theirs:,.0f} / {ours:,.0f} MiB",
            f"≤ {1 / row['memory_aim']:.2g} x", _met(row["memory_ratio"], row["memory_aim"]),
        ))  # fmt: skip
    alone = {
        "scores": ("the same scores, one layer at a time from disk", "同样的得分，逐层从磁盘读取"),
        "pairs": ("100 largest entries of full QK and OV circuits", "完整 QK 与 OV 电路的前 100 项"),
    }
    for row in found["large"]:
        seconds, memory = f"{row['cpu_seconds']:,.0f} s CPU", f"{row['peak_bytes_beyond_start'] / 2**20:,.0f} MiB"
        shape = f"{row['shape']}, {row['heads']:,} {('heads', '个头')[language]}"
        rows.append((alone[row["task"]][language], shape, "", seconds, "", "", memory, "", ""))
    return _table(rows)


def sweeps(*, chinese: bool) -> str:
    """Return one row per task, peer and number of threads: times faster and peak memory, aims and whether met."""
    language = int(chinese)
    heads = (
        ("GPT-2 small shape", "against", "threads", "times faster (CPU)", "aim", "met", "peak memory", "aim", "met"),
        ("GPT-2 small 形状", "对照", "线程", "快多少倍（CPU）", "目标", "达到", "峰值内存", "目标", "达到"),
    )[language]
    tasks = {
        "resid": ("patch resid_pre, layers x positions, {} tokens", "修补 resid_pre，层 x 位置，{} 个词元"),
        "z": ("patch every head's z, {} tokens", "修补每个头的 z，{} 个词元"),
        "blocks": (
            "patch resid_pre, attn.out and mlp.out, layers x positions, {} tokens",
            "修补 resid_pre、attn.out 和 mlp.out，层 x 位置，{} 个词元",
        ),
        "lens": ("logit lens, top 5, {} tokens", "logit lens，前 5 项，{} 个词元"),
        "dla": ("direct effects of every head, {} tokens", "每个头的直接效应，{} 个词元"),
    }
    rows: list[Sequence[str]] = [heads, ("---",) * len(heads)]
    for row in json.loads(SWEEPS.read_text(encoding="utf-8"))["rows"]:
        kind, size = row["task"].split("-")
        (low, high), faster = row["faster_quartiles"], row["faster"]["cpu"]
        theirs, ours = (row["bytes"][who] / 2**20 for who in ("theirs", "ours"))
        peer = row["peer"].replace("transformer_lens", "TransformerLens")
        rows.append((
            tasks[kind][language].format(size.replace("x", " x ")), peer, str(row["threads"]),
            f"{faster:.3g} ({low:.3g}-{high:.3g})", f"≥ {row['aim']:g}", _met(faster, row["aim"]),
            f"{theirs:,.0f} / {ours:,.0f} MiB", f"≤ {1 / row['memory_aim']:.2g} x",
            _met(row["memory_ratio"], row["memory_aim"]),
        ))  # fmt: skip
    return _table(rows)


def large(*, chinese: bool) -> str:
    """Return one row per question and number of threads about the large checkpoint, ours and theirs side by side."""
    language = int(chinese)
    found = json.loads(LARGE.read_text(encoding="utf-8"))
    heads = (
        ("1.5 billion parameters, bf16, {:.1f} GB", "threads", "glassformer", "transformers", "aim", "met"),
        ("15 亿参数，bf16，{:.1f} GB", "线程", "glassformer", "transformers", "目标", "达到"),
    )[language]
    rows: list[Sequence[str]] = [(heads[0].format(found["file_bytes"] / 1e9), *heads[1:]), ("---",) * len(heads)]
    asked = {
        "load": ("load", "载入"),
        "first": ("load, and the first token of a prompt of 64", "载入，并得到 64 词元提示的首个词元"),
        "memory": ("peak memory / file size", "峰值内存 / 文件大小"),
        "tokens": (
            "tokens per second of CPU time and of the clock, 32 new ones",
            "每秒（CPU 时间与实际时间）词元数，生成 32 个",
        ),
        "explain": ("`explain`, 25 tokens", "`explain`，25 个词元"),
        "explain_memory": ("its peak memory / file size", "其峰值内存 / 文件大小"),
        "disk": ("streamed forward pass of 64 tokens, files on disk", "流式前向，64 个词元，文件在磁盘上"),
        "cache": ("the same, files in the system's cache", "同上，文件在系统缓存中"),
        "streamed_memory": ("its peak memory / file size", "其峰值内存 / 文件大小"),
    }
    for row in found["rows"]:
        sides, size = row["sides"], found["file_bytes"]
        both = [sides["glassformer"], sides["transformers"]]
        ours: dict[str, Sequence[str]] = {
            "load": [_seconds(side["load"]) for side in both],
            "first": [_seconds({c: side["load"][c] + side["first"][c] for c in ("cpu", "wall")}) for side in both],
            "memory": [f"{side['peak_bytes'] / size:.2f}" for side in both],
            "tokens": [f"{side['per_second']['cpu']:.1f} CPU, {side['per_second']['wall']:.1f} wall" for side in both],
            "explain": [_seconds(sides["explain"]["explain"])],
            "explain_memory": [f"{sides['explain']['peak_bytes'] / size:.2f}"],
            "disk": [_seconds(sides["streamed"]["first"])],
            "cache": [_seconds(sides["streamed"]["again"])],
            "streamed_memory": [f"{sides['streamed']['peak_bytes'] / size:.2f}"],
        }
        for name, values in ours.items():
            aim = ("≤ 1.15", _met(-float(values[0]), -1.15)) if name == "memory" else ("", "")
            rows.append((asked[name][language], str(row["threads"]), *values, *[""] * (2 - len(values)), *aim))
    return _table(rows)


def _seconds(spent: dict[str, float]) -> str:
    return f"{spent['cpu']:.2f} s CPU, {spent['wall']:.2f} s wall"


def _met(found: float, aim: float) -> str:
    return "yes" if found >= aim else "no"


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


def mechanisms() -> str:
    """Return one row per registered mechanism that ships with the package."""
    rows = [
        ("mechanism", "equation", "linear in v", "rows sum to one", "scores", "streams", "state", "source"),
        ("---",) * 8,
    ]
    for kind, config in sorted(MixerConfig.registry.items()):
        if not config.__module__.startswith("glassformer."):
            continue
        traits, about = config.traits, inspect.getdoc(sys.modules[config.__module__]) or ""  # type: ignore[attr-defined]
        link = f"[`{kind}`](api/generated/{config.__module__}.rst)"
        scores = "bilinear" if traits.bilinear_scores else "yes" if traits.has_scores else "none"
        row = (link, _equation(about), traits.linear_in_value, "yes" if traits.rows_sum_to_one else "no", scores)
        state, source = _found(r"State: (.+?)\.(?=\s)", about), _found(r"Source: (.+?)\.?$", about)
        rows.append((*row, str(traits.streams), state, source))
    return _table(rows)


def fill(page: str, found: dict[str, str]) -> str:
    """Return a page with its tables replaced; a marker that is missing is an error."""
    for name, table in found.items():
        place = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        if not place.search(page):
            raise SystemExit(f"no <!-- {name} --> … <!-- /{name} --> to fill")
        page = place.sub(lambda match, table=table: f"{match[1]}\n{table}\n\n{match[2]}", page)
    return page


def _equation(about: str) -> str:
    """Return the first indented paragraph of a docstring, as code."""
    lines = about.split("\n")
    start = next(i for i, line in enumerate(lines) if line.startswith("    "))
    stop = next(i for i in range(start, len(lines)) if not lines[i].startswith("    "))
    return "<br>".join(f"`{re.sub(' {2,}', ' ', line.strip())}`" for line in lines[start:stop])


def _found(pattern: str, about: str) -> str:
    """Return what a pattern finds, on one line."""
    match = re.search(pattern, about, re.DOTALL)
    return " ".join(match[1].split()) if match else ""


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


def _table(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)


if __name__ == "__main__":
    for path, found in tables().items():
        path.write_text(fill(path.read_text(encoding="utf-8"), found), encoding="utf-8")
