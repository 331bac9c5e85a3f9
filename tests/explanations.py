"""Explanation documents for tests of views: right in form, with patterns, sums and roles that agree with each other.

The numbers come from a seeded generator, not from a model; heads are given shapes a reader can recognise.
"""

import base64
import re
from typing import Any

import torch
from torch import Tensor

NASTY = ["</script>", "<!--", "<script>alert(1)</script>", "&amp;", '"', "\u2028", "\t", "", "<0xFF>", "\u202e"]
CODE = '''def mean(values):
    """Return the mean of some numbers."""
    total = 0.0
    for value in values:
        total = total + value
    return total / len(values)


def variance(values):
    """Return the variance of some numbers."""
    centre = mean(values)
    return mean([(value - centre) ** 2 for value in values])


class Running:
    """A mean that is updated one number at a time."""

    def __init__(self):
        self.count = 0
        self.total = 0.0

    def add(self, value):
        self.count += 1
        self.total += value
        return self
'''


def decoder_explanation(
    length: int, *, nasty: bool = False, signed: bool = False, layers: int = 4, heads: int = 8
) -> dict[str, Any]:
    """Return the document of a decoder's explanation over `length` tokens of Python, the first ones nasty if asked."""
    pieces = re.findall(r"\n| +\w+| ?\w+|[^\w\s]+| +", CODE * (1 + length // 150))
    texts = (["<bos>", *(NASTY if nasty else []), *pieces])[:length]
    tokens = _tokens(texts)
    patterns = [
        _pattern(_causal(length, layer, head, texts, signed and layer == 1), "", "attn", layer, head)
        for layer in range(layers)
        for head in range(heads)
    ]
    return _document("decoder", tokens, None, patterns, layers, heads)


def translation_explanation() -> dict[str, Any]:
    """Return the document of an encoder-decoder's explanation: 我吃了一个苹果 -> I ate an apple."""
    source = _tokens(["我", "吃", "了", "一", "个", "苹果"])
    target = _tokens(["<bos>", "I", " ate", " an", " apple"])
    aligned = [0, 1, 3, 5, 5]
    patterns = []
    for layer in range(2):
        for head in range(4):
            weights = _rows(torch.randn(6, 6, generator=_generator(layer, head)).mul(2), causal=False)
            patterns.append(_pattern(weights, "encoder", "attn", layer, head))
    for layer in range(2):
        for head in range(4):
            patterns.append(_pattern(_causal(5, layer, head, [t["text"] for t in target], False), "decoder", "attn", layer, head))
            scores = torch.randn(5, 6, generator=_generator(layer, head, 7))
            scores[torch.arange(5), torch.tensor(aligned)] += 3
            patterns.append(_pattern(_rows(scores, causal=False), "decoder", "cross", layer, head))
    document = _document("encoder_decoder", target, source, patterns, 2, 4)
    outputs = ["I", " ate", " an", " apple", "<eos>"]
    steps = [
        {"index": i, "input": t["text"], "output": o, "probability": 0.99 - 0.07 * i}
        for i, (t, o) in enumerate(zip(target, outputs))
    ]
    return document | {
        "text": "我吃了一个苹果", "translation": {"text": "I ate an apple", "generated": True, "steps": steps}
    }


def _generator(*key: int) -> torch.Generator:
    return torch.Generator().manual_seed(hash(key) % 2**31)


def _tokens(texts: list[str]) -> list[dict[str, Any]]:
    return [{"index": i, "id": 7 + 13 * i % 997, "text": text} for i, text in enumerate(texts)]


def _rows(scores: Tensor, causal: bool) -> Tensor:
    if causal:
        scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), float("-inf"))
    return scores.softmax(-1)


def _causal(length: int, layer: int, head: int, texts: list[str], signed: bool) -> Tensor:
    """Return a pattern of one of five kinds: previous token, first token, induction, recent, diffuse."""
    scores = torch.randn(length, length, generator=_generator(length, layer, head))
    here = torch.arange(length)
    kind = (head + 2 * layer) % 5
    if kind == 0:
        scores[here[1:], here[1:] - 1] += 7
    elif kind == 1:
        scores[:, 0] += 6
    elif kind == 2:
        same = torch.tensor([[k > 0 and texts[k - 1] == texts[q] for k in range(length)] for q in range(length)])
        scores = scores + 6 * same
        scores[:, 0] += 4
    elif kind == 3:
        scores = scores - 0.3 * (here[:, None] - here).abs()
    weights = _rows(scores, causal=True)
    if signed:
        weights = weights - 0.8 * _rows(torch.randn(length, length, generator=_generator(layer, head)) * 2, causal=True)
    return weights


