"""One forward pass over text, ids, a batch, or whatever a model takes; what comes out is a `Run`.

    run = gf.run(model, "the cat sat on the", read=["blocks.*.attn.pattern"], edit=[Scale("blocks.1.attn.z", 0.0)])
    run.tokens, run.logits, run["blocks.1.attn.pattern"]

Axes are those of the site table; position axes carry token strings with their index, heads their label.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glassformer import figures
from glassformer.analysis.cards import card_of, cards
from glassformer.analysis.coordinates import in_own_rows, refuse_padding
from glassformer.analysis.prepare import prepare
from glassformer.arguments import checked
from glassformer.data import Marks
from glassformer.data.tokenizer import Specials
from glassformer.errors import AnalysisUnavailable, CheckpointError, ShapeMismatch, SiteNotRead, UnknownSite, nearest
from glassformer.files import json_text, tensors_in, write
from glassformer.labelled import Coordinate, Labelled, RowLabels, Viewed
from glassformer.models import Model, ModuleLike, require_module
from glassformer.models.evaluation import evaluating, require_computed, require_gradients
from glassformer.models.padding import Padding
from glassformer.models.readable import PositionLabels, name_positions, with_coordinates
from glassformer.models.reading import Inputs, Side
from glassformer.numerics.indices import one
from glassformer.numerics.precision import without_autocast
from glassformer.provenance import Binding, Bound, Note, Provenance, is_gathering
from glassformer.trace import Edit, Foreign, HeadAddress, Read, Site, SiteTable, Tape, parts_of

EditLike = Edit | tuple[str, Callable[[Tensor], Tensor]]
TextOrIds = str | Tensor | Sequence[str] | Sequence[int] | Sequence[Sequence[int]]


@dataclasses.dataclass(frozen=True, eq=False)
class Run(Viewed, Mapping[str, Labelled]):
    """What one forward pass left behind: a mapping from site name to labelled tensor, plus tokens and logits.

    Its page (`show`, `html`) has what every head looks at, of the patterns that were read and of the first prompt:
    `run.prompt(1).html(path)` is of another.

    Args:
        sites: Everything that was read.
        inputs: What the model read: ids, tokens, padding, notes; its names are the run's.
        logits: The model's output over the vocabulary, `batch pos vocab`; None if it gives none. At the padding of
            shorter rows its numbers mean nothing: `last_logits` has those of each row's last token.
        output: What a model we did not write returned.
        model: The model that ran, or what its spec says it is made of (`foreign`); None after loading.
        bound: What it is of: see `provenance`.
        edited: Names of the sites that were edited; none after loading.
    """

    sites: Mapping[str, Labelled]
    inputs: Inputs
    logits: Tensor | None = None
    output: Any = None
    model: Any = None
    bound: Bound | None = None
    edited: frozenset[str] = frozenset()

    @property
    def ids(self) -> Tensor | None:
        """Token ids of the side that ends in the logits, `batch pos`; None for a model that takes no ids."""
        return self.inputs.ids

    @property
    def token_rows(self) -> Sequence[Sequence[str]]:
        """Readable tokens, one list per row."""
        return self.inputs.token_rows

    @property
    def source_ids(self) -> Tensor | None:
        """Token ids of the encoder."""
        return self.inputs.source_ids

    @property
    def source_rows(self) -> Sequence[Sequence[str]]:
        """Readable tokens of the encoder."""
        return self.inputs.source_rows

    @property
    def lengths(self) -> Tensor | None:
        """Real tokens per row, if rows are padded."""
        return self.inputs.lengths

    @property
    def start(self) -> Tensor | None:
        """Where each row's real tokens begin, if padding is on the left."""
        return self.inputs.start

    @property
    def text(self) -> str | None:
        """The text that was given, if it was one."""
        return self.inputs.text

    @property
    def generated(self) -> bool:
        """Whether the decoder's text was generated, not given."""
        return self.inputs.generated

    @property
    def notes(self) -> tuple[Note, ...]:
        """What must be known to read the numbers right: specials put around the text, unknown words, a length that
        training never saw.
        """
        return self.inputs.notes

    @property
    def marks(self) -> Marks:
        """Which tokens of a single row are unknown, or spell a character byte by byte; nothing after loading."""
        return self.inputs.marks

    @property
    def source_marks(self) -> Marks:
        """The same of the encoder's tokens."""
        return self.inputs.source_marks

    @property
    def tokens(self) -> list[str]:
        """Readable tokens of the first row."""
        return list(self.token_rows[0]) if self.token_rows else []

    @property
    def source_tokens(self) -> list[str]:
        """Readable tokens of the encoder's first row; empty for a decoder."""
        return list(self.source_rows[0]) if self.source_rows else []

    @property
    def provenance(self) -> Provenance | None:
        """What the run is of: model and digest, input, precision, versions; None for one made by hand."""
        return None if self.bound is None else self.bound.said()

    def predictions(self) -> Tensor:
        """Return the logits, `batch pos vocab`; raises `AnalysisUnavailable` if the model gives none."""
        if self.logits is None:
            raise AnalysisUnavailable(
                f'"{getattr(self.model, "name", "this model")}" gives no logits, which predictions are read from.\n'
                '    Read its sites instead: gf.run(model, text, read=["blocks.*.resid_post", "*.pattern"]); a '
                "checkpoint with a language-model head gives logits."
            )
        return self.logits

    @property
    def in_columns(self) -> bool:
        """Whether it is of a `Batch`: edits that take their values from it count its columns."""
        return self.inputs.in_columns

    @property
    def last_logits(self) -> Tensor:
        """Logits of the last real token of each row, `batch vocab`.

        Of rows of unequal length `logits[:, -1]` is not that: for shorter ones it is what the model says of padding.
        Raises `AnalysisUnavailable` if the model gives no logits.
        """
        logits = self.predictions()
        places = [self.place(-1, row) for row in range(len(self.token_rows))] or [-1] * len(logits)
        return logits[torch.arange(len(logits), device=logits.device), torch.tensor(places, device=logits.device)]

    def __getitem__(self, name: str | tuple[Any, ...]) -> Labelled:
        """Return a site by its name, or by what stands behind `blocks.3.` in it and the layer: `run["pattern", 3]`.

        Layers count from the last if they are negative. A name may say of what it is (`"mlp.out", 3`), and in a model
        of two stacks of which (`"encoder.pattern", 3`); otherwise it is of the stack that ends in the logits.

        Raises:
            SiteNotRead: It was not read; the message says what to add to `read=`.
            UnknownSite: No site goes by a short name, or several do.
            ShapeMismatch: There is no such layer, or it has no such site.
        """
        if isinstance(name, tuple):
            return self[self._in_layer(name)]
        if name not in self.sites:
            if (found := self._of_head(name)) is not None:
                return found
            read = (
                ", ".join(f'"{site}"' for site in self.sites) if len(self.sites) <= 12 else f"{len(self.sites)} sites"
            )
            if unknown := self._no_site(name):
                raise SiteNotRead(f'"{name}" was not read: {unknown}\n    Read: {read or "nothing"}.')
            close, advice = nearest(name, self.sites), self._to_read(name)
            raise SiteNotRead(f'"{name}" was not read.{close} Read: {read or "nothing"}.\n    {advice}')
        return self.sites[name]

    def layers(self, name: str) -> Labelled:
        """Return a site of all layers as one value, axis `layer` first: `run.layers("resid_post")`.

        Layers that have no such site, as in hybrid models, are left out, and labels say which are there.

        Args:
            name: What stands behind `blocks.3.`, as in `run["resid_post", 3]`.

        Raises:
            SiteNotRead: It was not read of every layer that has it.
            UnknownSite: No site goes by the name, or several do.
            ShapeMismatch: Layers differ in shape, as they do in the number of heads.
        """
        names = {layer: site.name for layer, site in self._table().in_layers(name).items()}
        if missing := [site for site in names.values() if site not in self.sites]:
            raise SiteNotRead(
                f"{len(missing)} of {len(names)} layers were not read: {missing[0]}"
                f"{', …' if len(missing) > 1 else ''}\n"
                f'    Run again with read=["{_any_layer(missing[0])}"].'
            )
        found = {layer: self.sites[site] for layer, site in names.items()}
        shapes: dict[str, list[int]] = {}
        for layer, value in found.items():
            sizes = " ".join(f"{axis}={n}" for axis, n in zip(value.axes, value.shape))
            shapes.setdefault(sizes, []).append(layer)
        if len(shapes) > 1:
            said = "; ".join(f"{', '.join(map(str, of))}: {sizes}" for sizes, of in shapes.items())
            raise ShapeMismatch(
                f'"{name}" differs in shape from layer to layer: {said}.\n    Take one by one: run["{name}", '
                f"{next(iter(found))}]."
            )
        first, *others = found.values()
        coords = {
            axis: labels for axis, labels in first.coords.items() if all(o.coords.get(axis) == labels for o in others)
        }
        return Labelled(
            torch.stack([value.values for value in found.values()]), ("layer", *first.axes),
            {"layer": [f"L{layer}" for layer in found], **coords}, rows=first.rows,
        )  # fmt: skip

    def _in_layer(self, asked: tuple[Any, ...]) -> str:
        """Return the name of the site that a short name and a layer stand for."""
        if len(asked) != 2 or not isinstance(asked[0], str):
            raise UnknownSite(
                f'a site goes by its name, or by a short name and a layer: run["pattern", 1]; found {asked}.'
            )
        short, layer = asked[0], one(asked[1], "layer")
        table = self._table()
        found = table.in_layers(short)
        stack = next(iter(found.values())).stack
        depth = 1 + max(site.layer for site in table.values() if site.stack == stack and site.layer is not None)
        if not -depth <= layer < depth:
            raise ShapeMismatch(f'"{short}", {layer}: there are {depth} layers, 0 to {depth - 1}.')
        if layer % depth not in found:
            raise ShapeMismatch(f'"{short}", {layer}: the layers that have this site: {", ".join(map(str, found))}.')
        return found[layer % depth].name

    def _table(self) -> SiteTable:
        """Return the sites of the model; of a run that was loaded without one, those that were read."""
        known = getattr(self.model, "sites", None)
        return SiteTable({name: Site.named(name) for name in self.sites}) if known is None else known()

    def _no_site(self, name: str) -> str:
        """Return what to say of a name that no site of the model has, with the nearest; nothing if one has it."""
        if getattr(self.model, "sites", None) is not None:
            try:
                self._table().match(name)
            except UnknownSite as error:
                return str(error)
        return ""

    def _to_read(self, name: str) -> str:
        """Return what to do about a site that was not read."""
        table, every = self._table(), _any_layer(name)
        if name not in table:
            with contextlib.suppress(UnknownSite):
                first = next(iter(table.in_layers(name)))
                return f'A name without its layer: run["{name}", {first}], or run.layers("{name}").'
        also = "" if every == name else f', or of all layers with read=["{every}"]'
        return f'Run again with read=["{name}"]{also}.'

    def _of_head(self, name: str) -> Labelled | None:
        """Return what one head has of a site that was read, `L1H6.z`; the site's labels say where it is."""
        head = HeadAddress.parse(name)
        if head is None:
            return None
        for site, value in self.sites.items():
            axis = next((axis for axis in ("head", "kv_head") if axis in value.axes), "")
            if axis and Site.named(site).quantity == head.quantity:
                # a key head is labelled by all heads that read it
                places = [i for i, of in enumerate(value.labels(axis)) if head.label in str(of).split(", ")]
                if places:
                    return dataclasses.replace(value.select(**{axis: places[0]}), of=str(value.labels(axis)[places[0]]))
        return None

    def __contains__(self, name: object) -> bool:
        # a mapping's own asks for the value, and for what is missing the message with the nearest name is made up
        if isinstance(name, tuple):
            try:
                return self._in_layer(name) in self.sites
            except (ShapeMismatch, UnknownSite):
                return False
        return isinstance(name, str) and (name in self.sites or self._of_head(name) is not None)

    def __iter__(self) -> Iterator[str]:
        return iter(self.sites)

    def __len__(self) -> int:
        return len(self.sites)

    def row(self, row: int, stack: str = "") -> int:
        """Return a row as an index from 0, negative ones counted from the last; raises `ShapeMismatch`."""
        rows, row = len(self.source_rows if stack == "encoder" else self.token_rows), one(row, "row")
        if not -rows <= row < rows:
            raise ShapeMismatch(f"row {row}: the run has {rows} rows, 0 to {rows - 1}.")
        return row % rows

    def place(self, position: int, row: int = 0) -> int:
        """Return a position as an index from 0; negative ones count from the end of the row's real tokens."""
        row = self.row(row)
        inside = text_position(position, len(self.token_rows[row]))
        return inside + (0 if self.start is None else int(self.start[row]))

    def prompt(self, row: int) -> "Run":
        """Return the run of one prompt of several: its own tokens, logits and sites, without padding.

        Every analysis says of it what it says of the prompt alone. It is a view: nothing runs again.

        Args:
            row: Which, from 0; negative ones count from the last.

        Raises:
            ShapeMismatch: There is no such row, or of a padded row a site was read such that its own positions cannot
                be told from padding.
        """
        row = self.row(row)
        inputs = self.inputs
        if len(self.token_rows) == 1 and inputs.is_whole:
            return self
        alone = inputs.row(row, self.model)
        sites: dict[str, Labelled] = {}
        for name, site in self.sites.items():
            if "batch" not in site.axes:
                continue
            unknown = [axis for axis in site.axes if axis in ("pos", "query", "key") and axis not in site.rows]
            if unknown and not (site.coords.keys() >= set(unknown) or inputs.is_whole_in(row)):
                raise ShapeMismatch(
                    f'"{name}" was read in part or reduced, so which of its {" and ".join(unknown)} are padding of row '
                    f"{row} is not known.\n    Read the whole site."
                )
            sites[name] = site.select(batch=[row])
        own = inputs.output.columns(row)
        return dataclasses.replace(
            self,
            sites=sites,
            inputs=alone,
            logits=None if self.logits is None else self.logits[row : row + 1, own],
            output=None,
            bound=None if self.bound is None else self.bound.reading(alone.shown),
        )

    def aligned(self) -> "Run":
        """Return the run with padding on the right and no more of it than the longest row leaves, in all it holds.

        Raises:
            ShapeMismatch: Of rows padded on the left only a part of the positions was read of a site.
        """
        if self.inputs.is_whole:
            return self
        inputs = self.inputs.aligned()
        assert inputs.ids is not None, "what is padded has ids"
        padding, sites = self.inputs.output.padding, dict[str, Labelled]()
        for name, site in self.sites.items():
            own = [axis for axis in site.axes if axis in ("pos", "query", "key")]
            if self.start is not None and own:
                self._require_whole(name, site, own)
                values, rows = site.values, {name: [_padding_last(r) for r in of] for name, of in site.rows.items()}
                for axis in own:
                    values = padding.aligned(values, site.dim(axis))
                site = dataclasses.replace(site, values=values, rows=rows)
            # as all rows that there are, they bring no padding but each other's
            sites[name] = site.select(batch=slice(None)) if site.rows else site
        logits = None if self.logits is None else padding.aligned(self.logits)[:, : inputs.ids.shape[1]]
        return dataclasses.replace(self, sites=sites, inputs=inputs, logits=logits)

    def _require_whole(self, name: str, site: Labelled, own: Sequence[str]) -> None:
        assert self.ids is not None, "what is padded has ids"
        if site.axes[0] != "batch" or any(site.size(axis) != self.ids.shape[1] for axis in own):
            raise ShapeMismatch(
                f'"{name}" was read of rows padded on the left, and not whole: an analysis cannot tell which of '
                "its positions are real.\n    Read the whole site, or pad on the right."
            )

    def require_computed(self) -> None:
        """Raise `AnalysisUnavailable` if what an analysis would go by is NaN or overflowed: logits, or a site read."""
        if self.logits is not None:
            require_computed(self.logits, "logits")
        for name, site in self.sites.items():
            require_computed(site.values, name)

    def require(self, names: Iterable[str], analysis: str) -> None:
        """Raise `SiteNotRead`, with what to add to `read=`, unless all these sites were read."""
        missing = [name for name in names if name not in self.sites]
        if missing:
            carded = analysis in {card.name for card in cards()}
            whole = f"\n    The analysis stands for all it reads: read=[{analysis}]." if carded else ""
            raise SiteNotRead(f"{analysis} needs sites that this run did not read. Add to read=:\n    {missing}{whole}")

    def plot(self, *sites: str) -> Any:
        """Return a matplotlib figure of some sites or heads (`L1H6.pattern`); without names, of the patterns read.

        Raises:
            MissingExtra: matplotlib is not installed.
            SiteNotRead: A name was not read.
            ShapeMismatch: There is nothing to draw, or too much for one figure.
        """
        names = sites or tuple(name for name in self if Site.named(name).quantity == "pattern")
        trained = None if self.bound is None else self.bound.trained_length
        panels = [figures.Panel(name, self[name], trained_length=trained) for name in names]
        return figures.draw(panels, overview=not sites, notes=[str(note) for note in self.notes if note.meaning])

    def save(self, path: str | Path) -> Path:
        """Write sites, ids and logits as safetensors with the labels in its header; raises `SaveError`."""
        return write(path, self.to_safetensors())

    def to_safetensors(self) -> bytes:
        """Return the content of the file that `save` writes and `load` reads."""
        from safetensors.torch import save

        extra = {"ids": self.ids, "logits": self.logits, "source_ids": self.source_ids, "lengths": self.lengths}
        extra["start"] = self.start
        tensors = {f"run.{name}": value for name, value in extra.items() if value is not None}
        tensors |= {f"site.{name}": site.values for name, site in self.sites.items()}
        return save({k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()}, {"run": self._header()})

    @classmethod
    def load(cls, path: str | Path, model: Any = None) -> "Run":
        """Read what `save` wrote; analyses that look at weights need the model too.

        Raises:
            CheckpointError: The file is missing, damaged, or not a saved run.
        """
        import json

        from safetensors import SafetensorError

        try:
            with tensors_in(path) as file:
                header = json.loads((file.metadata() or {})["run"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            sites = {
                name: Labelled(tensors[f"site.{name}"], tuple(axes), *rest)
                for name, (axes, *rest) in header.pop("sites").items()
            }
            extra = {k.removeprefix("run."): v for k, v in tensors.items() if k.startswith("run.")}
            notes = tuple(Note.from_dict(note) for note in header.pop("notes"))
            said = header.pop("provenance")
            bound = None if said is None else Provenance.from_dict(said)
            padding = Padding(extra.pop("lengths", None), extra.pop("start", None))
            text, generated = header.pop("text"), header.pop("generated")
            logits, rows, of_source = extra.pop("logits", None), header.pop("token_rows"), header.pop("source_rows")
            output, source = Side(extra.pop("ids", None), padding, rows), None
            if of_source:
                source = Side(extra.pop("source_ids", None), tokens=of_source, text=text)
            else:
                output = dataclasses.replace(output, text=text)
            inputs = Inputs(output, source, generated=generated, notes=notes)
            found = cls(sites=sites, inputs=inputs, logits=logits, model=model, bound=bound)
            return dataclasses.replace(
                found, sites={name: found._with_rows(name, site) for name, site in sites.items()}
            )
        except (OSError, SafetensorError, KeyError, ValueError, TypeError) as error:
            raise CheckpointError(f'cannot read a run from "{path}": {error}') from error

    def _with_rows(self, name: str, site: Labelled) -> Labelled:
        """Return a site that was read whole with its positions named row by row, as they were before it was saved."""
        labels, rows = PositionLabels(self.inputs), dict[str, RowLabels]()
        for axis in site.axes:
            if axis in ("pos", "query", "key") and axis not in site.coords:
                name_positions(site, axis, labels.of(Site.named(name).reads_source(axis)), {}, rows)
        return dataclasses.replace(site, rows=rows)

    def _header(self) -> str:
        sites = {n: (s.axes, {a: list(c) for a, c in s.coords.items()}, s.of) for n, s in self.sites.items()}
        rows = {"token_rows": [list(r) for r in self.token_rows], "source_rows": [list(r) for r in self.source_rows]}
        notes = [note.to_dict() for note in self.notes]
        of = None if (said := self.provenance) is None else said.to_dict()
        told = {"text": self.text, "generated": self.generated, "notes": notes, "provenance": of}
        return json_text({"sites": sites} | told | rows)

    def __repr__(self) -> str:
        shown = " ".join(self.tokens[:8]) + (" …" if len(self.tokens) > 8 else "")
        return f"Run({shown!r}, {self._counted()}, {len(self.sites)} sites)"

    def _counted(self) -> str:
        """Return how much was read: tokens, or prompts and the tokens of the shortest and the longest."""
        counts = [len(row) for row in self.token_rows] or [0]
        tokens = f"{counts[0]} tokens" if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)} tokens"
        return tokens if len(counts) == 1 else f"the first of {len(counts)} prompts, {tokens}"

    def _repr_html_(self) -> str:
        cell = '<td style="padding:0 .8em 0 0;text-align:left">'
        prompts = "".join(
            "<p>" + " ".join(f'<code title="{i}">{escape(token)}</code>' for i, token in enumerate(row[:64])) + "</p>"
            for row in self.token_rows[:8]
        )
        rows = "".join(
            f"<tr>{cell}<code>{escape(name)}</code></td>{cell}{escape(repr(site))}</td></tr>"
            for name, site in list(self.sites.items())[:100]
        )
        more = f"<p>… and {len(self.sites) - 100} more sites</p>" if len(self.sites) > 100 else ""
        notes = "".join(f"<p>Note: {escape(str(note))}</p>" for note in self.notes)
        read = self._counted().removeprefix("the first of ")
        return f"<div><p><b>Run</b> of {read}:</p>{prompts}{notes}<table>{rows}</table>{more}</div>"


