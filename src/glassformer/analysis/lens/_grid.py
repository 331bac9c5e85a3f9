"""Logit lens over a grid: what the model would say if it stopped anywhere, at every place of the stream and position.

    lens = norm_final(x) W_U + b_U,    with the scale that x itself has;    with translators, of x + x M + c

Logits `site pos vocab` are never held together: positions are read in chunks under a byte budget, and each chunk is
reduced site by site to what was asked for.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer import figures
from glassformer.analysis._run import Run
from glassformer.analysis.components import entry_sites, stream_sites
from glassformer.analysis.lens._tuned import TunedLens
from glassformer.analysis.lens.read_out import read_logits
from glassformer.analysis.places import Answers, Places, Positions, place_labels, places, tokens_at
from glassformer.analysis.question import question
from glassformer.arguments import Count, Several
from glassformer.errors import UnknownSite, nearest
from glassformer.labelled import Coordinate, Labelled, Result
from glassformer.models import ModelLike, require_model
from glassformer.models.model import ANSWERS, LogitsOf
from glassformer.models.readable import readable_outputs
from glassformer.numerics.distributions import entropy_bits, kl_bits, rank

Measure = Literal["top", "answer", "entropy", "kl"]
MEASURES: tuple[Measure, ...] = ("top", "answer", "entropy", "kl")
# places beyond which a product with the unembedding gets no faster: fewer wait for its matrix to be read
WORTHWHILE = 128
Translate = Callable[[str, Float[Tensor, "n d_model"]], Float[Tensor, "n d_model"]]


@dataclasses.dataclass(frozen=True, eq=False)
class LensGrid(Result):
    """What the model would answer at every site, row and position, as far as that was asked for.

    Args:
        top: Ids of the likeliest tokens, likeliest first, `site batch pos k`.
        top_probability: Their probabilities, likewise.
        answers: Token ids followed through depth, `batch pos`.
        probability: Of the answers, `site batch pos`.
        rank: Of the answers, likewise; 1 is the likeliest.
        entropy_bits: `site batch pos`.
        kl_bits: Divergence of the last site's distribution from each one's, KL(last || site), `site batch pos`.
        first: Index of the first site whose likeliest token is the last site's, `batch pos`.
        settled: Index of the site from which on it stays the likeliest, `batch pos`.
        sites: The places of the stream, in the order of the forward pass.
        tuned: Whether streams went through translators first.
        words: Text of every id among `top`.
        logits_of: What the distributions are of: `next_token`, the `token` at the position itself (encoders), or a
            class of it (`token_class` or `patch_class`) or of the whole (`text_class` or `image_class`).
    """

    HEADLINE = ("probability", "entropy_bits", "kl_bits")

    top: Labelled | None
    top_probability: Labelled | None
    answers: Labelled | None
    probability: Labelled | None
    rank: Labelled | None
    entropy_bits: Labelled | None
    kl_bits: Labelled | None
    first: Labelled
    settled: Labelled
    sites: tuple[str, ...]
    tuned: bool = False
    words: Mapping[int, str] = dataclasses.field(default_factory=dict)
    logits_of: LogitsOf = "next_token"

    def panels(self, *names: str) -> list[figures.Panel]:
        """Panels that `plot` draws; by default maps over sites and positions, of each row of the batch by itself."""
        found = super().panels(*names)
        rows = self.first.size("batch")
        if names or rows == 1:
            return found
        return [
            panel._replace(name=f"{panel.name}, row {row}", value=panel.value.select(batch=row))
            for row in range(rows)
            for panel in found
        ]

    def _title(self) -> str:
        return f"{'Tuned' if self.tuned else 'Logit'} lens: {ANSWERS[self.logits_of]}"


def _wanted(model: ModelLike, sites: Sequence[str] | None = None, translators: TunedLens | None = None) -> list[str]:
    """Return what `lens_grid` reads with these options; of the embedding, tokens and positions."""
    every = stream_sites(model) if translators is None else translators.reads(model)
    entry, *added = entry_sites(model.output_embed)
    names = every if sites is None else list(sites)
    return [*names, *(added if entry in names else [])]


@question("What would the model say if it stopped at each place, at each position?", reads=_wanted)
def lens_grid(
    run: Any,
    text: Any = None,
    target: Any = None,
    *,
    answer: Answers = None,
    sites: Several[str] | None = None,
    positions: Positions = None,
    measures: Sequence[Measure] = MEASURES,
    k: Count = 5,
    translators: TunedLens | None = None,
    budget: int = 1 << 28,
) -> LensGrid:
    """Read the stream at many places and positions through the final norm and the unembedding.

    Args:
        run: A forward pass that read `[lens_grid]`, or the sites given; or a model.
        answer: Tokens to follow: one, one per row, or ids `batch pos`; each position's likeliest next token by default.
        sites: Places of the stream in the order of the forward pass; the last one is what the others are compared
            with. All by default; those that a tuned lens has translators for, and the last, if one is given.
        positions: One or several, negative ones counted from the end of each row's text; a tensor `batch place` gives
            every row its own. All by default; those of padding mean nothing.
        measures: What to compute. With `top` alone nothing but the k largest logits and the normaliser is taken from
            each distribution.
        k: How many of the likeliest tokens.
        translators: A `TunedLens` of this model; the plain logit lens by default.
        budget: Bytes that logits at work may take at once; it is exceeded only if those of one position do.

    Raises:
        SiteNotRead: The run lacks a site.
        UnknownSite: A site is no place of the stream that ends in the logits.
        AnalysisUnavailable: The model is not one of ours, or its weights are not at hand.

    Source: nostalgebraist 2020, "interpreting GPT: the logit lens".
    """
    model = run.model
    translate: Translate | None = None if translators is None else translators.translator(model)
    every = stream_sites(model) if translators is None else translators.reads(model)
    names = _checked(run, every if sites is None else sites)
    at = places(run, positions)
    asked = frozenset(measures)
    answers = None
    if "answer" in asked:
        answers = at.logits(run).argmax(-1) if answer is None else tokens_at(model, answer, at)
    shape = tuple(at.positions.shape)
    readings = _Readings(len(names), shape, k=min(k, model.config.n_outputs), asked=asked)
    flat = None if answers is None else answers.flatten()
    with torch.no_grad():
        for rows, logits in _chunks(run, names, at, translate, budget):
            readings.add(rows, logits, None if flat is None else flat[rows])
    placed, by_row = place_labels(run, at)
    coords: dict[str, Sequence[Coordinate]] = {"site": names, **placed}

    def grid(name: str, *more: str) -> Labelled | None:
        values = readings.found.get(name)
        return (
            None
            if values is None
            else Labelled(values.unflatten(1, shape), ("site", "batch", "pos", *more), coords, rows=by_row)
        )

    def mapped(values: Tensor) -> Labelled:
        return Labelled(values, ("batch", "pos"), placed, rows=by_row)

    matches = readings.same.unflatten(1, shape)
    # counted from the end: how long the likeliest token has been the last site's
    settled = len(names) - matches.flip(0).long().cumprod(0).sum(0)
    return LensGrid(
        top=grid("top", "k"),
        top_probability=grid("top_probability", "k"),
        answers=None if answers is None else mapped(answers),
        probability=grid("probability"),
        rank=grid("rank"),
        entropy_bits=grid("entropy_bits"),
        kl_bits=grid("kl_bits"),
        first=mapped(matches.long().argmax(0)),
        settled=mapped(settled),
        sites=tuple(names),
        tuned=translators is not None,
        words=_words(model, grid("top", "k")),
        logits_of=model.logits_of or "next_token",
    )


class _Readings:
    """Fills in what was asked for, chunk by chunk; axes `site n`, all rows and positions in one."""

    def __init__(self, n_sites: int, shape: tuple[int, ...], *, k: int, asked: frozenset[Measure]) -> None:
        self.n_sites, self.count, self.k, self.asked = n_sites, shape[0] * shape[1], k, asked
        self.found: dict[str, Tensor] = {}
        self.same = torch.zeros(n_sites, self.count, dtype=torch.bool)

    def add(self, rows: slice, logits: Iterator[Float[Tensor, "n vocab"]], answers: Int[Tensor, " n"] | None) -> None:
        """Take the logits of some rows at every site, the last site's first."""
        last, best = None, None
        more = bool(self.asked & {"answer", "entropy", "kl"})
        for i, of_site in zip(reversed(range(self.n_sites)), logits):
            if "top" in self.asked:
                largest, ids = of_site.topk(self.k, -1)
                self._put("top", i, rows, ids)
                # logits that no one reads again make room for their exponentials
                below = of_site - largest[:, :1] if more else of_site.sub_(largest[:, :1])
                share = (largest - largest[:, :1]).exp() / below.exp_().sum(-1, keepdim=True)
                self._put("top_probability", i, rows, share)
                likeliest = ids[:, 0]
            else:
                likeliest = of_site.argmax(-1)
            best = likeliest if best is None else best
            self.same[i, rows] = likeliest == best
            if more:
                log_probs = of_site.log_softmax(-1)
                last = log_probs if last is None else last
                self._measure(i, rows, of_site, log_probs, last, answers)

    def _measure(
        self, i: int, rows: slice, logits: Tensor, log_probs: Tensor, last: Tensor, answers: Tensor | None
    ) -> None:
        if answers is not None:
            self._put("probability", i, rows, log_probs.gather(-1, answers[:, None])[:, 0].exp())
            self._put("rank", i, rows, rank(logits, answers))
        if "entropy" in self.asked:
            self._put("entropy_bits", i, rows, entropy_bits(log_probs))
        if "kl" in self.asked:
            self._put("kl_bits", i, rows, kl_bits(last, log_probs))

    def _put(self, name: str, i: int, rows: slice, values: Tensor) -> None:
        if name not in self.found:
            self.found[name] = values.new_zeros(self.n_sites, self.count, *values.shape[1:])
        self.found[name][i, rows] = values


