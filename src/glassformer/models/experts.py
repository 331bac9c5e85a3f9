"""Mixture of experts: several MLPs of equal size, of which each position runs a few.

    r = x W_R + b_R                              router logits, one per expert
    s = softmax(r)  or  sigmoid(r)               shares
    g = s / sum of the chosen s, times factor, for the `n_chosen` largest of s + b, zero elsewhere
    out = sum over e of  g_e expert_e(x)  + shared(x)

Experts may stand in groups, of which only the best few are chosen from; b, the bias of the choice, moves what is chosen
and not what it weighs; the shared expert runs at every position. Each of these may be left out.

The dense route runs every expert at every position, and defines the quick one, which runs those that were chosen.
Source: Shazeer et al. 2017; Jiang et al. 2024, "Mixtral of Experts"; OpenAI 2025, "gpt-oss" (shifted, limited gates);
DeepSeek-AI 2024, "DeepSeek-V2", section 2.2 (groups, shared experts), and "DeepSeek-V3", section 2.1.2 (sigmoid shares,
biased choice).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from glassformer.arguments import Count, Positive
from glassformer.attention import ByPosition, Context, LinearMap, LinearMaps, SubLayerConfig
from glassformer.attention.linear_map import parameters_of
from glassformer.config import require
from glassformer.models.evaluation import drops
from glassformer.models.mlp import ACTIVATIONS
from glassformer.models.routing import Charge, balance, held, squared_size
from glassformer.trace import Site, Tape, declare, full_names, site, wants


@dataclass(frozen=True)
class MixtureOfExperts(SubLayerConfig, kind="experts"):
    """Experts, and the router that chooses among them at each position.

    An expert is `act(x W_in) W_out`, or gated `(act(x W_gate) * (x W_in + shift)) W_out`.

    Args:
        n_experts: How many there are.
        n_chosen: How many run at each position.
        d_mlp: Neurons of one expert; 4 d_model by default.
        activation: Non-linearity.
        gated: Multiply by a second, linear branch.
        bias: Biases on the experts' matrices.
        router_bias: A bias per expert on the router's logits.
        renormalised: Weights of the chosen experts sum to one (before `factor`); without, they are their shares.
        shift: Added to the linear branch.
        limit: Keep the linear branch within plus and minus this, and what the activation reads below it; None for none.
        scoring: What makes shares of router logits: `softmax` over all experts, or `sigmoid` of each.
        choice_bias: A number per expert that is added to shares when experts are chosen, and not to their weights. No
            gradient reaches it: whoever trains moves it towards an even load.
        n_groups: Groups of equal size that experts stand in, side by side.
        n_chosen_groups: How many of them are chosen from.
        group_best: How many of the largest shares of a group are summed to rank it.
        factor: On the weights of the chosen experts.
        d_shared: Neurons of one more expert that runs at every position, with weight one; None for none.
        balance: Training adds so many times `routing.balance`, which is 1 for an even load; None for nothing. Switch
            transformers write alpha E sum f m, which is balance=alpha; MiniMax alpha / E sum f m, which is
            balance=alpha / E^2. Where f sums to k, alpha is multiplied by it.
        router_z: Training adds so many times the mean square of the router's log-sum-exp; None for nothing.
        capacity: In training, an expert runs for at most ceil(capacity n_chosen T / n_experts) of a batch's T real
            positions, those that come first (`routing.held`): the rest of its choices are dropped, and what is not
            made up for by others stays as it is on the stream. None for all, as in evaluation, where a text does not
            depend on what is read beside it.
    """

    n_experts: int = 8
    n_chosen: int = 2
    d_mlp: Count | None = None
    activation: Literal["relu", "gelu", "gelu_tanh", "gelu_sigmoid", "silu"] = "silu"
    gated: bool = True
    bias: bool = False
    router_bias: bool = False
    renormalised: bool = True
    shift: float = 0.0
    limit: Positive | None = None
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    choice_bias: bool = False
    n_groups: int = 1
    n_chosen_groups: int = 1
    group_best: int = 1
    factor: float = 1.0
    d_shared: Count | None = None
    balance: Positive | None = None
    router_z: Positive | None = None
    capacity: Positive | None = None

    role: ClassVar[str] = "mlp"

    def __post_init__(self) -> None:
        require(
            1 <= self.n_chosen <= self.n_experts,
            f"experts: n_chosen={self.n_chosen} must lie between 1 and n_experts={self.n_experts}.",
        )
        require(
            self.n_groups >= 1 and self.n_experts % self.n_groups == 0,
            f"experts: n_experts={self.n_experts} do not stand in n_groups={self.n_groups} of equal size.",
        )
        size = self.n_experts // self.n_groups
        require(
            1 <= self.n_chosen_groups <= self.n_groups and self.n_chosen <= self.n_chosen_groups * size,
            f"experts: n_chosen_groups={self.n_chosen_groups} of {self.n_groups} groups of {size} must hold "
            f"n_chosen={self.n_chosen} experts.",
        )
        require(
            1 <= self.group_best <= size,
            f"experts: group_best={self.group_best} must lie between 1 and {size}, the experts of a group.",
        )
        require(self.gated or self.shift == 0, f"experts: shift={self.shift} moves the linear branch of gated experts.")

    def build(self, d_model: int, max_len: int, layer: int, path: str) -> "ExpertsLayer":
        return ExpertsLayer(self, d_model, layer, path)


class ExpertsLayer(ByPosition):
    """Router and experts, each expert's matrices stacked: `expert rows columns`."""

    SITES: ClassVar[dict[str, str]] = {
        "router": "batch pos expert",
        "chosen": "batch pos expert",
        "weights": "batch pos expert",
        "expert_hidden": "batch pos expert neuron",
        "expert_out": "batch pos expert d_model",
        "shared_out": "batch pos d_model",
        "out": "batch pos d_model",
    }
    LAZY = ("expert_hidden", "expert_out")

    def __init__(self, config: MixtureOfExperts, d_model: int, layer: int, path: str) -> None:
        super().__init__()
        self.config, self.d_model, self.layer, self.path = config, d_model, layer, path
        self.d_mlp = config.d_mlp or 4 * d_model
        self.at = full_names(path, self.SITES)
        n, bias = config.n_experts, config.bias
        self.router = LinearMap(d_model, n, bias=config.router_bias)
        self.gate = LinearMaps(n, d_model, self.d_mlp, bias) if config.gated else None
        self.input = LinearMaps(n, d_model, self.d_mlp, bias)
        self.output = LinearMaps(n, self.d_mlp, d_model, bias)
        self.choice_bias = nn.Parameter(torch.zeros(n), requires_grad=False) if config.choice_bias else None
        width = config.d_shared
        self.shared_gate = None if width is None or not config.gated else LinearMap(d_model, width, bias=bias)
        self.shared_input = None if width is None else LinearMap(d_model, width, bias=bias)
        self.shared_output = None if width is None else LinearMap(width, d_model, bias=bias)
        self.activation = ACTIVATIONS[config.activation]
        # where a choice may be dropped, it is for what was chosen before
        self.by_position = config.capacity is None

    def forward(
        self,
        x: Float[Tensor, "batch pos d_model"],
        context: Context,
        *,
        source: Tensor | None = None,
        state: Any = None,
        tape: Tape | None = None,
    ) -> tuple[Float[Tensor, "batch pos d_model"], Any]:
        real = None if self.by_position else context.real_keys(x.shape[1], "experts")
        return self.write(x, tape, real), state

    def write(
        self,
        x: Float[Tensor, "batch pos d_model"],
        tape: Tape | None = None,
        real: Bool[Tensor, "b pos"] | None = None,
    ) -> Float[Tensor, "batch pos d_model"]:
        at, capacity = self.at, self.config.capacity
        logits = site(tape, at.router, self.router(x))
        chosen = site(tape, at.chosen, self.choices(logits))
        weights = self.weights(logits, chosen)
        if capacity is not None and self.training and drops(self):
            weights = weights * held(chosen, self.config.n_chosen, capacity, real)
        weights = site(tape, at.weights, weights)
        out = self.dense(x, weights, tape) if self._wants_dense(x, tape) else self.fast(x, weights)
        if self.shared_input is not None and self.shared_output is not None:
            gate = None if self.shared_gate is None else self.shared_gate(x)
            shared = self.shared_output(self._hidden(self.shared_input(x), gate))
            out = out + site(tape, at.shared_out, shared)
        return site(tape, at.out, out)

    def choices(self, logits: Float[Tensor, "batch pos expert"]) -> Float[Tensor, "batch pos expert"]:
        """Return 1 for each expert that is chosen, 0 for the others."""
        chosen = self.chosen(self._log_shares(logits).exp())
        return torch.zeros_like(logits).scatter(-1, chosen, 1.0)

    def weights(
        self, logits: Float[Tensor, "batch pos expert"], chosen: Float[Tensor, "batch pos expert"]
    ) -> Float[Tensor, "batch pos expert"]:
        """Return what each expert's output is multiplied by: zero for those that were not chosen."""
        share, on = self._log_shares(logits), chosen != 0
        if self.config.renormalised:
            # where an edit left none, there is nothing to share out
            share = share.masked_fill(~on & on.any(-1, keepdim=True), float("-inf")).softmax(-1)
        else:
            share = share.exp()
        return (share * chosen * self.config.factor).to(logits.dtype)

    def shares(self, logits: Float[Tensor, "batch pos expert"]) -> Float[Tensor, "batch pos expert"]:
        """Return the router's shares, over all experts; they sum to one whatever makes them."""
        shares = self._log_shares(logits).exp()
        return shares / shares.sum(-1, keepdim=True)

    def _log_shares(self, logits: Float[Tensor, "batch pos expert"]) -> Float[Tensor, "batch pos expert"]:
        # in float32 at least, as softmax everywhere
        wide = logits if logits.dtype == torch.float64 else logits.float()
        return wide.log_softmax(-1) if self.config.scoring == "softmax" else F.logsigmoid(wide)

    def charged(self) -> tuple[str, ...]:
        config = self.config
        return () if config.balance is None and config.router_z is None else (self.at.router,)

    def charges(self, read: Mapping[str, Tensor], real: Bool[Tensor, "batch pos"] | None) -> list[Charge]:
        logits, config, found = read[self.at.router], self.config, list[Charge]()
        shares = self.shares(logits)
        if config.balance is not None:
            even = balance(shares, self.choices(logits), real)
            found.append(Charge("balance", config.balance, even))
        if config.router_z is not None:
            found.append(Charge("router_z", config.router_z, squared_size(logits.to(shares), real)))
        return found

    def chosen(self, shares: Float[Tensor, "batch pos expert"]) -> Int[Tensor, "batch pos chosen"]:
        """Return which experts run: those with the largest shares, bias added, in the groups ranked first."""
        config = self.config
        ranked = shares if self.choice_bias is None else shares + self.choice_bias
        if config.n_chosen_groups < config.n_groups:
            by_group = ranked.unflatten(-1, (config.n_groups, -1))
            best = by_group.topk(config.group_best, -1).values.sum(-1).topk(config.n_chosen_groups, -1).indices
            open_to = torch.zeros(by_group.shape[:-1], dtype=torch.bool, device=ranked.device).scatter(-1, best, True)
            ranked = by_group.masked_fill(~open_to[..., None], float("-inf")).flatten(-2)
        return ranked.topk(config.n_chosen, -1).indices

    def dense(
        self, x: Float[Tensor, "batch pos d_model"], weights: Float[Tensor, "batch pos expert"], tape: Tape | None
    ) -> Float[Tensor, "batch pos d_model"]:
        """Return the weighted sum over all experts, every one of them run at every position."""
        read = self.input.all(x[..., None, :])
        gate = None if self.gate is None else self.gate.all(x[..., None, :])
        hidden = site(tape, self.at.expert_hidden, self._hidden(read, gate))
        written = weights[..., None] * self.output.all(hidden)
        return site(tape, self.at.expert_out, written).sum(-2)

    def fast(
        self, x: Float[Tensor, "batch pos d_model"], weights: Float[Tensor, "batch pos expert"]
    ) -> Float[Tensor, "batch pos d_model"]:
        """Return the same, each expert run where its weight is not zero."""
        rows, shares = x.flatten(0, 1), weights.flatten(0, 1)
        # expert by expert, so that each one's rows lie together
        experts, places = shares.mT.nonzero(as_tuple=True)
        counts = experts.bincount(minlength=self.config.n_experts).tolist()
        share = shares[places, experts]
        out, start = torch.zeros_like(rows), 0
        for expert, count in enumerate(counts):
            if count == 0:
                continue
            here = slice(start, start + count)
            mine = rows[places[here]]
            gate = None if self.gate is None else self.gate.one(expert, mine)
            written = self.output.one(expert, self._hidden(self.input.one(expert, mine), gate))
            out = out.index_add(0, places[here], written * share[here, None])
            start += count
        return out.view_as(x)

    def _hidden(self, read: Tensor, gate: Tensor | None) -> Tensor:
        limit = self.config.limit
        if gate is None:
            return self.activation(read if limit is None else read.clamp(max=limit))
        if limit is not None:
            gate, read = gate.clamp(max=limit), read.clamp(-limit, limit)
        return self.activation(gate) * (read if self.config.shift == 0 else read + self.config.shift)

    def _wants_dense(self, x: Tensor, tape: Tape | None) -> bool:
        """Whether all experts run: for their sites, for derivatives by weights, and where no number is known yet."""
        if x.is_meta or torch.compiler.is_compiling() or wants(tape, self.at.expert_hidden, self.at.expert_out):
            return True
        return tape is not None and tape.grad and tape.wants(self.at.weights)

    def sites(self) -> Iterator[Site]:
        sizes = {"expert": self.config.n_experts, "neuron": self.d_mlp, "d_model": self.d_model}
        axes = {name: words for name, words in self.SITES.items() if self.shared_input or name != "shared_out"}
        yield from declare(self.path, axes, sizes, layer=self.layer, lazy=self.LAZY)

    def flops(self, length: int, source_length: int, causal: bool) -> dict[str, int]:
        neurons = self.d_mlp * self.config.n_chosen + (self.config.d_shared or 0)
        chosen = 2 * length * self.d_model * neurons
        router = 2 * length * self.d_model * self.config.n_experts
        return {"mlp in": chosen, "mlp gate": chosen * self.config.gated, "mlp out": chosen, "router": router}

    def own_parameters(self) -> Iterator[tuple[str, int]]:
        yield from parameters_of("mlp in", self.input)
        yield from parameters_of("mlp gate", self.gate)
        yield from parameters_of("mlp out", self.output)
        for part, map in (("in", self.shared_input), ("gate", self.shared_gate), ("out", self.shared_output)):
            yield from parameters_of(f"mlp {part}", map)
        yield from parameters_of("router", self.router)
        yield "router", 0 if self.choice_bias is None else self.choice_bias.numel()
