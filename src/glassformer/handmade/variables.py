"""A model whose variables are known: one it uses, one it only stores, and one that is used elsewhere than it lies."""

import torch
from torch import Tensor

from glassformer.config import require
from glassformer.data.pairs import Counterfactuals
from glassformer.handmade.assemble import HeadMatrices, assemble, layout
from glassformer.models import Decoder
from glassformer.numerics import decompositions

VARIABLES = ("first", "second", "third")


def variables_model(values: int = 2, *, beta: float = 60.0, c: float = 4.0, gain: float = 3.0) -> Decoder:
    """Build the model that answers `<bos> a1 b0 c1 ?` with the pair of its first two words, `a1b0`.

    The stream: token (V) | position (5) | and blocks of m coordinates, one per value: first | second | third | stored |
    dormant. At `?`, L0H0 copies the first word into `stored`, L0H1 the second into `second`, L0H2 the third into
    `third`; L1H0 copies the first word into `first`. The logit of a pair is c times its first word's coordinate of
    `first` and its second's of `second`, and `gain` c times its first's of `dormant`, in which nothing is ever written.

    Known in closed form, up to e^-beta, for the stream behind block 0 at `?`: the second word is what lies in `second`,
    and taking that subspace of m - 1 dimensions (differences of coordinates) from another prompt gives the logits of
    the base with the other's second word. The third word can be read in `third` and is used by nothing. The first can
    be read in `stored`, which nothing reads either: taking `stored` or `dormant` from another prompt changes nothing,
    taking the sums of their coordinates (each over the root of two) adds `gain` c / 2 to the logits of the other's
    first word and takes as much from the base's: an illusion, since the answer comes by L1H0.

    Args:
        values: m, words at each of the three places.
        beta: How sharply heads look.
        c: Size of the logits.
        gain: Weight of the dormant coordinates.

    Source: Makelov et al. 2023, "Is This the Subspace You Are Looking for?" (2311.17030), section 3 (the illusion).
    """
    require(values >= 2, f"variables_model: a variable has two values or more, found values={values}.")
    words = [f"{letter}{i}" for letter in "abc" for i in range(values)]
    symbols = ["<bos>", *words, "?"]
    vocab, length, m = len(symbols), 5, values
    place = layout(token=vocab, position=length, first=m, second=m, third=m, stored=m, dormant=m)
    d_model, asks = place["dormant"].stop, vocab - 1
    embed = torch.zeros(vocab, d_model, dtype=torch.float64)
    embed[:, place["token"]] = torch.eye(vocab, dtype=torch.float64)
    positions = torch.zeros(length, d_model, dtype=torch.float64)
    positions[:, place["position"]] = torch.eye(length, dtype=torch.float64)

    def copies(word: int, write: str) -> HeadMatrices:
        head = HeadMatrices.zero(d_model, 1, m)
        head.query[asks, 0] = beta
        head.key[place["position"].start + 1 + word, 0] = 1.0
        head.value[1 + word * m : 1 + (word + 1) * m] = torch.eye(m, dtype=torch.float64)
        head.output[:, place[write]] = torch.eye(m, dtype=torch.float64)
        return head

    unembed = torch.zeros(m, m, d_model, dtype=torch.float64)
    for i in range(m):
        unembed[i, :, place["first"].start + i] = c
        unembed[i, :, place["dormant"].start + i] = gain * c
        unembed[:, i, place["second"].start + i] = c
    heads = [[copies(0, "stored"), copies(1, "second"), copies(2, "third")], [copies(0, "first")]]
    return assemble(
        embed, unembed.flatten(0, 1), heads, symbols=symbols, outputs=[f"a{i}b{j}" for i in range(m) for j in range(m)],
        max_len=length, positions=positions,
    )  # fmt: skip


def variable_directions(model: Decoder, *blocks: str) -> Tensor:
    """Return an orthonormal basis of what a variable takes in `variables_model`, m - 1 rows of d_model entries.

    Args:
        model: The model.
        blocks: Names of blocks; of several, the directions are sums over them.
    """
    m = round(model.config.n_outputs**0.5)
    place = layout(token=3 * m + 2, position=5, first=m, second=m, third=m, stored=m, dormant=m)
    # rows that are orthogonal to each other and to the mean
    basis = decompositions.qr(torch.eye(m, dtype=torch.float64)[:, :-1] - 1 / m)[0].mT
    found = torch.zeros(m - 1, model.config.d_model, dtype=torch.float64)
    for block in blocks:
        found[:, place[block]] = basis / len(blocks) ** 0.5
    return found


def variable_counterfactuals(model: Decoder, variable: str, n: int, seed: int = 0) -> Counterfactuals:
    """Pairs of random prompts of `variables_model`, of which one takes a word from the other.

    Args:
        model: The model.
        variable: Which word: `first`, `second`, `third`.
        n: How many pairs.
        seed: Of the draw.
    """
    require(
        variable in VARIABLES, f"variable_counterfactuals: variables are {', '.join(VARIABLES)}; found {variable!r}."
    )
    m = round(model.config.n_outputs**0.5)
    generator = torch.Generator().manual_seed(seed)
    base, source = torch.randint(m, (2, n, 3), generator=generator)
    other = base.clone()
    which = VARIABLES.index(variable)
    other[:, which] = source[:, which]

    def ids(words: Tensor) -> Tensor:
        ends = torch.zeros(n, 1, dtype=torch.long)
        return torch.cat((ends, 1 + m * torch.arange(3) + words, ends + 3 * m + 1), 1)

    answer, before = (m * words[:, 0] + words[:, 1] for words in (other, base))
    return Counterfactuals(ids(base), ids(source), answer, before)