def _chunks(
    run: Run, names: Sequence[str], at: Places, translate: Translate | None, budget: int
) -> Iterator[tuple[slice, Iterator[Float[Tensor, "n vocab"]]]]:
    """Yield places a few at a time, and for each chunk the logits of every site, the last one first."""
    model = run.model
    wide = torch.float64 if model.unembed.stored.dtype == torch.float64 else torch.float32
    # the logits, their log-softmax and that of the last site, and as much again for what is computed from them
    per_place = 6 * model.config.n_outputs * torch.finfo(wide).bits // 8
    count, step = at.positions.numel(), max(budget // per_place, 1)

    def stream(name: str, rows: slice) -> Tensor:
        x = at.of_stream(stream_at(run, name)).flatten(0, 1)[rows]
        return x if translate is None else translate(name, x)

    def read_out(rows: slice) -> Iterator[Tensor]:
        n, order = rows.stop - rows.start, list(reversed(names))
        together = max(1, min(WORTHWHILE // n, budget // (per_place * n)))
        for first in range(0, len(order), together):
            x = torch.cat([stream(name, rows) for name in order[first : first + together]])
            yield from read_logits(model, x).to(wide).split(n)

    for start in range(0, count, step):
        rows = slice(start, min(start + step, count))
        yield rows, read_out(rows)


def stream_at(run: Run, name: str) -> Float[Tensor, "batch pos d_model"]:
    """Return the stream at a place; at the embedding of tokens, with its positions added."""
    entry, *added = entry_sites(require_model(run.model).output_embed)
    x = run[name].values.detach()
    return x + run[added[0]].values if name == entry and added else x


def _checked(run: Run, sites: Sequence[str]) -> list[str]:
    model = require_model(run.model)
    entry, *added = entry_sites(model.output_embed)
    known = [entry, *(site for block in model.output_stack.blocks for site in block.at_resid)]
    names = [site for site in sites if site not in added]
    for name in names:
        if name not in known:
            raise UnknownSite(
                f'lens_grid: "{name}" is no place of the stream that ends in the logits.{nearest(name, known)}'
            )
    run.require([*names, *(added if entry in names else [])], "lens_grid")
    return names


def _words(model: ModelLike, top: Labelled | None) -> dict[int, str]:
    if top is None:
        return {}
    real = top.is_real()
    ids = (top.values if real is None else top.values[real.expand(top.shape)]).unique()
    return dict(zip(ids.tolist(), readable_outputs(model, ids[None])[0]))
