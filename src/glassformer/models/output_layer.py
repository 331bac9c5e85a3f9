"""Output layers that make a probability from a few decisions: training asks those on the way to the right token alone.

    log p(w) = sum over the decisions on the way to w of log p(decision)

Each decision is a softmax (or sigmoid) of *inner logits*, which are linear in the stream: site `logits_inner`. The
logits of such a model are log-probabilities over the whole vocabulary: their softmax is the distribution they say, so
whatever reads logits works on them. What takes a token's logit for a product with a direction of its own is refused.
"""

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar, NoReturn

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.config import Config, require
from glassformer.errors import AnalysisUnavailable
from glassformer.models.embedding import Unembedding
from glassformer.models.smoothing import LabelSmoothing
from glassformer.trace import Site, Tape, declare


class OutputLayer(Config, family=True):
    """What makes logits of the last stream, in place of one product with a matrix over the vocabulary.

    Every member has `counts`: how often each id occurs, by id; None where ids are sorted by frequency and their counts
    unknown, which are then taken to fall as 1 / rank (Zipf's law).
    """

    counts: tuple[float, ...] | None

    def build(self, vocab_size: int, d_model: int) -> "FactoredUnembedding":
        raise NotImplementedError

    def flops(self, vocab_size: int, d_model: int) -> int:
        """Return the forward FLOPs of all log-probabilities at one position."""
        raise NotImplementedError

    def target_flops(self, vocab_size: int, d_model: int) -> Int[Tensor, " vocab"]:
        """Return the forward FLOPs of each word's log-probability alone, at one position."""
        raise NotImplementedError

    def expected_flops(self, vocab_size: int, d_model: int) -> float:
        """Return the forward FLOPs of one target's log-probability, on average over targets that occur as counted."""
        return float(shares(self.counts, vocab_size) @ self.target_flops(vocab_size, d_model).double())

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise `ConfigError` unless there is a count for each token."""
        require(
            self.counts is None or len(self.counts) == vocab_size,
            f"{self.kind}: {len(self.counts or ())} counts for logits of {vocab_size} tokens; give one for each id, "
            "or None for ids sorted by frequency.",
        )

    def check_counts(self) -> None:
        """Raise `ConfigError` for counts that no tokens can have."""
        odd = next((i for i, n in enumerate(self.counts or ()) if not (n > 0 and math.isfinite(n))), None)
        require(
            odd is None,
            f"{self.kind}: counts must be positive; that of token {odd} is {(self.counts or (0,))[odd or 0]}. Add one "
            "to each where some tokens never occur.",
        )


def frequencies(counts: Sequence[float] | None, vocab_size: int) -> Sequence[float]:
    """Return how often each token occurs, up to a factor: its count, or by Zipf's law where none are known."""
    return [1 / rank for rank in range(1, vocab_size + 1)] if counts is None else counts


def shares(counts: Sequence[float] | None, vocab_size: int) -> Float[Tensor, " vocab"]:
    """Return how often each token occurs, as shares in float64 on the CPU."""
    # on the CPU even while a model is built without memory
    found = torch.tensor(frequencies(counts, vocab_size), dtype=torch.float64, device="cpu")
    return found / found.sum()


class FactoredUnembedding(Unembedding):
    """From the stream to log-probabilities, decision by decision.

    `matrix` holds a row for each inner logit that is made from the stream itself.
    """

    at_inner = "logits_inner"

    def __init__(self, kind: str, rows: int, n_inner: int, vocab_size: int, d_model: int) -> None:
        super().__init__(rows, d_model, None, bias=False)
        self.kind, self.n_inner, self.vocab_size = kind, n_inner, vocab_size
        # indices, which are no weights: where they are needed, and as the config says
        self._placed = dict[tuple[str, torch.device], Tensor]()

    has_directions: ClassVar[bool] = False

    @property
    def at_linear(self) -> str:
        return self.at_inner

    @property
    @abstractmethod
    def inner(self) -> Float[Tensor, "inner d_model"]:
        """The matrix that makes the inner logits."""

    @abstractmethod
    def raw(self, x: Float[Tensor, "... d_model"], tape: Tape | None = None) -> Float[Tensor, "... inner"]:
        """Return the inner logits."""

    @abstractmethod
    def capped(self, raw: Float[Tensor, "... inner"]) -> Float[Tensor, "... vocab"]:
        """Return the log-probabilities that inner logits give: they stand to them as capped logits to raw ones."""

    @abstractmethod
    def target_losses(
        self, x: Float[Tensor, "position d_model"], ids: Int[Tensor, " position"]
    ) -> Float[Tensor, " position"]:
        """Return -log p of a target at each position, in nats and float32 at least, from its own decisions alone."""

    def log_prob(self, x: Float[Tensor, "... d_model"], ids: Int[Tensor, "..."]) -> Float[Tensor, "..."]:
        return -self.target_losses(x.reshape(-1, x.shape[-1]), ids.reshape(-1)).view(ids.shape).to(x.dtype)

    def losses(
        self, x: Float[Tensor, "position d_model"], ids: Int[Tensor, " position"], form: LabelSmoothing
    ) -> Float[Tensor, " position"]:
        # smoothing shares probability with all other tokens, so it asks all of them
        return super().losses(x, ids, form) if form.rate else self.target_losses(x, ids)

    @property
    def weight(self) -> Float[Tensor, "vocab d_model"]:
        self._refuse("the unembedding as a matrix")

    def direction(self, ids: Int[Tensor, "..."]) -> Float[Tensor, "... d_model"]:
        self._refuse("a direction for each token")

    def require_matrix(self, analysis: str) -> None:
        self._refuse(analysis)

    def _refuse(self, analysis: str) -> NoReturn:
        raise AnalysisUnavailable(
            f"{analysis}: the logits of this model are log-probabilities of a factored output layer ({self.kind}); a "
            "token has no direction of the stream that its logit is the product with.\n"
            f"    Linear in the stream are the inner logits (site {self.at_inner}): rows of model.unembed.inner are "
            "directions\n    for direct_logit_attribution(run, direction=…). Effects on log-probabilities themselves "
            "are measured by\n    patching and ablation (analysis.causal)."
        )

    def place(self, name: str, values: Tensor, like: Tensor) -> Tensor:
        """Return indices where a tensor lies, copied there once."""
        if like.device == values.device:
            return values
        at = name, like.device
        if at not in self._placed:
            # a copy made under inference mode could not be trained with later
            with torch.inference_mode(False):
                self._placed[at] = values.to(like.device)
        return self._placed[at]

    def sites(self) -> Iterator[Site]:
        yield from declare("", {self.at_inner: "batch pos inner"}, {"inner": self.n_inner})
        yield from declare("", {"logits": "batch pos vocab"}, {"vocab": self.vocab_size})
