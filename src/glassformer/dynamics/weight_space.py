"""Weights as one vector: a model as a function of it, and gradients at the weights of many chains side by side.

    theta = parameters in their order, flattened,    g = grad L(theta)  or  grad of a batch's mean loss,
    C = <(grad l - g)(grad l - g)'>    over the losses l of single examples

Axes: `parameter` of one vector; `chain` are copies of a model's weights that each go their own way.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.arguments import Count, checked
from glassformer.errors import ShapeMismatch, WrongArgument, nearest

Loss = Callable[[Tensor], Tensor]  # of one vector of weights
ExampleLoss = Callable[[Tensor, Tensor], Tensor]  # of one vector and the numbers of some examples, their mean
Gradients = Callable[[Tensor, torch.Generator], Tensor]  # of the weights of all chains


@checked
@dataclass(frozen=True, eq=False)
class WeightSpace:
    """Named parameters of a model as one vector, and the model as a function of it.

    Args:
        model: Any module, in evaluation mode.
        names: Which parameters; all by default. The others stay as they are.

    Raises:
        WrongArgument: The model has no such parameter, none at all, or is in training mode.
    """

    model: nn.Module
    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        own = dict(self.model.named_parameters())
        for name in self.names or ():
            if name not in own:
                raise WrongArgument(f'the model has no parameter "{name}".{nearest(name, own)}')
        if not self._parameters():
            raise WrongArgument(f"weights are of one parameter or more; found names={self.names}. None stands for all.")
        if self.model.training:
            raise WrongArgument(
                "a loss is the same at each call: a model in training mode draws its dropout anew. Call model.eval()."
            )

    def vector(self) -> Float[Tensor, " parameter"]:
        """The model's own weights."""
        return torch.cat([p.detach().flatten() for p in self._parameters().values()])

    def named(self, vector: Float[Tensor, " parameter"]) -> dict[str, Tensor]:
        """Weights by the names of parameters.

        Raises:
            ShapeMismatch: There are more or fewer numbers than the parameters have.
        """
        own = self._parameters()
        sizes = [p.numel() for p in own.values()]
        if vector.shape[-1] != sum(sizes):
            raise ShapeMismatch(f"{vector.shape[-1]} numbers for parameters that have {sum(sizes)}: give one for each.")
        return {name: part.view(p.shape) for (name, p), part in zip(own.items(), vector.split(sizes))}

    def __call__(self, vector: Float[Tensor, " parameter"], *inputs: Any) -> Any:
        """What the model makes of inputs with these weights."""
        return torch.func.functional_call(self.model, self.named(vector), inputs)

    def _parameters(self) -> dict[str, nn.Parameter]:
        own = dict(self.model.named_parameters())
        return own if self.names is None else {name: own[name] for name in self.names}


@checked
def loss_gradients(loss: Loss) -> Gradients:
    """Gradients of a loss at the weights of all chains, side by side by `torch.func.vmap`.

    A kernel that knows no such thing, as that of attention, is asked for one chain after another; PyTorch says so.

    Args:
        loss: Of one vector of weights, a number; differentiable.
    """
    of_all = torch.func.vmap(torch.func.grad(loss))
    return lambda x, generator: of_all(x)


@checked
def batch_gradients(losses: ExampleLoss, n_examples: Count, batch: Count) -> Gradients:
    """Gradients of batches, drawn for each chain by itself, with replacement, so that their noise has covariance C / B.

    Args:
        losses: Of one vector of weights and the numbers of some examples, their mean; differentiable.
        n_examples: How many examples there are.
        batch: How many are drawn, the B.
    """
    of_all = torch.func.vmap(torch.func.grad(losses))

    def gradients(x: Tensor, generator: torch.Generator) -> Tensor:
        return of_all(x, torch.randint(n_examples, (len(x), batch), generator=generator).to(x.device))

    return gradients


@checked
def gradient_noise(
    losses: ExampleLoss, n_examples: Count, weights: Float[Tensor, " parameter"]
) -> Float[Tensor, "parameter parameter"]:
    """The C of the equations: covariance of the gradients of single examples.

    Args:
        losses: As in `batch_gradients`.
        n_examples: How many examples there are.
        weights: Where.
    """
    examples = torch.arange(n_examples, device=weights.device)[:, None]
    with torch.no_grad():
        each = torch.func.vmap(torch.func.grad(losses), (None, 0))(weights, examples)
    centred = each - each.mean(0)
    return centred.mT @ centred / n_examples
