"""Draw a pattern of every mechanism on one sentence, from models trained here (`make patterns`), for its page.

    python docs/make_patterns.py [KIND …]       all that ship with the package, or some of them

Every model is the same but for its mechanism: two blocks of width 64 as the mechanism's paper builds them, rotary
positions, an MLP, the tokens of `gpt-4l`, a few hundred steps on the standard library. Mechanisms that need a text
whole learn masked tokens in an encoder, one in seven, and take as many more steps. A model is kept nowhere; what is
drawn and its losses are written to `docs/images/mechanisms`.
"""

import io
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

import glassformer as gf
from glassformer.attention import MixerConfig, Rope
from glassformer.data import TextConfig
from glassformer.errors import NoPattern, UnknownSite
from glassformer.figures.drawing import Panel, draw
from glassformer.labelled import Labelled
from glassformer.models import DecoderConfig, Encoder, EncoderConfig, Mlp, published_block

FOLDER = Path(__file__).resolve().parent / "images" / "mechanisms"
FOUND = FOLDER / "patterns.json"
SENTENCE = "# the first item of the list is the one that the next call returns, and the last item"
LENGTH, BATCH, STEPS, WIDTH, LAYERS, HEADS = 128, 8, 400, 64, 2, 4
MASKED = 7  # one token in so many


def main(kinds: list[str]) -> None:
    known = json.loads(FOUND.read_text(encoding="utf-8")) if FOUND.exists() else {}
    tokenizer = gf.load("gpt-4l").tokenizer
    data = TextConfig(batch_size=BATCH, length=LENGTH).build(tokenizer)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for kind in kinds or sorted(mechanisms()):
        begun = time.perf_counter()
        known[kind] = shown(mechanisms()[kind], data, tokenizer)
        print(f"{kind}: loss {known[kind]['loss']}, {time.perf_counter() - begun:.0f} s", flush=True)
        FOUND.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def mechanisms() -> dict[str, type[MixerConfig]]:
    """Return what ships with the package, by kind."""
    found = MixerConfig.registry.items()
    return {str(kind): config for kind, config in found if config.__module__.startswith("glassformer.")}  # type: ignore[misc]


def shown(config: type[MixerConfig], data: Any, tokenizer: Any) -> dict[str, Any]:
    """Train a model of a mechanism, draw one of its heads, and return what the picture is of."""
    model = trained(config(), data, tokenizer)
    with torch.no_grad():
        losses = [float(loss(model, data.batch(i, "heldout"), i)) for i in range(8)]
    steps = STEPS * (MASKED if config.bidirectional else 1)
    facts: dict[str, Any] = {"loss": round(sum(losses) / len(losses), 3), "steps": steps, "sentence": SENTENCE}
    facts |= {"masked": True} if config.bidirectional else {}
    facts["parameters"] = sum(p.numel() for p in model.parameters())
    try:
        run = gf.run(model, SENTENCE, read="pattern")
    except (NoPattern, UnknownSite):
        return facts
    patterns = [run["pattern", layer].values[0] for layer in range(LAYERS)]
    layer, head, share = chosen(patterns)
    value = patterns[layer][..., head, :, :]
    words = [f"{i}:{token}" for i, token in enumerate(run.tokens)]
    axes = {"query": words, "key": words}
    maps = value[None] if value.ndim == 2 else value
    names = [""] if len(maps) == 1 else [f"value {i + 1}" for i in range(len(maps))]
    figure = draw([Panel(name, Labelled(one, ("query", "key"), axes)) for name, one in zip(names, maps)])
    figure.set_size_inches(4.6 * len(maps), 3.9)
    picture = io.BytesIO()
    figure.savefig(picture, dpi=80)
    # few colours are a third of the bytes
    Image.open(picture).convert("RGB").quantize(96).save(FOLDER / f"{config.kind}.png", optimize=True)
    return facts | {"head": f"L{layer}H{head}", "share": round(share, 3)}


def trained(mixer: MixerConfig, data: Any, tokenizer: Any) -> Any:
    blocks = tuple(
        published_block(mixer, i, n_heads=HEADS, d_head=WIDTH // HEADS, positions=Rope(), mlp=Mlp(4 * WIDTH))
        for i in range(LAYERS)
    )
    kind = EncoderConfig if mixer.bidirectional else DecoderConfig
    model = kind(tokenizer.vocab_size, WIDTH, blocks, max_len=LENGTH).build(0)
    model.tokenizer = tokenizer
    steps = STEPS * (MASKED if mixer.bidirectional else 1)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 3e-3, total_steps=steps, pct_start=0.1)
    for step in range(steps):
        optimiser.zero_grad()
        loss(model, data.batch(step), step).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
    return model.eval()


def loss(model: Any, batch: Any, seed: int) -> Tensor:
    """Return the loss on next tokens, or that of an encoder on one token in seven, which it reads as `<bos>`."""
    if not isinstance(model, Encoder):
        return model.loss(batch)
    tokens = batch.tokens
    masked = torch.rand(tokens.shape, generator=torch.Generator().manual_seed(seed)) < 1 / MASKED
    logits = model(tokens.masked_fill(masked, model.tokenizer.bos), documents=batch.documents)
    return torch.nn.functional.cross_entropy(logits[masked], tokens[masked])


def chosen(patterns: list[Tensor]) -> tuple[int, int, float]:
    """Return the head that has most of its weights' sizes neither on the first token nor on the query's own.

    A rule, so that nobody picks: where a head rests and what it looks at by itself tell little of its mechanism.
    """
    best = (0, 0, -1.0)
    for layer, pattern in enumerate(patterns):
        sizes = pattern.abs() if pattern.ndim == 3 else pattern.abs().mean(0)
        n = sizes.shape[-1]
        own = torch.eye(n, dtype=torch.bool)
        own[:, 0] = True
        rows = sizes[:, 2:]
        shares = rows.masked_fill(own[2:], 0.0).sum(-1) / rows.sum(-1).clamp_min(1e-9)
        for head, share in enumerate(shares.mean(-1).tolist()):
            best = max(best, (layer, head, share), key=lambda found: found[2])
    return best


if __name__ == "__main__":
    main(sys.argv[1:])
