"""From a run folder to a shipped model: `python -m glassformer.zoo NAME RUN`; findings again: without RUN.

Weights are stored in half precision; every figure on the card is measured on the stored weights.
"""

import ast
import dataclasses
import lzma
import platform
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from glassformer import checkpoints, files
from glassformer.analysis import run
from glassformer.analysis.heads import HeadScores, head_roles, head_scores
from glassformer.analysis.heads.roles import ROLES as HEAD_ROLES, role_masks
from glassformer.analysis.learning.measures import ROLES
from glassformer.analysis.losses import bits_per_byte, document_losses, icl_places, icl_score, loss_by_position
from glassformer.analysis.reports import circuits
from glassformer.checkpoints import run_steps
from glassformer.data import Batch, BigramModel, Data, Masked, NGramModel, TextConfig, TextData, Tokenizer, ZhEnConfig
from glassformer.data.grammar import SentencePair
from glassformer.data.grammar.translation import ZhEnData
from glassformer.data.text.sources import PROSE
from glassformer.files.packaged import shipped_folder
from glassformer.models import EncoderDecoder, ModelLike, Sampling, generate
from glassformer.training import TrainConfig, read_metrics
from glassformer.training.recipes import recipe
from glassformer.zoo.assignments import assignments, continued
from glassformer.zoo.beside import SHARED, figures_beside, notes_beside
from glassformer.zoo.card import ModelCard, card, write_card
from glassformer.zoo.held_out import HeldOut
from glassformer.zoo.masked import masked_figures
from glassformer.zoo.sentences import MeasuredFigures, known_words, sentences
from glassformer.zoo.shares import said_of_interval

FINDING_ROWS, FINDING_TOKENS = 512, 65_536
N_SAMPLES, SAMPLE_TOKENS, N_PAIRS, NGRAM, N_ICL_ROWS, N_ROLE_ROWS = 250, 240, 2000, 5, 1024, 128
SPAN, SPAN_REPEATS, N_SPANS = 60, 3, 64
BEGINNING_STEPS = 5000
CLASSICS = (
    "Data visualization empowers users to",
    "a fluffy blue creature roamed the verdant forest",
    "Please keep it in",
    "The American shrew mole",
    "One mole of carbon dioxide",
    "Take a biopsy of the mole",
)


def build(name: str, finished: Path, out: Path) -> ModelCard:
    """Write the shipped form of a finished run into `out / name` and return its card."""
    config = TrainConfig.from_json((finished / "config.json").read_text(encoding="utf-8"))
    trained = checkpoints.load(finished)
    folder = out / name
    checkpoints.save(trained, folder, dtype=torch.float16)
    files.write(folder / "metrics.jsonl", (finished / "metrics.jsonl").read_bytes())
    model = checkpoints.load(folder)
    last = read_metrics(finished)[-1]
    facts = run_steps.read_facts(run_steps.at(finished, last["step"]))
    found = measured(model, config, BESIDE.get(name))
    card = ModelCard(
        name=name,
        about=ABOUT[name],
        recipe=f"glassformer train {name}",
        parameters=sum(p.numel() for p in model.parameters()),
        max_len=model.config.max_len,
        trained_length=config.data.length,
        steps=last["step"],
        tokens=last["tokens"],
        seconds=last["seconds"],
        threads=facts["threads"],
        device=facts.get("device", "cpu"),
        dtype="float16",
        synthetic=config.data.synthetic(),
        **found._asdict(),
        versions={"torch": facts["torch"].split("+")[0], "python": facts.get("python", platform.python_version())},
    )
    write_card(card, folder)
    return card


def refresh(name: str, out: Path) -> ModelCard:
    """Measure a shipped model again, on the weights it ships with, and write its card; return the card."""
    model, config = checkpoints.load(out / name), recipe(name)
    told = measured(model, config, BESIDE.get(name))._asdict()
    found = dataclasses.replace(card(name), synthetic=config.data.synthetic(), **told)
    write_card(found, out / name)
    return found


