"""What a report says first of the model it is on: its size, its layers and the mechanisms it attends by."""

import dataclasses

from glassformer.analysis.heads import roles
from glassformer.models import ModelLike
from glassformer.models.model import LogitsOf


@dataclasses.dataclass(frozen=True)
class ModelFacts:
    """What a report says first of its model."""

    name: str
    kind: str
    parameters: int
    n_layers: int
    n_heads: int
    d_model: int
    vocab_size: int
    max_len: int
    mechanisms: tuple[str, ...]
    trained_length: int | None
    output_vocab_size: int | None
    logits_of: LogitsOf | None


def model_facts(model: ModelLike) -> ModelFacts:
    """Return the facts of a model; `n_heads` is the most that any attention layer has."""
    kind, blocks = model.config.kind, [b for stack in model.stacks.values() for b in stack.blocks]
    heads = roles.heads(model)
    most = max((h.head + 1 for h in heads), default=0)
    parameters = sum(p.numel() for p in model.parameters())
    mechanisms = tuple(dict.fromkeys(h.mechanism for h in heads))
    config = model.config
    return ModelFacts(
        name=model.name,
        kind=kind,
        parameters=parameters,
        n_layers=len(blocks),
        n_heads=most,
        d_model=config.d_model,
        vocab_size=config.vocab_size,
        max_len=config.max_len,
        mechanisms=mechanisms,
        trained_length=model.trained_length,
        output_vocab_size=config.output_vocab_size,
        logits_of=model.logits_of,
    )
