"""Vocabulary transfer: a new model takes over the weights of a trained one whose tokens differ."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from glassformer.checkpoints import load
from glassformer.data import Tokenizer
from glassformer.errors import ConfigError
from glassformer.models.embedding import VocabularyMatrix


def take_over(model: torch.nn.Module, weights: str, tokenizer: Tokenizer | None) -> None:
    """Put the weights of a trained model into a new one, in place.

    Vectors of tokens, and biases of their logits, go from token to token: one that the trained model does not have
    begins as the mean of those of its pieces. All other weights are copied.

    Args:
        model: What takes over, as drawn.
        weights: What from: a shipped model's name, or a folder.
        tokenizer: Of the new model; None of one that reads images, whose classes have to be as many.

    Raises:
        UnknownModel: There is no such model.
        ConfigError: Its weights have other names or shapes, or it has no tokenizer.

    Source: Gee et al. 2022, "Fast Vocabulary Transfer for Language Model Compression", section 3.
    """
    trained: Any = load(weights)
    of_tokens = set[str]() if tokenizer is None else set(_of_tokens(model))
    own, found = model.state_dict(), trained.state_dict()
    unlike = [
        name
        for name in dict.fromkeys((*own, *found))
        if name not in own or name not in found or _shape(own, name, of_tokens) != _shape(found, name, of_tokens)
    ]
    if unlike:
        raise ConfigError(
            f'train: weights="{weights}" do not fit the model of this recipe: {len(unlike)} of {len(own)} weights have '
            f"another name or shape, the first of them {unlike[0]}. Only the vocabulary may differ."
        )
    if tokenizer is None:
        model.load_state_dict(found)
        return
    if trained.tokenizer is None:
        raise ConfigError(f'train: weights="{weights}" has no tokenizer, so that no token of it is known.')
    pieces = list(_pieces(tokenizer, trained.tokenizer))
    for name in of_tokens:
        old = found[name]
        rows = [old[ids].mean(0) if ids else old.mean(0) for ids in pieces]
        # a table may be longer than the tokenizer
        found[name] = torch.cat((torch.stack(rows), own[name][len(rows) :].to(old)))
    model.load_state_dict(found)


def _of_tokens(model: torch.nn.Module) -> Iterator[str]:
    """Yield names of weights that have a row or a number for each token."""
    for name, module in model.named_modules():
        if isinstance(module, VocabularyMatrix):
            own = module.named_parameters(recurse=False)
            yield from (f"{name}.{parameter}" for parameter, value in own if len(value) == module.vocab_size)


def _shape(weights: dict[str, Tensor], name: str, of_tokens: set[str]) -> torch.Size:
    return weights[name].shape[1:] if name in of_tokens else weights[name].shape


def _pieces(new: Tokenizer, old: Tokenizer) -> Iterator[list[int]]:
    """Yield the ids that stand for each token in the old vocabulary: its role's, its own, or those of its text."""
    roles = {getattr(new, role): getattr(old, role) for role in ("bos", "eos", "pad", "unk")}
    spelled = {old.bytes_of(token): token for token in range(old.vocab_size) if token not in old.specials}
    for token in range(new.vocab_size):
        same = roles.get(token) if token in new.specials else spelled.get(new.bytes_of(token))
        if same is not None:
            yield [same]
        else:
            yield [] if token in new.specials else old.encode(new.decode([token]))
