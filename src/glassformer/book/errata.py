"""Errata: what articles on the transformer say and is not so, each with the numbers that decide it.

A function for each sentence. It returns numbers by name, computed when it is called: of the sentence as it is printed,
and of what is so. Sizes are small and draws have seeds, so that all of them together take a few seconds.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

import glassformer as gf
from glassformer import weights
from glassformer.analysis.behaviour import short_circuit_edits
from glassformer.attention import Lsh, Tied
from glassformer.models import DecoderConfig, block, preset
from glassformer.models.accounting import count_parameters
from glassformer.study import shipped

FLUFFY = "a fluffy blue creature roamed the verdant forest"
APPLE = "我吃了一个苹果"
PRINTED_VOCABULARY, PRINTED_PARAMETERS, GPT3_WIDTH = 50_527, 617_558_016, 12_288
PRINTED_WEIGHTS = (0.2, 0.1, 0.5, 0.3)
PADDED, PAD, WORDS = (0, 2, 4, 8, 1, 2, 2), 2, 5

Numbers = dict[str, int | float]


def pieces_of_x() -> Numbers:
    """How much of what the heads of `attn-only-2l` read lies outside of "their" piece of x.

    Of each head of the first layer: the share of the squared entries of W_Q, W_K and W_V in rows of other pieces than
    the head's, were x cut into as many pieces as there are heads. It would be 0 if heads were given pieces.
    """
    heads = weights.of(_model("attn-only-2l"))
    shares = []
    for h in range(8):
        matrices = torch.cat([heads[f"L0H{h}"].Q[0], heads[f"L0H{h}"].K[0], heads[f"L0H{h}"].V[0]], -1).square()
        piece = matrices.chunk(8)[h]
        shares.append(float(1 - piece.sum() / matrices.sum()))
    found: Numbers = {
        "least": min(shares),
        "most": max(shares),
        "if all rows weigh the same": 7 / 8,
        "if x were cut": 0.0,
    }
    return found | {"numbers of x": heads["L0H0"].Q.shape[-2], "numbers of a query": heads["L0H0"].Q.shape[-1]}


def size_of_vocabulary() -> Numbers:
    """What number of tokens times the width of GPT-3 gives the parameters printed beside it."""
    right = preset("gpt3-175b").vocab_size
    return {
        "printed tokens": PRINTED_VOCABULARY,
        "their product": PRINTED_VOCABULARY * GPT3_WIDTH,
        "printed product": PRINTED_PARAMETERS,
        "tokens": right,
        "product": right * GPT3_WIDTH,
    }


def masked_triangle() -> Numbers:
    """The weights above and below the diagonal, with queries as rows and with keys as rows; all heads of a text."""
    pattern = gf.run(_model("attn-only-2l"), FLUFFY, read="pattern")["blocks.0.attn.pattern"].values
    return {
        f"{side} the diagonal, {rows} as rows": float(cut(turned, one).sum())
        for rows, turned in (("queries", pattern), ("keys", pattern.mT))
        for side, cut, one in (("above", torch.triu, 1), ("below", torch.tril, -1))
    }


def who_attends() -> Numbers:
    """The largest weight in any head of `prose-4l` from "fluffy" to "creature", and from "creature" to "fluffy"."""
    run = gf.run(_model("prose-4l"), FLUFFY, read="blocks.*.attn.pattern")
    patterns = run.layers("pattern").values[:, 0]
    fluffy, creature = (_end_of(run.tokens, word) for word in ("fluffy", "creature"))
    between = {"fluffy to creature": (fluffy, creature), "creature to fluffy": (creature, fluffy)}
    return {name: float(patterns[..., query, key].max()) for name, (query, key) in between.items()}


def sum_of_weights() -> Numbers:
    """What the printed weights of a mixture sum to, and those of a head that reads the sentence they are printed for.

    The head is the first of the encoder of `zh-en`, at 个.
    """
    run = gf.run(_model("zh-en"), APPLE, read="encoder.blocks.0.attn.pattern")
    row = run["encoder.blocks.0.attn.pattern"].values[0, 0, APPLE.index("个")]
    return {"printed": math.fsum(PRINTED_WEIGHTS), "of a head": float(row.double().sum())}


def share_of_queries_keys_values() -> Numbers:
    """What share of a layer W_Q, W_K and W_V are, with and without W_O, and of all of GPT-3."""
    config = preset("gpt3-175b")
    found, whole = count_parameters(config), sum(count_parameters(config).values())
    three = found["query"] + found["key"] + found["value"]
    attention = three + found["output"]
    layer = attention + found["mlp in"] + found["mlp out"]
    return {
        "query, key and value of a layer": three / layer,
        "with output": attention / layer,
        "query, key and value of the model": three / whole,
    }


def meaning_of_true() -> Numbers:
    """How far calls of PyTorch are from attention in which nobody sees what is later, by what True means in the mask.

    The same mask of booleans, True on and below the diagonal, and its opposite.
    """
    q, k, v = _normal(3, 5, 4).unbind()
    visible = torch.ones(5, 5, dtype=torch.bool).tril()
    right = (q @ k.mT / 2).masked_fill(~visible, -math.inf).softmax(-1) @ v
    layer = torch.nn.MultiheadAttention(4, 1, bias=False).double()
    eye = torch.eye(4, dtype=torch.float64)

    def gap(found: Tensor) -> float:
        # a row that sees nothing is no number
        return float((found - right).nan_to_num(math.inf).abs().max())

    with torch.no_grad():
        layer.in_proj_weight.copy_(eye.repeat(3, 1))
        layer.out_proj.weight.copy_(eye)
        return {
            "scaled_dot_product_attention, True is seen": gap(F.scaled_dot_product_attention(q, k, v, visible)),
            "scaled_dot_product_attention, True is hidden": gap(F.scaled_dot_product_attention(q, k, v, ~visible)),
            "MultiheadAttention, True is seen": gap(layer(q, k, v, attn_mask=visible)[0]),
            "MultiheadAttention, True is hidden": gap(layer(q, k, v, attn_mask=~visible)[0]),
        }


def shared_matrix() -> Numbers:
    """How much the first token's query, and its mixed values, change by the second token, if all share one matrix.

    The size of the derivative.
    """
    x, matrix = (_normal(2, 4, 4) / 2).unbind()

    def mixed(x: Tensor) -> Tensor:
        return ((x @ matrix) @ (x @ matrix).mT / 2).softmax(-1) @ (x @ matrix)

    of = {"query": lambda x: x @ matrix, "mixed values": mixed}
    return {name: float(torch.func.jacrev(function)(x)[0, :, 1].norm()) for name, function in of.items()}


def entropy_of_linear() -> Numbers:
    """Mean entropy in nats of rows of softmax and of linear attention, of the same random queries and keys."""
    q, k = _normal(2, 64, 32, 16).unbind()
    softmax = (q @ k.mT / 4).softmax(-1)
    linear = (F.elu(q) + 1) @ (F.elu(k) + 1).mT
    return {
        "softmax": float(entropy(softmax).mean()),
        "linear": float(entropy(linear).mean()),
        "all alike": math.log(32),
    }


def largest_on_the_diagonal() -> Numbers:
    """The share of rows of x x' whose largest entry is on the diagonal: token vectors of `prose-4l`, and of length 1.

    Also of the two vectors (1, 0) and (2, 0), and whether the largest entry of all is on the diagonal.
    """
    vectors = _model("prose-4l").embed.weight.detach().double()
    example = torch.tensor([[1.0, 0.0], [2.0, 0.0]])
    products = vectors @ vectors.mT
    return {
        "as they are": on_diagonal(products),
        "of length 1": on_diagonal(F.normalize(vectors) @ F.normalize(vectors).mT),
        "(1, 0) and (2, 0)": on_diagonal(example @ example.mT),
        "largest of all": float(products.max() == products.diagonal().max()),
    }


def index_of_log_softmax() -> Numbers:
    """Log-probabilities of the scores 1, 2, 3 by the formula as printed, whose sum has no j, and by the right one.

    The spread is the largest less the smallest; the right one is compared with that of PyTorch.
    """
    x = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    printed = x - torch.stack([(3 * one.exp()).log() for one in x])
    summed = x - x.exp().sum().log()
    return {
        "spread as printed": float(printed.max() - printed.min()),
        "each as printed": float(printed[0]),
        "spread": float(summed.max() - summed.min()),
        "from torch": float((summed - x.log_softmax(-1)).abs().max()),
    }


def theorem_of_pola() -> Numbers:
    """Entropy of weights .1 and .2 made to sum to one, before and after g; and how often g lowers it in random rows.

    All of these g have positive first and second derivatives where weights are positive; two of them have g(0) > 0.
    """
    pair = torch.tensor([0.1, 0.2], dtype=torch.float64)
    # of rows of positive numbers
    rows = _normal(2000, 8).abs()
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "e^x": torch.exp,
        "x^2 + 1": lambda x: x.square() + 1,
        "x^2": torch.square,
        "e^x - 1": torch.expm1,
        "x^2 + x": lambda x: x.square() + x,
    }
    lowered = {g: float((entropy(f(rows)) < entropy(rows)).double().mean()) for g, f in functions.items()}
    return {"before": float(entropy(pair)), "after e^x": float(entropy(pair.exp()))} | lowered


def later_tokens_and_hashes() -> Numbers:
    """By how much other tokens from place 60 on change what a layer says before it, by form of hashed attention."""
    changed = {}
    ids = torch.randint(64, (1, 96), generator=torch.Generator().manual_seed(0))
    other = torch.cat([ids[:, :60], (ids[:, 60:] + 1) % 64], 1)
    forms = {"as published": Lsh(8, 8, 2, "library"), "chunks within buckets": Lsh(8, 8, 2)}
    for name, form in forms.items():
        layer = block(form, n_heads=2, projection=Tied(key="query"))
        model = DecoderConfig(64, 32, (layer,), max_len=96).build().double().eval()
        with torch.no_grad():
            before, after = (gf.run(model, one, read="attn.z")["blocks.0.attn.z"].values for one in (ids, other))
        changed[name] = float((before - after)[:, :, :60].abs().max() / before.abs().max())
    return changed


def word_or_padding() -> Numbers:
    """How many places of 0 2 4 8 1 2 2 the rule `ids != 2` hides, how many are padding, and the first it hides."""
    hidden = torch.tensor(PADDED) == PAD
    return {"hidden": int(hidden.sum()), "padding": len(PADDED) - WORDS, "first": int(hidden.nonzero()[0])}


def memory_of_short_circuits() -> Numbers:
    """Bytes that a model keeps, with and without its last layers' attention short-circuited, and what it still recites.

    Bytes are those of the weights and the state of `gpt-4l` for one text. What is recited is a record: the mean over
    seeds of the study `memorisation`, of sequences of random tokens.
    """
    model = _model("gpt-4l")
    ids = torch.tensor([model.tokenizer.encode(FLUFFY)])
    found: Numbers = {}
    for name, edits in (("whole", []), ("short-circuited", short_circuit_edits(model, [2, 3]))):
        with torch.no_grad():
            _, state = model(ids, state=model.begin(1), tape=gf.Tape(model, edit=edits))
        found[f"bytes, {name}"] = sum(map(bytes_of, model.parameters())) + bytes_of(state)
    record = shipped("memorisation")
    assert record is not None, "its report ships"
    claims = {one["name"]: one["mean"] for one in record["claims"]}
    return found | {"recited without the last two": claims["tokens-needs-last-two"]}


def entropy(weights: Float[Tensor, "*row key"]) -> Float[Tensor, "*row"]:
    """The entropy in nats of weights that are first divided by their sum."""
    return torch.special.entr(weights / weights.sum(-1, keepdim=True)).sum(-1)


def on_diagonal(products: Float[Tensor, "row column"]) -> float:
    """The share of rows whose largest entry is on the diagonal."""
    return float((products.diagonal() >= products.amax(-1) * (1 - 1e-12)).double().mean())


def bytes_of(held: Any) -> int:
    """The bytes of all tensors in a nest of tuples."""
    if isinstance(held, Tensor):
        return held.numel() * held.element_size()
    return sum(map(bytes_of, held)) if isinstance(held, tuple | list) else 0


def _model(name: str) -> Any:
    return gf.load(name)


def _normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def _end_of(tokens: list[str], word: str) -> int:
    """Return the place of a word's last token."""
    return next(i for i in range(len(tokens)) if "".join(tokens[: i + 1]).endswith(word))
