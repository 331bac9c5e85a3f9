"""Serving: requests for text that come and go, read together step by step, their states in shared pages.

    each step    one token of every request that draws, then prompts as far as the step's budget goes
    no page      the newest request gives its pages back, and is read again when there is room

What a request draws is what `generate` draws from its prompt alone, whatever is read beside it and in whatever order
requests come: each has a generator of its own, and its state depends on nothing but its text.

Source: Yu et al. 2022, Orca; Kwon et al. 2023, Efficient memory management for large language model serving with
PagedAttention.
"""

from bisect import insort
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from glassformer.arguments import Count, checked
from glassformer.errors import AnalysisUnavailable, OutOfPages, TextError
from glassformer.models.decoder import Decoder
from glassformer.models.generate import (
    DRAW,
    Generation,
    outgrown_notes,
    room_for,
    stops_of,
)
from glassformer.models.model import ModelLike, require_model
from glassformer.models.paged_state import Fixed, Going, PagedState
from glassformer.models.pages import Pages, extend_digests
from glassformer.models.readable import decoded
from glassformer.models.reading import Inputs, read_opening
from glassformer.models.sampling import Sampling, row_generators, sampling_steps
from glassformer.provenance import Note, distinct


class Request:
    """One text that is being continued; `Serving.submit` makes it.

    Args:
        number: Its place in the order of arrival.
        prompt: The ids it begins with.
        sampling: How its tokens are chosen.
        max_new_tokens: How many there are at most.
        stop_ids: It ends when it draws one of these.
        notes: What must be known of its prompt.
    """

    def __init__(
        self, number: int, prompt: Sequence[int], sampling: Sampling, max_new_tokens: int, stop_ids: Sequence[int],
        notes: tuple[Note, ...] = (),
    ) -> None:  # fmt: skip
        self.number, self.prompt, self.sampling = number, tuple(prompt), sampling
        self.max_new_tokens, self.stop_ids, self.notes = max_new_tokens, frozenset(stop_ids), notes
        self.ids, self.log_probs = list(prompt), list[float]()
        self.generator = row_generators(sampling, 1)[0]
        # those of other requests that are the same but for the seed draw together
        self.settings = replace(sampling, seed=0)
        # its pages in order, how many of its tokens they hold, digests of the full ones, and the state's fixed part
        self.table, self.stored, self.digests = list[int](), 0, list[bytes]()
        self.fixed: Fixed = ()

    @property
    def tokens(self) -> tuple[int, ...]:
        """The ids drawn so far, the stop token included if it was reached."""
        return tuple(self.ids[len(self.prompt) :])

    @property
    def stopped(self) -> bool:
        """Whether it ended with a stop token."""
        return len(self.ids) > len(self.prompt) and self.ids[-1] in self.stop_ids

    @property
    def done(self) -> bool:
        """Whether nothing more is drawn."""
        return self.stopped or len(self.tokens) >= self.max_new_tokens

    @property
    def unread(self) -> int:
        """How many of its tokens the state lacks: the token drawn last at least."""
        return len(self.ids) - self.stored