@checked
def run(
    model: ModuleLike,
    inputs: Any,
    target: TextOrIds | None = None,
    *,
    read: Iterable[str | Read | Callable[..., Any]] | str | Read | Callable[..., Any] = (),
    edit: Iterable[EditLike] | EditLike | Mapping[str, Callable[[Tensor], Tensor]] = (),
    specials: Specials = None,
    lengths: Any = None,
    mask: Any = None,
    allow_unknown: bool = False,
    grad: bool = False,
) -> Run:
    """Run a model once, reading and editing at named sites.

    The model runs in evaluation mode, in the types of its weights (no autocast reaches into it), and is put back as it
    was. A text gets the special tokens that its tokenizer puts around texts, and `notes` say which; ids are taken as
    they are. An encoder-decoder reads `inputs` with its encoder; its decoder reads `target`, or what it generates
    greedily when there is no target.

    Args:
        model: One of ours, or any module; then the sites are module boundaries (`encoder.layer.0.out`), or those that a
            spec names (`foreign`).
        inputs: A text, token ids (a list, or a tensor of one or two axes), a `Batch`, or a list of several texts or of
            rows of ids, lists or tensors, which are padded on the right; images, `batch channel row column` or one of
            them, of a model that reads these; for other modules a tensor, a tuple of arguments or a mapping of keyword
            arguments.
        target: Text or ids of the decoder, for an encoder-decoder.
        read: Site names, globs, short names (`pattern`, of all layers that have it), heads (`L1H6.pattern`), `Read` for
            a part or a reduced value, and analyses of one pass, which stand for what they read; see `Tape` for several
            reads of one site.
        edit: An edit or several, or pairs of a site and a plain function. Single positions are each row's own:
            `At(pos=-1)` is the last token of every row, however long.
        specials: Put special tokens around a text always (True) or never (False), or take those whose names the text
            holds and no others ("in-text"), see `Tokenizer.adding`; by default as the tokenizer was made or published.
        lengths: Real tokens in each row of ids, if they are padded on the right.
        mask: 1 for each real id and 0 for padding, on the right or on the left, in place of lengths. What a row gives
            at its real tokens is what it gives alone; values at padding mean nothing. A module that is not ours is told
            by its `attention_mask`. An encoder's text is laid out with padding on the right in any case.
        allow_unknown: Read a text of which more than half is outside the vocabulary, or is single bytes of characters
            that it learnt no token for; that is refused by default.
        grad: Keep the graph, so that gradients at sites can be taken.

    Raises:
        TextError: The text is empty, longer than the context, or mostly unknown, or the model has no tokenizer.
        TokenOutOfRange: An id is outside the vocabulary.
        UnknownSite: A read or an edit names a site the model does not have, or by a short name several of a layer.
        ShapeMismatch: A position that is read is padding in some row, or a row that is edited has no such position; in
            a `Batch`, columns are counted.

    Example:
        >>> run = gf.run(model, "to be or not to", read=["blocks.*.resid_post"])
        >>> run["blocks.0.resid_post"].axes
        ('batch', 'pos', 'd_model')
    """
    require_module(model, "run")
    if grad:
        require_gradients(model, "gf.run(…, grad=True)")
    view: Any = model if hasattr(model, "sites") else Foreign(model)
    tape = Tape(view, _sites(read, view), edit, grad=grad)
    with evaluating(model), torch.set_grad_enabled(grad), without_autocast():
        given = prepare(
            model, inputs, target, specials=specials, lengths=lengths, mask=mask, allow_unknown=allow_unknown
        )
        labels = PositionLabels(given)
        asked = [(tape.table[request.read.site], request.read.at) for request in tape.requests.values()]
        refuse_padding(given, labels, asked)
        for site, edits in tape.edits.items():
            tape.edits[site] = in_own_rows(given, labels, tape.table[site], edits)
        output = view(*given.args, **given.kwargs, tape=tape)
    return run_of_tape(model, given, tape, output)