def _pattern(weights: Tensor, stack: str, part: str, layer: int, head: int) -> dict[str, Any]:
    rows, columns = weights.shape
    lower = part == "attn" and stack != "encoder"
    signed = bool((weights < 0).any())
    scale = float(weights.abs().max())
    whole = (weights / scale * 127 + 128 if signed else weights / scale * 255).round().to(torch.uint8)
    kept = whole[torch.ones_like(whole, dtype=torch.bool).tril()] if lower else whole.flatten()
    prefix = "enc " if stack == "encoder" else ""
    return {
        "label": f"{prefix}L{layer}{'X' if part == 'cross' else 'H'}{head}",
        "stack": stack, "part": part, "layer": layer, "head": head,
        "query": "source_tokens" if stack == "encoder" else "tokens",
        "key": "tokens" if lower else "source_tokens",
        "rows": rows, "columns": columns, "signed": signed, "scale": scale,
        "layout": "lower" if lower else "full",
        "data": base64.b64encode(bytes(kept.tolist())).decode(),
        "weights": weights,
    }  # fmt: skip


def _document(
    kind: str, tokens: list[Any], source: list[Any] | None, patterns: list[dict[str, Any]], layers: int, heads: int
) -> dict[str, Any]:
    position = len(tokens) - 1
    words = [" self", " value", "\n", " total", " return", "(", " the", " in", " 0", " numbers"]
    logits = torch.linspace(7.2, 1.0, len(words))
    probabilities = (logits.softmax(0) * 0.93).tolist()
    candidates = [
        {"id": 100 + i, "text": w, "logit": x, "probability": p}
        for i, (w, x, p) in enumerate(zip(words, logits.tolist(), probabilities))
    ]
    answer = candidates[0] | {"rank": 1}
    components = _components(patterns, layers, answer["logit"])
    by_label = {c["label"]: c["contribution"] for c in components}
    rows = [_head(p, by_label.get(p["label"]), tokens) for p in patterns]
    document = {
        "format": "glassformer.explanation", "version": 1,
        "model": {
            "name": "a-model", "kind": kind, "parameters": 4_194_304, "n_layers": layers, "n_heads": heads, "d_model": 256,
            "vocab_size": 4096, "max_len": 256, "mechanisms": ["softmax"],
        },
        "text": "".join(t["text"] for t in tokens[1:]), "tokens": tokens, "source_tokens": source, "position": position,
        "answer": answer, "against": None, "pipeline": _pipeline(tokens, source, layers),
        "next_token": {"entropy_bits": 2.31, "candidates": candidates}, "sampling": _sampling(candidates),
        "lens": _lens(candidates, layers),
        "attribution": {
            "target": "logit", "total": answer["logit"], "sum": sum(by_label.values()), "components": components,
        },
        "heads": rows, "top_heads": _top_heads(patterns, by_label, position), "translation": None, "notes": [],
        "patterns": [{k: v for k, v in p.items() if k != "weights"} for p in patterns],
    }  # fmt: skip
    return document


def _components(patterns: list[dict[str, Any]], layers: int, total: float) -> list[dict[str, Any]]:
    def part(label: str, kind: str, layer: int | None = None, head: int | None = None) -> dict[str, Any]:
        return {"label": label, "kind": kind, "layer": layer, "head": head}

    parts = [part("embed", "token")]
    for layer in range(layers):
        for p in patterns:
            if p["layer"] == layer and p["stack"] != "encoder":
                parts.append(part(p["label"], "cross_head" if p["part"] == "cross" else "head", layer, p["head"]))
        parts.append(part(f"mlp {layer}", "mlp", layer))
    parts.append(part("final bias", "final_bias"))
    values = torch.randn(len(parts), generator=_generator(len(parts))).pow(3) * 0.4
    values += (total - values.sum()) / len(parts)
    return [p | {"contribution": v} for p, v in zip(parts, values.tolist())]


def _head(pattern: dict[str, Any], contribution: float | None, tokens: list[Any]) -> dict[str, Any]:
    roles = []
    if pattern["part"] == "attn" and pattern["stack"] != "encoder":
        weights, n = pattern["weights"], pattern["rows"]
        texts = [t["text"] for t in tokens]
        same = torch.tensor([[texts[q] == texts[k] and k < q for k in range(n)] for q in range(n)])
        masks = {
            "previous_token": torch.ones(n, n, dtype=torch.bool).triu(-1) & torch.ones(n, n, dtype=torch.bool).tril(-1),
            "induction": same.roll(1, dims=1) & torch.ones(n, n, dtype=torch.bool).tril(),
            "duplicate_token": same, "first_token": torch.arange(n).expand(n, n) == 0,
            "current_token": torch.eye(n, dtype=torch.bool),
        }  # fmt: skip
        for role, mask in masks.items():
            defined = mask.any(-1)
            score = float((weights * mask).sum(-1)[defined].mean()) if defined.any() else None
            roles.append({"role": role, "score": score, "positions": int(defined.sum())})
    kept = {k: pattern[k] for k in ("label", "stack", "part", "layer", "head")}
    reading = "signed" if pattern["signed"] else "mass"
    return kept | {"mechanism": "softmax", "contribution": contribution, "reading": reading, "roles": roles}


