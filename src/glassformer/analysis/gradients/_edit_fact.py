"""Write one fact into one MLP by a forward pass alone, and see what else changes.

    W_out -> W_out + size x' u          x the neurons at the last position of the prompt, u the answer's direction

It is the shift of the backward lens without the way back: in the last layer, with no norm behind, the answer's logit
rises by size times both squared lengths, exactly. Beside it stands one step of gradient descent on the same matrix, of
the same size.

    efficacy        the answer is the likeliest token after the prompt
    paraphrase      share of other ways to ask after which it is
    neighbourhood   share of other questions after which the likeliest token is what it was

Source: Katz et al. 2024, "Backward Lens: Projecting Language Model Gradients into the Vocabulary Space", section 6
(forward shift); Meng et al. 2022, "Locating and Editing Factual Associations in GPT", section 3.3 (the measures).
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.analysis._run import run
from glassformer.analysis.components import mlp_of
from glassformer.analysis.gradients._linear_gradients import linear_gradients
from glassformer.analysis.gradients.weight_edit import WeightEdit
from glassformer.analysis.prepare import answer_id, require_one_prompt
from glassformer.analysis.question import question
from glassformer.arguments import Natural, Positive
from glassformer.errors import AnalysisUnavailable
from glassformer.labelled import Labelled, Result
from glassformer.models import Model, ModelLike, require_model
from glassformer.models.readable import readable_outputs
from glassformer.numerics.distributions import rank
from glassformer.numerics.precision import wide
from glassformer.words import sentence

ANALYSIS = "edit_fact"
STATES = ("before", "edited", "gradient step")
MEASURES = ("efficacy", "paraphrase", "neighbourhood")


@dataclasses.dataclass(frozen=True, eq=False)
class FactEdit(Result):
    """A fact written into one MLP, and what it does beside a gradient step of the same size.

    Args:
        scores: `state measure`, shares in [0, 1]; NaN where there are no such prompts. States are `before`, `edited`
            and `gradient step`.
        log_probability: Of the answer after each prompt, in nats, `state prompt`.
        logit: Of the answer, `state prompt`, as the model uses it.
        rank: Of the answer, `state prompt`; 1 is the likeliest.
        likeliest: Id of the likeliest token, `state prompt`.
        edit: The change; `with found.edit.applied(model)` makes it, and takes it back bit for bit.
        step: The gradient step of the same size.
        answer: Id of the answer.
        size: As it was asked for.
        norm: Size of the change (Frobenius).
        words: Text of every id among `likeliest`.
    """

    HEADLINE = ("scores", "log_probability")
    SIGNED = ("log_probability", "logit")

    scores: Labelled
    log_probability: Labelled
    logit: Labelled
    rank: Labelled
    likeliest: Labelled
    edit: WeightEdit
    step: WeightEdit
    answer: int
    size: float
    norm: float
    words: dict[int, str]


@question("What changes when a fact is written into one MLP?", of="texts")
def edit_fact(
    model: ModelLike,
    text: Any,
    answer: str | int,
    *,
    layer: Natural,
    size: Positive,
    part: str = "mlp",
    paraphrases: Iterable[Any] = (),
    neighbours: Iterable[Any] = (),
) -> FactEdit:
    """Add the answer's direction to what one MLP gives for the neurons of a prompt, and measure what follows.

    The model is changed while it is measured, and is then what it was, bit for bit; nobody else may use it meanwhile.

    Args:
        model: A decoder.
        text: The prompt whose next token is to be the answer.
        answer: Token (text or id).
        layer: Index of the block whose MLP is written into.
        size: How much of the direction, per unit of likeness to the prompt's neurons.
        part: Name of the sub-layer, where a block has several MLPs.
        paraphrases: Other prompts that the answer should follow.
        neighbours: Prompts after which nothing should change.

    Raises:
        AnalysisUnavailable: There is no such MLP; the model is no decoder; tokens have no directions of the stream; or
            nothing reaches the loss, so that there is no gradient step.
        TokenOutOfRange: The answer lies outside the vocabulary.
        ShapeMismatch: A prompt is several.

    Example:
        >>> found = edit_fact(model, "the capital of Atlantis is", " Paris", layer=2, size=0.05)
        >>> with found.edit.applied(model):
        ...     generate(model, "the capital of Atlantis is", max_new_tokens=1)
    """
    model = require_model(model, ANALYSIS)
    if not model.generates or model.reads_pairs:
        raise AnalysisUnavailable(
            f"{ANALYSIS} is of what a decoder says next; this model reads pairs, or its outputs are no next tokens.\n"
            "    What a step would write into it: analysis.gradients.backward_lens(model, text, answer)."
        )
    model.unembed.require_linear(ANALYSIS)
    mlp, token = mlp_of(model, layer, part, ANALYSIS), answer_id(model, answer)
    read = run(model, text, read=[mlp.at.hidden])
    require_one_prompt(read.inputs.shape[0], ANALYSIS)
    label = f"L{layer} {part} out"
    x = wide(read[mlp.at.hidden].values[0, read.place(-1)])
    u = wide(model.unembed.direction(torch.tensor(token, device=x.device)).detach())
    edit = WeightEdit(label, x[None], size * u[None])
    gradient = linear_gradients(model, text, token, maps=[label])
    step = WeightEdit(label, -wide(gradient.inputs[label].values), wide(gradient.vjps[label].values))
    if not (step.norm > 0 and edit.norm > 0):
        raise AnalysisUnavailable(f"{ANALYSIS}: nothing reaches the answer through {label}, so no step changes it.")
    step = step.scaled(edit.norm)
    prompts = {sentence("fact"): text}
    prompts |= {f"{sentence('paraphrase')} {i}": one for i, one in enumerate(paraphrases, 1)}
    n_paraphrases = len(prompts) - 1
    prompts |= {f"{sentence('neighbour')} {i}": one for i, one in enumerate(neighbours, 1)}
    logits = [_after(model, prompts.values())]
    for change in (edit, step):
        with change.applied(model):
            logits.append(_after(model, prompts.values()))
    return _result(model, torch.stack(logits), list(prompts), n_paraphrases, token, edit, step, size)


def _after(model: Model, prompts: Iterable[Any]) -> Float[Tensor, "prompt vocab"]:
    """Return the logits behind each prompt."""
    found = list[Tensor]()
    for prompt in prompts:
        done = run(model, prompt)
        require_one_prompt(done.inputs.shape[0], ANALYSIS)
        found.append(wide(done.predictions()[0, done.place(-1)].detach()))
    return torch.stack(found)


def _result(
    model: Model, logits: Float[Tensor, "state prompt vocab"], prompts: Sequence[str], n_paraphrases: int, token: int,
    edit: WeightEdit, step: WeightEdit, size: float,
) -> FactEdit:  # fmt: skip
    likeliest, ranks = logits.argmax(-1), rank(logits, token)
    first = (ranks == 1).to(logits)
    same = (likeliest == likeliest[0]).to(logits)
    behind = 1 + n_paraphrases
    # a mean over no prompts is NaN
    scores = torch.stack((first[:, 0], first[:, 1:behind].mean(-1), same[:, behind:].mean(-1)), -1)
    coords = {"state": STATES, "prompt": prompts, "measure": MEASURES}

    def of_prompts(values: Tensor) -> Labelled:
        return Labelled(values, ("state", "prompt"), {name: coords[name] for name in ("state", "prompt")})

    ids = likeliest.unique()
    return FactEdit(
        scores=Labelled(scores, ("state", "measure"), {name: coords[name] for name in ("state", "measure")}),
        log_probability=of_prompts(logits.log_softmax(-1)[..., token]),
        logit=of_prompts(logits[..., token]),
        rank=of_prompts(ranks),
        likeliest=of_prompts(likeliest),
        edit=edit,
        step=step,
        answer=token,
        size=size,
        norm=edit.norm,
        words=dict(zip(ids.tolist(), readable_outputs(model, ids[None].cpu())[0])),
    )