def run_of_tape(model: ModuleLike, given: Inputs, tape: Tape, output: Any) -> Run:
    """Return what a pass left on its tape as a run.

    Args:
        model: That ran.
        given: What it read.
        tape: Reads and edits of the pass.
        output: What the model returned.

    Raises:
        SiteNotRead: The pass did not come by a site that was asked for.
    """
    tape.check_visited()
    ours = isinstance(model, Model)
    silent = isinstance(model, Model) and not model.predicts
    names, labels = getattr(parts_of(model), "coordinate_names", ()), PositionLabels(given)
    sites = {name: with_coordinates(tape[name], tape.requests.get(name), tape.table, labels, names) for name in tape}
    return Run(
        sites=sites,
        inputs=given,
        logits=None if silent else output_logits(output),
        output=None if ours and not silent else output,
        model=parts_of(model),
        bound=None if is_gathering() else Binding("run", model, given.shown),
        edited=frozenset(tape.edits),
    )


def _any_layer(name: str) -> str:
    """Return the glob of a site of one block in all of them, `blocks.*.attn.pattern`."""
    site = Site.named(name)
    return (
        name
        if site.layer is None
        else name.removesuffix(f"{site.layer}.{site.behind_block}") + f"*.{site.behind_block}"
    )


def _padding_last(labels: Sequence[Coordinate | None]) -> list[Coordinate | None]:
    return sorted(labels, key=lambda label: label is None)


def text_position(position: int, length: int) -> int:
    """Return a position of a text, from 0; negative ones count from its end. Raises `ShapeMismatch` for others."""
    position = one(position, "position")
    if not -length <= position < length:
        raise ShapeMismatch(f"position {position}: the text has {length} tokens.")
    return position % length


def _sites(
    read: Iterable[str | Read | Callable[..., Any]] | str | Read | Callable[..., Any], view: Any
) -> list[str | Read]:
    """Return what to read, with an analysis replaced by the sites it reads."""
    found: list[str | Read] = []
    for asked in [read] if isinstance(read, str) or not isinstance(read, Iterable) else read:
        if isinstance(asked, str | Read):
            found.append(asked)
        else:
            found += card_of(asked).reads(parts_of(view))
    return found


def output_logits(output: Any) -> Tensor | None:
    """Return the first tensor of what a model returned, or what it calls logits."""
    for candidate in (output, getattr(output, "logits", None), output[0] if isinstance(output, tuple) else None):
        if isinstance(candidate, Tensor):
            return candidate
    return None
