"""What a family of published models is: a translation of its config, and a table of its tensors' names.

    Family("llama", model_types=("llama",), config=..., table=...)

A table maps our modules or tensors to theirs, `{i}` standing for a layer:

    "stack.blocks.{i}.attn_norm": "model.layers.{i}.input_layernorm"
    "stack.blocks.{i}.attn.projection.qkv": (Piece("…q_proj", rows=64), Piece("…k_proj", rows=16), Piece("…v_proj"))

A module stands for all of its tensors (weight, bias). A `Piece` says which part of their tensor ours is a copy of, as a
view; the same view serves loading, which copies from it, and writing, which copies into it. An empty tuple stands for
zeros, which they do not store. Which of our tensors exist follows from the config, so one table covers variants with
and without biases, tied or not.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from glassformer.checkpoints.families.fields import Fields
from glassformer.checkpoints.families.heads import TextHead, rows_of_head, with_head
from glassformer.models import ModelConfig


@dataclass(frozen=True)
class Piece:
    """Some rows of one of our tensors, as they lie in one of theirs.

    Args:
        name: Their module or tensor.
        rows: Rows of theirs; all that ours has left by default. Needed unless it is the last of several.
        transposed: Their matrices are `in out`; ours, like torch's linear maps, `out in`.
        view: From theirs (transposed already) to the part that is ours, without copying; any shape with our rows'
            numbers in order. All of it by default.
        shape: Of theirs (transposed already), where it is not `rows` of our rows.
        layers: For theirs that hold all layers one after another: how many. The rest describes that of one layer.
        layer: Which of them; filled in where `{i}` is.
        zero: Whether both must be zero, since theirs is added in another place than ours.
    """

    name: str
    rows: int | None = None
    transposed: bool = False
    view: Callable[[Tensor], Tensor] | None = None
    shape: tuple[int, ...] | None = None
    layers: int | None = None
    layer: int = 0
    zero: bool = False

    def part(self, theirs: Tensor) -> Tensor:
        """The view on one of their tensors that is ours."""
        if self.layers is not None:
            if theirs.ndim == 0 or len(theirs) != self.layers:
                raise IndexError(f"{self.layers} layers are asked for")
            theirs = theirs[self.layer]
        upright = theirs.mT if self.transposed and theirs.ndim > 1 else theirs
        return upright if self.view is None else self.view(upright)

    @property
    def is_whole(self) -> bool:
        return self.view is None and not self.transposed and self.layers is None and not self.zero


Right = str | Piece | Sequence[str | Piece]
Table = Mapping[str, Right]


@dataclass(frozen=True)
class Family:
    """Published models that share a layout.

    Args:
        name: As listed.
        model_types: What `model_type` says in their config.json.
        config: From their config to ours; raises `CheckpointError` for what cannot be represented.
        table: From our names to theirs.
        prefixes: What all names of a file may begin with, or lack.
        endings: Endings of names, and what old files have in their place.
        ignored: Patterns of tensors that hold no weights (masks, tables of angles).
        computed: Patterns of tensors that our model computes, and from our config and their number of rows what stands
            for them, NaN in rows that no text meets. Files that hold other numbers are refused.
        copies: Tensors that files may hold a second time, and what they are copies of: tied matrices. Where a config
            gives the latter no place of its own, it is a copy too.
        recognise: For layouts without `model_type`: whether a config is one of theirs.
        holds: Tensors by whose names it is told from a family with the same configs, which must be listed after it.
        express: From our config to theirs, for models that did not come from one: decoders with attention and an MLP in
            every block, unless `bare`. Whatever it gives is accepted only if `config` makes the same of it.
        bare: `express` takes any decoder.
        config_name: Where their config stands.
        writes_copies: Their own code wants the copies in the files.
        any_pairing: The table finds rotary pairs whichever way ours are ordered.
        no_lengths: Fields of the config that say how long texts are elsewhere, and here something else.
        without_effect: Fields of the config that say what is computed elsewhere and change nothing here, and why.
        trained_with_scaling: Models are trained on the whole context that scaled rotary positions reach.
        text_head: Of encoders: what tells classes of a text, where such models are read.
        token_head: What the matrix is called that tells classes of tokens.
        place: Of decoders: from our config and a site by which the library's stream, pattern or module is known, to our
            site that holds the same, where it is another; None where none does.
        output_bias: Of families whose files may hold a bias of the logits or not: what it is called.
    """

    name: str
    model_types: tuple[str, ...]
    config: Callable[[Fields], ModelConfig]
    table: Callable[[Fields, Any], Table]
    prefixes: tuple[str, ...] = ()
    endings: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    computed: Mapping[str, Callable[[Any, int], Tensor]] = field(default_factory=dict)
    copies: Mapping[str, str] = field(default_factory=dict)
    recognise: Callable[[Mapping[str, Any]], bool] | None = None
    holds: tuple[str, ...] = ()
    express: Callable[[Any], dict[str, Any]] | None = None
    bare: bool = False
    config_name: str = "config.json"
    writes_copies: bool = False
    any_pairing: bool = False
    no_lengths: tuple[str, ...] = ()
    without_effect: Mapping[str, str] = field(default_factory=dict)
    trained_with_scaling: bool = False
    text_head: TextHead | None = None
    token_head: str = "score"
    place: Callable[[Any, str], str | None] | None = None
    output_bias: str = ""

    def copied(self, wanted: Collection[str]) -> dict[str, str]:
        """Return the copies among names that a model does not need, and of which that it does.

        Args:
            wanted: Names of the table that the model is made of.
        """
        found: dict[str, str] = {}
        for copy, of in self.copies.items():
            while of not in wanted and of in self.copies:
                of = self.copies[of]
            if copy not in wanted:
                found[copy] = of
        return found

    def covers(self, config: Mapping[str, Any], names: Collection[str] = ()) -> bool:
        """Whether a config.json, beside tensors of these names, is of this family."""
        if not all(name in names for name in self.holds):
            return False
        if self.recognise is not None and self.recognise(config):
            return True
        return config.get("model_type") in self.model_types

    def translate(self, fields: Fields, names: Collection[str] = ()) -> ModelConfig:
        """Our config of theirs beside tensors of these names, with the head that it names.

        Raises:
            CheckpointError: It says what has no place in ours.
        """
        config = with_head(self.config(fields), fields, self.text_head)
        return config.replace(unembed_bias=True) if self.output_bias in names else config

    def names(self, fields: Fields, config: Any) -> Table:
        """The table of a model, its head included."""
        head = rows_of_head(config, self.text_head, self.token_head)
        return {**self.table(fields, config), **head}


def position_rows(config: Any, rows: int) -> Tensor:
    """Return the table of so many rows that a config's positions stand for, where they are computed."""
    return config.positions.build(config.d_model, rows).rows_of(rows)