def _top_heads(patterns: list[dict[str, Any]], by_label: dict[str, float], position: int) -> list[dict[str, Any]]:
    inside = [p for p in patterns if p["label"] in by_label]
    top = sorted(inside, key=lambda p: -abs(by_label[p["label"]]))[:4]
    entries = []
    for i, p in enumerate(top):
        row, contribution = p["weights"][position], by_label[p["label"]]
        share = row.abs() / row.abs().sum()
        noise = torch.randn(len(row), generator=_generator(i)) * share
        sources = noise - noise.sum() * share + contribution * share
        entries.append({
            "label": p["label"], "because": "induction" if i == 1 else "contribution", "contribution": contribution,
            "weights": share.tolist(), "basis": "norm" if p["signed"] else "pattern", "sources": sources.tolist(),
            "key": p["key"],
        })  # fmt: skip
    return entries


def _pipeline(tokens: list[Any], source: list[Any] | None, layers: int) -> list[dict[str, Any]]:
    def stage(stage: str, name: str, shape: dict[str, int], note: str = "", **numbers: float) -> dict[str, Any]:
        return {"stage": stage, "name": name, "shape": shape, "numbers": numbers, "note": note}

    n = len(tokens)
    stages = [
        stage("text", "Text", {"character": 4 * n}, "What was given."),
        stage("tokens", "Tokens", {"pos": n}, "The text, cut into known pieces."),
        stage("ids", "Token ids", {"pos": n}, "The number of each piece in the vocabulary."),
        stage("embed", "Embedding", {"pos": n, "d_model": 256}, "A vector per token.", norm=1.93),
    ]
    if source:
        stages += [
            stage("encoder", f"Encoder block {i}", {"pos": len(source), "d_model": 256}, norm=3.0 + i)
            for i in range(layers)
        ]
    stages += [
        stage("block", f"Block {i}", {"pos": n, "d_model": 256}, "", **{"attention write": 2.1 + i, "MLP write": 3.4, "stream": 4.2 + 3 * i})
        for i in range(layers)
    ]
    return [
        *stages,
        stage("final", "Final norm", {"pos": n, "d_model": 256}, "Brings the stream to unit scale.", norm=16.0),
        stage("logits", "Logits", {"pos": n, "vocab": 4096}, "One score per token of the vocabulary.", largest=7.2),
        stage("probabilities", "Probabilities", {"vocab": 4096}, "Softmax of the logits.", largest=0.48),
    ]  # fmt: skip


def _sampling(candidates: list[dict[str, Any]]) -> dict[str, Any]:
    def step(name: str, setting: float | None, kept: int, sharpen: float) -> dict[str, Any]:
        weights = [c["probability"] ** sharpen if i < kept else 0.0 for i, c in enumerate(candidates)]
        shown = [c | {"probability": w / sum(weights)} for c, w in zip(candidates, weights)]
        return {"name": name, "setting": setting, "kept": kept, "entropy_bits": 2.4, "candidates": shown[:8]}

    steps = [step("logits", None, 4096, 1.0), step("temperature", 0.8, 4096, 1.25), step("top_k", 5, 5, 1.25), step("top_p", 0.9, 3, 1.25)]
    settings = {"temperature": 0.8, "top_k": 5, "top_p": 0.9, "min_p": None, "repetition_penalty": None, "seed": 0}
    return {"settings": settings, "steps": steps, "draw": steps[-1]["candidates"][1]}


def _lens(candidates: list[dict[str, Any]], layers: int) -> list[dict[str, Any]]:
    rows = []
    for i in range(layers + 1):
        turn = layers - i
        order = candidates[turn:] + candidates[:turn]
        shown = [o | {"probability": c["probability"] * (0.2 + 0.8 * i / layers)} for o, c in zip(order, candidates)]
        place = next(k for k, c in enumerate(shown) if c["id"] == candidates[0]["id"])
        rows.append({
            "label": "embed" if i == 0 else f"block {i - 1}", "layer": None if i == 0 else i - 1, "candidates": shown,
            "answer": shown[place] | {"rank": place + 1}, "against": None, "entropy_bits": 9.0 - 6.7 * i / layers,
            "kl_bits": 5.5 * turn / layers,
        })  # fmt: skip
    return rows
