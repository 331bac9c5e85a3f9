"""From logits to the next token, one step at a time.

repetition penalty   seen tokens: positive logits divided by it, negative ones multiplied (Keskar et al. 2019)
ruled out            tokens that the rules of a published checkpoint rule out here are dropped
temperature          logits divided by it; 0 means greedy
top-k                the k largest are kept
top-p                the smallest set whose probabilities reach p is kept (Holtzman et al. 2020)
min-p                what is less likely than min_p times the likeliest is dropped (Nguyen et al. 2024)
draw                 the first token, by id, at which the cumulated probability passes a uniform number
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from glassformer.arguments import Count, FiniteAmount, Positive, PositiveShare, Share, checked
from glassformer.config import Config
from glassformer.errors import AnalysisUnavailable


@checked
@dataclass(frozen=True)
class Sampling(Config):
    """How the next token is chosen; the defaults draw from the model's own distribution.

    Args:
        temperature: Divides the logits; 0 always takes the likeliest token (greedy).
        top_k: Number of tokens kept; None for all.
        top_p: Probability that the kept tokens have to reach; None for all.
        min_p: Least probability, relative to the likeliest token; None for none.
        repetition_penalty: Above 1, tokens that occurred already become less likely.
        seed: Row i of a batch draws with seed + i, so that a row never depends on its neighbours.
    """

    temperature: FiniteAmount = 1.0
    top_k: Count | None = None
    top_p: PositiveShare | None = None
    min_p: Share | None = None
    repetition_penalty: Positive = 1.0
    seed: int = 0

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


GREEDY = Sampling(temperature=0.0)


@dataclass(frozen=True)
class SamplingStage:
    """The logits after one step; -inf where a token is ruled out.

    Args:
        name: `logits`, `repetition_penalty`, `ruled_out`, `temperature`, `top_k`, `top_p` or `min_p`.
        setting: The step's parameter; None for the model's own logits, and where rules are all that is kept.
        logits: What the step left.
    """

    name: str
    setting: float | None
    logits: Float[Tensor, "batch vocab"]

    @property
    def probabilities(self) -> Float[Tensor, "batch vocab"]:
        """The distribution at this stage, in float64."""
        return self.logits.double().softmax(-1)

    @property
    def kept(self) -> Int[Tensor, " batch"]:
        """How many tokens are left."""
        return self.logits.isfinite().sum(-1)


@dataclass(frozen=True)
class Draw:
    """All stages and the token they led to.

    Args:
        stages: In the order they were applied; filters that are switched off are left out.
        uniform: The number in [0, 1) each row drew; None when greedy.
        tokens: The chosen ids.
    """

    stages: tuple[SamplingStage, ...]
    uniform: Float[Tensor, " batch"] | None
    tokens: Int[Tensor, " batch"]


def sampling_steps(
    logits: Float[Tensor, "batch vocab"],
    sampling: Sampling,
    *,
    seen: Bool[Tensor, "batch vocab"] | None = None,
    ruled_out: Bool[Tensor, "batch vocab"] | None = None,
    generators: list[torch.Generator] | None = None,
) -> Draw:
    """Choose the next token of each row, and keep every step on the way.

    `generate` calls exactly this, so what is shown is what is done.

    Args:
        logits: The model's logits at the last position.
        sampling: The settings.
        seen: Tokens that occurred already, for the repetition penalty.
        ruled_out: Tokens that a checkpoint's rules rule out.
        generators: One per row; those of the first step by default.

    Raises:
        AnalysisUnavailable: Logits are NaN or infinite.
    """
    stages = tuple(_stages(logits, sampling, seen, ruled_out))
    if sampling.greedy:
        return Draw(stages, None, stages[-1].logits.argmax(-1))
    generators = generators or row_generators(sampling, logits.shape[0])
    uniform = torch.cat([torch.rand(1, generator=row, dtype=torch.float64) for row in generators]).to(logits.device)
    return Draw(stages, uniform, _pick(stages[-1].probabilities, uniform))


def row_generators(sampling: Sampling, batch: int) -> list[torch.Generator]:
    """Return a fresh source of random numbers per row."""
    return [torch.Generator().manual_seed(sampling.seed + row) for row in range(batch)]


def require_choice(logits: Float[Tensor, "batch vocab"]) -> None:
    """Raise `AnalysisUnavailable` unless every row has a token to choose: no NaN, and something above -inf."""
    if not bool(logits.amax(-1).isfinite().all()):
        raise AnalysisUnavailable(
            "the next token: the model's logits here are NaN or infinite, so no token is likelier than another.\n"
            "    glassformer.load says which weights are not finite; gf.run(model, text, read='*') shows where the "
            "pass begins not to be. In float16 a pass overflows that does not in bfloat16 or float32."
        )


def _stages(
    logits: Tensor, sampling: Sampling, seen: Tensor | None, ruled_out: Tensor | None
) -> Iterator[SamplingStage]:
    require_choice(logits)
    yield SamplingStage("logits", None, logits)
    if sampling.repetition_penalty != 1 and seen is not None:
        penalty = sampling.repetition_penalty
        logits = torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)
        yield SamplingStage("repetition_penalty", penalty, logits)
    if ruled_out is not None:
        logits = logits.masked_fill(ruled_out, float("-inf"))
        require_choice(logits)
        yield SamplingStage("ruled_out", None, logits)
    if sampling.greedy:
        likeliest = logits.argmax(-1, keepdim=True)
        yield SamplingStage("temperature", 0.0, torch.full_like(logits, float("-inf")).scatter(-1, likeliest, 0.0))
        return
    if sampling.temperature != 1:
        # the same distribution with the largest logit at 0, in float64: the tiniest temperature gives no overflow
        logits = (logits - logits.amax(-1, keepdim=True)).double() / sampling.temperature
    yield SamplingStage("temperature", sampling.temperature, logits)
    for name, setting, keep in (
        ("top_k", sampling.top_k, _largest),
        ("top_p", sampling.top_p, _nucleus),
        ("min_p", sampling.min_p, _likely),
    ):
        if setting is not None:
            logits = logits.masked_fill(~keep(logits, float(setting)), float("-inf"))
            yield SamplingStage(name, float(setting), logits)


def _largest(logits: Tensor, k: int | float) -> Bool[Tensor, "batch vocab"]:
    top = logits.topk(min(int(k), logits.shape[-1]), -1).indices
    return torch.zeros_like(logits, dtype=torch.bool).scatter(-1, top, True)


def _nucleus(logits: Tensor, p: int | float) -> Bool[Tensor, "batch vocab"]:
    probabilities, order = logits.double().softmax(-1).sort(dim=-1, descending=True, stable=True)
    # a token stays while those before it fall short of p; the first one always does
    before = probabilities.cumsum(-1) - probabilities
    return torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order, before < p)


def _likely(logits: Tensor, fraction: int | float) -> Bool[Tensor, "batch vocab"]:
    probabilities = logits.double().softmax(-1)
    return probabilities >= fraction * probabilities.amax(-1, keepdim=True)


def _pick(probabilities: Tensor, uniform: Tensor) -> Int[Tensor, " batch"]:
    cumulated = probabilities.cumsum(-1)
    total = cumulated[..., -1]
    # rounding must not reach the total, where no token is left
    target = torch.minimum(uniform * total, total.nextafter(torch.zeros_like(total)))
    return (cumulated <= target[..., None]).sum(-1)