class Measured(NamedTuple):
    """What a card says of a model as it stands: its fields of these names."""

    data: dict[str, Any]
    figures: dict[str, float]
    notes: tuple[str, ...]
    findings: tuple[str, ...]
    samples: tuple[str, ...]
    beside: dict[str, dict[str, float]]


def measured(model: ModelLike, config: TrainConfig, other: str | None = None) -> Measured:
    """Return what is measured of a model that a recipe trained, and of another shipped one beside it."""
    trained = config.data.build(model.tokenizer)
    measure = _translation if _translates(config) else masked_figures if _masks(config) else _language
    figures, notes, samples, rows = measure(model, config, trained)
    beside = {}
    if other is not None:
        own, theirs = _beside(model, checkpoints.load(shipped_folder(other)), config)
        figures, notes = figures | own, [*notes, *notes_beside(other)]
        beside = {other: {name: card(other).figures[name] for name in SHARED} | _rounded(theirs)}
    return Measured(trained.describe(), _rounded(figures), tuple(notes), findings(model, rows), tuple(samples), beside)


def _rounded(figures: dict[str, float]) -> dict[str, float]:
    return {name: value if isinstance(value, int) else round(value, 4) for name, value in figures.items()}


def _beside(model: ModelLike, other: ModelLike, config: TrainConfig) -> tuple[dict[str, float], dict[str, float]]:
    """Return the figures of two models that read the same text."""
    text = (config.evaluate or config.data).build(model.tokenizer)
    spans = repeated_spans(list(text.documents("heldout")), model.require_tokenizer().require("bos"))
    return figures_beside(model, other, spans, SPAN_REPEATS)


def findings(model: ModelLike, batches: list[Batch]) -> tuple[str, ...]:
    """Return what `circuits` says of a model, run on held-out rows."""
    found = circuits(model, *batches)
    rows = sum(len(batch.tokens) for batch in batches)
    return (
        *found.findings,
        f"by glassformer circuits, on {rows} held-out rows of up to {batches[0].tokens.shape[1]} tokens",
    )


BESIDE = {"hybrid-4l": "gpt-4l"}
ABOUT = {
    "attn-only-1l": "One attention layer, no MLP: bigrams and skip-trigrams, no induction heads.",
    "attn-only-2l": "Two attention layers, no MLP: the smallest model with induction heads.",
    "encoder-4l": "Four Llama-like layers that read Python both ways and fill in masked tokens.",
    "gpt-4l": "Four Llama-like layers (RMSNorm, RoPE, grouped keys, SwiGLU) that write Python.",
    "hybrid-4l": "Three layers of lightning attention and one of softmax that write Python, in the shape of gpt-4l.",
    "prose-4l": "Four Llama-like layers that read English: docstrings, comments, and sentences with a known answer.",
    "zh-en": "Encoder-decoder in the original post-norm wiring that translates simple Chinese sentences to English.",
}


def _translates(config: TrainConfig) -> bool:
    return isinstance(config.data, ZhEnConfig)


def _masks(config: TrainConfig) -> bool:
    return isinstance(config.data, Masked)


# figures, notes, samples, and held-out rows
_Told = tuple[dict[str, Any], list[str], list[str], list[Batch]]