class Serving:
    """Continues many prompts together; requests join and leave at every step.

    The model is used in the mode it is in, as by `generate`. A prompt that begins as another text does shares the full
    pages of that text, read or being read, unless a part of the model's state belongs to the end of a text alone
    (linear attention, recurrent layers): such parts each request has for itself.

    Args:
        model: A decoder.
        n_pages: Pages that there are for all texts together; memory is taken for all of them at once.
        page_size: Tokens on a page.
        budget: Tokens read in a step: first one of every request that draws, then of prompts.

    Raises:
        AnalysisUnavailable: A model that reads a source, or whose positions depend on how long the longest text is.

    Example:
        >>> serving = Serving(model, n_pages=64)
        >>> asked = [serving.submit(prompt, GREEDY, max_new_tokens=20) for prompt in prompts]
        >>> texts = [serving.generation(request).texts for request in serving.run()]
    """

    @checked
    def __init__(self, model: ModelLike, *, n_pages: Count = 256, page_size: Count = 16, budget: Count = 512) -> None:
        require_model(model, "serving")
        self.model = _served(model)
        self.budget, self.pages = budget, Pages(n_pages, page_size)
        self.state = PagedState(self.model, n_pages, page_size)
        # both in order of arrival
        self.running: list[Request] = []
        self.waiting: list[Request] = []
        self.n_submitted = 0

    @property
    def held_bytes(self) -> int:
        """Bytes of the pages that texts hold, and of the fixed parts of their states."""
        fixed = sum(part.nbytes for request in self.running for part in request.fixed)
        return self.pages.n_held * self.state.page_bytes + fixed

    @checked
    def submit(
        self,
        prompt: str | Sequence[int] | Tensor | Inputs,
        sampling: Sampling = DRAW,
        *,
        max_new_tokens: int | None = None,
        stop_ids: Sequence[int] | None = None,
    ) -> Request:
        """Ask for a continuation; the next step may begin to read it.

        Args:
            prompt: A text, or token ids.
            sampling: How tokens are chosen.
            max_new_tokens: Stop after this many; by default 64, as far as the context has room.
            stop_ids: Stop at one of these; by default at the model's `stops`.

        Raises:
            ConfigError, TextError, TokenOutOfRange, ShapeMismatch: As `generate`.
            OutOfPages: The text with its new tokens fills more pages than there are.
        """
        inputs = read_opening(self.model, prompt)
        if len(inputs.token_rows) > 1:
            raise TextError(f"a request is one prompt, found {len(inputs.token_rows)} rows; submit each by itself.")
        [row] = inputs.args[0].tolist()
        stops, notes = stops_of(self.model, stop_ids), distinct(inputs.warnings, self.model.generation.notes(sampling))
        request = self._made(row, sampling, max_new_tokens, tuple(stops), notes)
        self.waiting.append(request)
        return request

    @checked
    def fork(self, request: Request, sampling: Sampling = DRAW, *, max_new_tokens: int | None = None) -> Request:
        """Ask for another continuation of a text as it is now; what is read of it already, both have.

        Full pages are shared; the last one is copied when one of the two goes on writing it.
        """
        new = self._made(request.ids, sampling, max_new_tokens, tuple(request.stop_ids), request.notes)
        new.table, new.stored = [self.pages.share(page) for page in request.table], request.stored
        new.digests, new.fixed = [*request.digests], request.fixed
        (self.running if new.table else self.waiting).append(new)
        return new

    def cancel(self, request: Request) -> None:
        """Let a request go, with what it has drawn so far."""
        if request in self.waiting:
            self.waiting.remove(request)
        if request in self.running:
            self._leave(request)

    def step(self) -> tuple[Request, ...]:
        """Read one budget of tokens, and draw behind every text that is read whole; return those that are done."""
        left, logits = self.budget, dict[Request, Tensor]()
        # again while there is budget: what was just read may be the beginning that the next prompt waits for
        while plan := self._planned(left):
            left -= sum(plan.values())
            logits |= self._read(plan)
        logits = {request: last for request, last in logits.items() if not request.unread}
        self._draw(logits)
        done = tuple(request for request in logits if request.done)
        for request in done:
            self._leave(request)
        return done

    def run(self) -> Iterator[Request]:
        """Step until nothing is left to do, yielding requests as they are done; more may be submitted meanwhile."""
        while self.running or self.waiting:
            yield from self.step()

    def generation(self, request: Request) -> Generation:
        """Return what a request has drawn so far, as `generate` returns a batch of one row."""
        tokens, tokenizer = request.tokens, self.model.tokenizer
        grown = outgrown_notes(self.model, [(len(request.prompt), len(tokens) - 1)])
        found = Generation(
            (tokens,), (tuple(request.log_probs),), (request.stopped,), distinct(request.notes, grown),
            (tuple(request.ids),),
        )  # fmt: skip
        return found if tokenizer is None else replace(found, texts=(decoded(tokenizer, found.trimmed[0]),))

    def _made(
        self, ids: Sequence[int], sampling: Sampling, asked: int | None, stops: Sequence[int], notes: tuple[Note, ...]
    ) -> Request:
        new, pages = room_for(self.model, len(ids), asked), self.pages
        # the last token drawn is never read
        needed = pages.needed(len(ids) + new - 1)
        if needed > pages.n:
            fits = pages.n * pages.size - len(ids) + 1
            advice = f", or ask for at most {fits} new tokens" if fits > 0 else ""
            raise OutOfPages(
                f"{len(ids)} tokens and {new} new ones fill {needed} pages of {pages.size}, and there are {pages.n}.\n"
                f"    Make more: Serving(model, n_pages={needed}){advice}."
            )
        request = Request(self.n_submitted, ids, sampling, new, stops, notes)
        self.n_submitted += 1
        return request

    def _planned(self, budget: int) -> dict[Request, int]:
        """Return how many tokens of which requests are read next, with pages at hand to write them to."""
        plan: dict[Request, int] = {}
        left = budget
        # those that draw, then prompts; both in order of arrival
        for request in sorted(self.running, key=lambda request: (request.unread > 1, request.number)):
            # it may have had to go for one before it
            n = min(request.unread, left) if request in self.running else 0
            if n and self._has_room(request, n, plan):
                plan[request] = n
                left = budget - sum(plan.values())
        while left and self.waiting and self._admit(self.waiting[0]):
            request = self.waiting.pop(0)
            insort(self.running, request, key=lambda request: request.number)
            plan[request] = min(request.unread, left)
            left -= plan[request]
            self._extend(request, plan[request])
        return plan

    def _read(self, plan: dict[Request, int]) -> dict[Request, Tensor]:
        """Read so many tokens of each request; return the logits behind those that are read whole."""
        groups: dict[int, list[Request]] = defaultdict(list)
        for request, n in plan.items():
            # those that begin here may be of any lengths
            groups[n if request.stored else 0].append(request)
        found: dict[Request, Tensor] = {}
        for group in groups.values():
            texts = [Going(r.table, r.stored, r.ids[r.stored : r.stored + plan[r]], r.fixed) for r in group]
            read = self.state.read(texts)
            for request, last, fixed in zip(group, read.logits, read.fixed):
                request.fixed, request.stored = fixed, request.stored + plan[request]
                self._name_full(request)
                if not request.unread:
                    found[request] = last
        return found

    def _has_room(self, request: Request, n: int, plan: dict[Request, int]) -> bool:
        """Give a request pages for its next tokens; the newest ones go for it, or itself if it is the newest."""
        while self._lacking(request, n) > len(self.pages.free):
            newest = self.running[-1]
            self._pre_empt(newest)
            plan.pop(newest, None)
            if newest is request:
                return False
        self._extend(request, n)
        return True

    def _lacking(self, request: Request, n: int) -> int:
        return self.pages.needed(request.stored + n) - len(request.table) + self._is_shared(request)

    def _is_shared(self, request: Request) -> bool:
        """Whether another text holds the page that a request is about to write."""
        page = request.stored // self.pages.size
        return page < len(request.table) and self.pages.references[request.table[page]] > 1

    def _extend(self, request: Request, n: int) -> None:
        """Take pages for the next tokens of a request, and a copy of the one it is to write if that is shared."""
        table, pages = request.table, self.pages
        if self._is_shared(request):
            page = request.stored // pages.size
            own = pages.take()
            self.state.copy(table[page], own)
            pages.release(table[page])
            table[page] = own
        while len(table) < pages.needed(request.stored + n):
            table.append(pages.take())

    def _admit(self, request: Request) -> bool:
        """Give a waiting request the pages that hold its beginning, if there is room for the rest of its text."""
        pages, shared = self.pages, list[int]()
        if self.state.shareable:
            extend_digests(request.digests, request.ids, pages.size)
            # one token at least is read, for the logits behind it
            sharable = request.digests[: (len(request.ids) - 1) // pages.size]
            shared = pages.matching(sharable)
            if self._is_being_read(sharable[len(shared) :][:1]):
                return False
        free = len(pages.free) - sum(not pages.references[page] for page in shared)
        if pages.needed(len(request.ids)) - len(shared) > free:
            return False
        request.table, request.stored = [pages.share(page) for page in shared], len(shared) * pages.size
        request.fixed = self.state.empty
        return True

    def _is_being_read(self, digests: list[bytes]) -> bool:
        """Whether a page like that is about to be written for a prompt before this one."""
        return any(
            digest in other.digests[other.stored // self.pages.size :] for digest in digests for other in self.running
        )

    def _name_full(self, request: Request) -> None:
        """Let the full pages of a text be found by others."""
        if not self.state.shareable:
            return
        extend_digests(request.digests, request.ids, self.pages.size)
        for page, digest in zip(request.table[: request.stored // self.pages.size], request.digests):
            self.pages.name(page, digest)

    def _draw(self, logits: dict[Request, Tensor]) -> None:
        """Let each request draw its next token; those with the same settings do so together."""
        alike: dict[Sampling, list[Request]] = defaultdict(list)
        for request in logits:
            alike[request.settings].append(request)
        for sampling, requests in alike.items():
            rows = torch.stack([logits[request] for request in requests])
            seen = _seen(requests, rows) if sampling.repetition_penalty != 1 else None
            generators = [request.generator for request in requests]
            out = self._ruled_out(requests, rows)
            drawn = sampling_steps(rows, sampling, seen=seen, ruled_out=out, generators=generators).tokens
            chosen = rows.gather(-1, drawn[:, None]).squeeze(-1) - rows.logsumexp(-1)
            for request, id, log_prob in zip(requests, drawn.tolist(), chosen.tolist()):
                request.ids.append(id)
                request.log_probs.append(log_prob)

    def _ruled_out(self, requests: Sequence[Request], logits: Tensor) -> Tensor | None:
        """Return which tokens the model's rules rule out behind each text; None where there are no rules."""
        rules = self.model.generation
        if not rules.rule_out:
            return None
        made = [len(request.tokens) for request in requests]
        left = [request.max_new_tokens - drawn for request, drawn in zip(requests, made)]
        texts = [request.ids for request in requests]
        return rules.ruled_out(texts, made, left, logits.shape[-1]).to(logits.device)

    def _leave(self, request: Request) -> None:
        self.running.remove(request)
        for page in reversed(request.table):
            self.pages.release(page)
        request.table, request.stored, request.fixed = [], 0, ()

    def _pre_empt(self, request: Request) -> None:
        """Take the pages of a request; what it has drawn is read again with its prompt."""
        self._leave(request)
        insort(self.waiting, request, key=lambda request: request.number)


def _served(model: Any) -> Decoder:
    """Return the model if its states can lie in pages, or raise `AnalysisUnavailable`."""
    if model.predicts_next:
        model.require_generates()
    if model.reads_pairs or not model.generates:
        raise AnalysisUnavailable(
            f"serving reads one text per request, and this model is an {model.config.kind}: "
            + ("it does not write." if model.source is None else "generate(model, prompts, source=…) gives sources.")
        )
    model.require_one_vocabulary("serving")
    for part in model.stack.parts():
        positions = getattr(part, "positions", None)
        if positions is not None and positions.by_length:
            raise AnalysisUnavailable(
                f'serving: positions "{positions.config.kind}" of {part.path} mean something else in a longer text, '
                "and texts of unequal length are read together.\n"
                "    Use generate(model, [prompt]) for one text at a time."
            )
    return model


def _seen(requests: Sequence[Request], logits: Tensor) -> Tensor:
    """Return which tokens occur in each text so far."""
    seen = torch.zeros(logits.shape, dtype=torch.bool, device=logits.device)
    for row, request in zip(seen, requests):
        row[torch.tensor(request.ids, device=logits.device)] = True
    return seen