def _language(model: ModelLike, config: TrainConfig, trained: Data) -> _Told:
    text_config = config.evaluate or config.data
    assert isinstance(text_config, TextConfig), "a language model is evaluated on text"
    text = text_config.build(model.tokenizer)
    assert isinstance(text, TextData), "held-out text is kept in memory"
    train = list(trained.documents("train"))
    held_out = HeldOut.beside(text.documents("heldout"), train)
    heldout, new = held_out.documents, held_out.counted
    new_text = held_out.text(text.tokenizer)
    n_bytes = len(new_text)
    of_all = document_losses(model, heldout, text_config.length)
    losses = of_all[new]
    bigram, ngram = BigramModel(train, text.vocab_size), NGramModel(train, text.vocab_size, NGRAM)
    counted = {n: torch.cat([m.loss(ids) for ids in heldout])[new] for n, m in (("bigram", bigram), ("ngram", ngram))}
    packed = lzma.compress(new_text, preset=9)
    rows = held_out.rows(text_config.length, N_ICL_ROWS, text_config.batch_size)
    n_rows = sum(len(batch.tokens) for batch in rows)
    by_position = loss_by_position(model, *rows)
    early, late = icl_places(by_position.size("pos"))
    figures: dict[str, Any] = {
        "heldout_loss": float(losses.mean()),
        "bits_per_byte": bits_per_byte(losses, n_bytes),
        "bigram_loss": float(counted["bigram"].mean()),
        "bigram_bits_per_byte": bits_per_byte(counted["bigram"], n_bytes),
        f"{NGRAM}-gram_loss": float(counted["ngram"].mean()),
        f"{NGRAM}-gram_bits_per_byte": bits_per_byte(counted["ngram"], n_bytes),
        "xz_bits_per_byte": 8 * len(packed) / n_bytes,
        "icl_score": icl_score(by_position),
    }
    if len(losses) < len(of_all):
        figures |= {
            "heldout_loss_with_overlap": float(of_all.mean()),
            "bits_per_byte_with_overlap": bits_per_byte(of_all, text.n_bytes["heldout"]),
        }
    roles = _roles(model, heldout, text_config.length)
    figures |= roles.figures
    notes = [
        held_out.said(),
        f"losses in nats per token over the other {len(losses):,} tokens of the {len(heldout)} held-out files "
        f"({n_bytes:,} bytes), read in windows of {text_config.length} that overlap by half",
        f"bigram (Witten-Bell) and {NGRAM}-gram (interpolated Kneser-Ney) fitted on the text trained on, same tokens; "
        "xz -9 on what they spell, concatenated",
        f"icl_score: mean loss of tokens {late[0]}-{late[-1]} less that of tokens {early[0]}-{early[-1]}, nats, those "
        f"in such runs aside; {n_rows} windows, each within one held-out file",
        *([f"with_overlap: the same over all {len(of_all):,} tokens"] if len(losses) < len(of_all) else []),
        *roles.notes,
    ]
    overlaps = [_said_of_overlap(part["overlap"]) for part in _described(trained) if "overlap" in part]
    shown = held_out.rows(
        text_config.length, min(FINDING_ROWS, FINDING_TOKENS // text_config.length), text_config.batch_size
    )
    # parts may share their text
    notes += dict.fromkeys(overlaps)
    templates = dict.fromkeys(name for part in _described(trained) for name in part.get("templates", ()))
    if templates:
        notes.append(known_words(templates, map(model.require_tokenizer().decode, train)))
    for template in templates:
        asked = sentences(model, template)
        figures, notes = figures | asked.figures, [*notes, *asked.notes]
    if any(source.startswith(PROSE) for source in text_config.sources):
        return figures, notes, [f"{prompt} -> {continued(model, prompt)}" for prompt in CLASSICS], shown
    samples = _samples(model)
    if any(layer.name == "mlp" for layer in model.sub_layers()):
        # attention alone writes no Python
        parsed = sum(map(_parses, samples))
        files = [sample for sample in samples if not sample.startswith("self.")]
        figures["samples_that_parse"] = parsed / len(samples)
        read = _beginnings(trained, model.require_tokenizer())
        as_read = sum(map(_parses, read))
        figures["training_text_that_parses"] = as_read / len(read)
        notes.append(
            f"samples_that_parse: share of {N_SAMPLES} samples of {SAMPLE_TOKENS} tokens (temperature 0.8, seed 0) "
            "that ast.parse accepts once the last top-level statement, which the end cuts off, is dropped; something "
            f"must be left; {said_of_interval(parsed, len(samples))}. training_text_that_parses: the same of "
            f"{len(read)} stretches of training text behind `<bos>`; {said_of_interval(as_read, len(read))}"
        )
        if 0 < len(files) < len(samples):
            in_files = sum(map(_parses, files))
            figures["samples_that_parse_beside_lists"] = in_files / len(files)
            notes.append(
                f"samples_that_parse_beside_lists: the same of the {len(files)} samples that do not begin with "
                "`self.`, as lists of constructors do, which are easy to parse; "
                + said_of_interval(in_files, len(files))
            )
        assigned = assignments(model, trained)
        figures, notes = figures | assigned.figures, [*notes, *assigned.notes]
    return figures, notes, samples[:2], shown


def _described(data: Data) -> list[dict[str, Any]]:
    """Return what data say of themselves, part by part."""
    told = data.describe()
    return told.get("parts", [told])


def _said_of_overlap(found: dict[str, Any]) -> str:
    return (
        f"training text shared {found['runs']:,} runs of {found['run']} tokens in {found['documents']:,} documents "
        f"with the {found['with']}; {found['tokens_cut']:,} tokens were cut, {found['left']} such runs are left"
    )


def _roles(model: ModelLike, documents: list[list[int]], length: int) -> MeasuredFigures:
    """Return each role's best head on repeated random tokens, and the same roles on held-out text as it stands."""
    rows = [ids[i : i + length] for ids in documents for i in range(0, len(ids) - length + 1, length)]
    ids = torch.tensor(rows[:N_ROLE_ROWS])
    drawn, found = head_scores(model), head_roles(run(model, ids, read=[head_roles]))
    spans = repeated_spans(documents, model.require_tokenizer().require("bos"))
    again = head_roles(run(model, spans, read=[head_roles]))
    even = even_attention(ids)
    figures: dict[str, float] = {}
    on_random, on_text = [], []
    for role, called in ROLES.items():
        (head, score), (best, there) = drawn.best(role), found.best(role)
        own = float(found.scores.select(role=role, head=head).values)
        figures |= {called: score, f"{called}_on_text": there}
        spoken = called.replace("_", " ")
        on_random.append(f"{spoken} {head} {score:.2f}")
        on_text.append(f"{spoken} {best} {there:.2f} ({head} {own:.2f}, even attention {even[role]:.2f})")
    notes = [
        "best head per role on repeated random tokens: " + ", ".join(on_random),
        f"the same on held-out text, at the repeats that occur there ({len(ids)} windows of {length} tokens, each "
        "within one file): "
        + ", ".join(on_text)
        + "; in brackets the head named before it, and attention spread evenly",
    ]
    (head, score), own = again.best("induction"), _own(again, drawn)
    figures["prefix_matching_on_repeated_text"] = score
    notes.append(
        f"prefix_matching_on_repeated_text: {len(spans)} spans of {SPAN} tokens of held-out text, {SPAN_REPEATS} times "
        f"over: {head} {score:.2f} (the head named on random tokens {own:.2f})"
    )
    return MeasuredFigures(figures, notes)


def _own(found: HeadScores, drawn: HeadScores) -> float:
    """Return how the best head on random tokens matches prefixes here."""
    head, _ = drawn.best("induction")
    return float(found.scores.select(role="induction", head=head).values)


def repeated_spans(documents: list[list[int]], bos: int | None) -> Int[Tensor, "row pos"]:
    """Return spans of text repeated, spread evenly over the documents; `bos` before each row."""
    spans = [ids[i : i + SPAN] for ids in documents for i in range(0, len(ids) - SPAN + 1, SPAN)]
    spans = spans[:: max(1, len(spans) // N_SPANS)][:N_SPANS]
    return torch.tensor([[*([] if bos is None else [bos]), *(span * SPAN_REPEATS)] for span in spans])


def even_attention(ids: Int[Tensor, "batch pos"]) -> dict[str, float]:
    """Return what attention that is spread evenly over the past would score in each role on these tokens."""
    masks = role_masks(ids)
    shares = masks.sum(-1) / torch.arange(1, ids.shape[1] + 1)
    return {role: float(share[mask.any(-1)].mean()) for role, share, mask in zip(HEAD_ROLES, shares, masks)}


def _samples(model: ModelLike) -> list[str]:
    tokenizer = model.require_tokenizer()
    prompts = [[tokenizer.require("bos")]] * N_SAMPLES
    made = generate(model, prompts, Sampling(temperature=0.8, seed=0), max_new_tokens=SAMPLE_TOKENS)
    return [tokenizer.decode(row) for row in made.tokens]


def _beginnings(data: Data, tokenizer: Tokenizer) -> list[str]:
    """Return what stands behind `<bos>` in rows of training text, as long as samples and as many of them."""
    found: list[str] = []
    for step in range(1, BEGINNING_STEPS):
        for row in data.batch(step).tokens.tolist():
            starts = [i for i, token in enumerate(row[:-SAMPLE_TOKENS]) if token == tokenizer.bos]
            found += [tokenizer.decode(row[i + 1 : i + 1 + SAMPLE_TOKENS]) for i in starts]
        if len(found) >= N_SAMPLES:
            break
    return found[:N_SAMPLES]


def _parses(sample: str) -> bool:
    lines = sample.splitlines()
    starts = [i for i, line in enumerate(lines) if line[:1].strip() and line[:1] not in ")]}#"]
    kept = "\n".join(lines[: starts[-1]]) if starts else ""
    try:
        return len(ast.parse(kept).body) > 0
    except (SyntaxError, ValueError):
        return False


def _translation(model: ModelLike, config: TrainConfig, data: Data) -> _Told:
    assert isinstance(model, EncoderDecoder) and isinstance(data, ZhEnData), "translations are made by these, of these"
    tokenizer = model.require_tokenizer()
    bos, eos = tokenizer.require("bos"), tokenizer.require("eos")
    pairs = list(data.pairs("heldout", N_PAIRS))
    right, examples = 0, []
    for i in range(0, len(pairs), 200):
        chunk = pairs[i : i + 200]
        made = generate(
            model, [[bos]] * len(chunk), Sampling(temperature=0.0), max_new_tokens=40,
            stop_ids=[eos], source=tokenizer.encode_batch([pair.zh for pair in chunk]),
        )  # fmt: skip
        for pair, row in zip(chunk, made.trimmed):
            found = tokenizer.decode(row)
            right += found == tokenizer.decode(tokenizer.encode(pair.en))
            examples.append(f"{pair.zh} -> {found}")
    losses, counts = [], []
    with torch.no_grad():
        for i in range(16):
            batch = data.batch(i, "heldout")
            losses.append(float(model.loss(batch)) * float(batch.weight.sum()))
            counts.append(float(batch.weight.sum()))
    english = [[*tokenizer.encode(pair.en), eos] for pair in pairs]
    train = [[*tokenizer.encode(pair.en), eos] for pair in data.pairs("train", 20_000)]
    bigram, ngram = BigramModel(train, data.vocab_size), NGramModel(train, data.vocab_size, NGRAM)
    figures = {
        "exact_match": right / len(pairs),
        "heldout_loss": sum(losses) / sum(counts),
        "bigram_loss": float(torch.cat([bigram.loss(ids) for ids in english]).mean()),
        f"{NGRAM}-gram_loss": float(torch.cat([ngram.loss(ids) for ids in english]).mean()),
    }
    notes = [
        f"exact_match: share of {len(pairs):,} sentences held out of training whose greedy translation is the "
        f"reference, token by token; {said_of_interval(right, len(pairs))}",
        _said_of_sentences(pairs, [pair for step in range(config.steps + 1) for pair in data.drawn(step, "train")]),
        f"losses in nats per English token; bigram and {NGRAM}-gram see no Chinese and were fitted on 20,000 training "
        "sentences",
    ]
    n = min(FINDING_ROWS // config.data.batch_size, FINDING_TOKENS // (config.data.batch_size * config.data.length))
    return figures, notes, examples[:12], [data.batch(i, "heldout") for i in range(n)]


def _said_of_sentences(heldout: list[SentencePair], drawn: list[SentencePair]) -> str:
    """Return in words what of held-out sentences training had."""
    chinese, english = ({getattr(pair, name) for pair in drawn} for name in ("zh", "key"))
    shared = sum(pair.key in english or pair.zh in chinese for pair in heldout)
    return (
        f"overlap: {shared} of these sentences are among the {len(english):,} different ones of training, in Chinese "
        "or in English without punctuation"
    )
