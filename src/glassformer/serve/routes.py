"""The application: addresses, and the thin line from each to a library call.

    GET  /api/v1/models                                       POST /api/v1/models/load         POST /api/v1/tokenize
    POST /api/v1/runs                                         GET  /api/v1/runs/{run}          GET  …/{run}/export
    GET  /api/v1/runs/{run}/{question}[/{head}[/{index}]]     GET  /api/v1/models/{model}/{question}[/{head}]
    POST /api/v1/sweeps                                       POST /api/v1/generate            GET  /api/v1/schema.json

What computes runs on the thread of its model; the event loop waits for nothing. An answer to a question about a run
never changes, so browsers may keep it. A page that names a lane (`Glassformer-Lane: page/lane`) has the latest of its
requests there answered, and older ones dropped.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, TypeVar, get_args

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from glassformer.analysis import Run
from glassformer.config import Config
from glassformer.errors import AnalysisUnavailable, ConfigError, GlassformerError, MissingExtra, nearest, shortened
from glassformer.files import json_text
from glassformer.models.reading import Side
from glassformer.render.page import explorer_files
from glassformer.serve import api
from glassformer.serve.answers import Answer
from glassformer.serve.guards import Guarded
from glassformer.serve.questions import QUESTIONS, Question, exported, of_both
from glassformer.serve.runs import NotFound, ServedModel, ServedRun, Store, TooLarge, token_cards
from glassformer.serve.schema import schema
from glassformer.serve.streams import aimed, donated, swept, written
from glassformer.serve.worker import Busy, Lanes, Superseded, Worker
from glassformer.words import Language, language, speaking

T = TypeVar("T")
Endpoint = Callable[[Request], Awaitable[Response]]
LANE = "glassformer-lane"
_KEPT = {"cache-control": "private, max-age=31536000, immutable"}
_ROOT = f"/api/{api.VERSION}"
_MEDIA = {"html": "text/html", "js": "text/javascript", "css": "text/css"}
_log = logging.getLogger(__name__)
# the most specific first
_STATUS: tuple[tuple[type[BaseException], int], ...] = (
    (NotFound, 404), (TooLarge, 413), (Superseded, 409), (Busy, 503), (MissingExtra, 501), (AnalysisUnavailable, 422),
    (GlassformerError, 400),
)  # fmt: skip


class _Gone(Exception):
    """Whoever asked has left."""


class _Application:
    """What answers requests about the models and runs of a store."""

    def __init__(self, store: Store) -> None:
        self.store, self.lanes = store, Lanes()

    def routes(self) -> list[Route]:
        found = [
            Route("/", self.file),
            *(Route(f"/{name}", self.file) for name in ("explorer.js", "explorer.css")),
            Route(f"{_ROOT}/schema.json", self.schema),
            Route(f"{_ROOT}/models", self.models),
            Route(f"{_ROOT}/models/load", self.load, methods=["POST"]),
            Route(f"{_ROOT}/tokenize", self.tokenize, methods=["POST"]),
            Route(f"{_ROOT}/runs", self.make_run, methods=["POST"]),
            Route(f"{_ROOT}/runs/{{run}}", self.run_card),
            Route(f"{_ROOT}/runs/{{run}}/export", self.export),
            Route(f"{_ROOT}/runs/{{run}}/{{question}}", self.of_run),
            Route(f"{_ROOT}/runs/{{run}}/{{question}}/{{head}}", self.of_run),
            Route(f"{_ROOT}/runs/{{run}}/{{question}}/{{head}}/{{index}}", self.of_run),
            Route(f"{_ROOT}/models/{{model}}/{{question}}", self.of_model),
            Route(f"{_ROOT}/models/{{model}}/{{question}}/{{head}}", self.of_model),
            Route(f"{_ROOT}/sweeps", self.sweep, methods=["POST"]),
            Route(f"{_ROOT}/generate", self.generate, methods=["POST"]),
        ]
        return [Route(one.path, self._in_turn(one.endpoint), methods=sorted(one.methods or ())) for one in found]

    # ------------------------------------------------------------------------------------------------ facts

    async def file(self, request: Request) -> Response:
        name = request.url.path.lstrip("/") or "index.html"
        with speaking(_language(request)):
            files = explorer_files()
        digest = request.query_params.get("digest")
        # asked for as the page of now does
        headers = _KEPT if digest and f'digest={digest}"' in files["index.html"] else None
        return Response(files[name], media_type=_MEDIA[name.rpartition(".")[2]], headers=headers)

    async def schema(self, request: Request) -> Response:
        return _json(schema())

    async def models(self, request: Request) -> Response:
        cards = await asyncio.to_thread(lambda: [served.card.to_dict() for served in self.store.models.values()])
        return _json(cards)

    async def load(self, request: Request) -> Response:
        spec = await self._body(request, api.LoadSpec)
        served = self.store.model(spec.model)
        return _json(await self._on(request, served.worker, lambda: (served.model, served.card.to_dict())[1]))

    async def tokenize(self, request: Request) -> Response:
        spec = await self._body(request, api.TokenizeSpec)
        self.store.limits.require("text", len(spec.text), "characters of the text")
        served = self.store.model(spec.model)
        if served.loaded is None:
            await self._on(request, served.worker, lambda: served.model)
        # on a thread of its own: it waits for no pass
        return _json([card.to_dict() for card in await asyncio.to_thread(_tokens, served, spec)])

    # ------------------------------------------------------------------------------------------------ runs

    async def make_run(self, request: Request) -> Response:
        spec = await self._body(request, api.RunSpec)
        worker, lent = self.store.model(spec.model).worker, dict[str, Run]()
        for id, (lender, sites) in self.store.lenders(spec).items():
            lent[id] = await self._on(request, lender.served.worker, lambda of=lender, sites=sites: of.read(sites))
        return _json(await self._on(request, worker, lambda: self.store.made(spec, lent).card.to_dict()))

    async def run_card(self, request: Request) -> Response:
        run = self._run(request)
        return _json(await self._on(request, run.served.worker, lambda: run.card.to_dict()))

    async def of_run(self, request: Request) -> Response:
        run, question = self._run(request), _question(request, ("run", "head", "row"))
        view, where = api.from_query(question.view, request.query_params), _where(request, question)
        other, theirs = None if view.minus is None else self.store.run(view.minus), None
        if other is not None:
            view = await self._on(request, run.served.worker, lambda: of_both(run, other, view))
            theirs = await self._on(request, other.served.worker, lambda: question.answer(other, *where, view))

        def answered() -> Answer:
            answer = question.answer(run, *where, view)
            return answer if theirs is None else answer.less(theirs)

        # of the same run it is the same for ever
        return await self._sent(request, run.served.worker, answered, view, _KEPT)

    async def export(self, request: Request) -> Response:
        run, view = self._run(request), api.from_query(api.ExportView, request.query_params)
        content, media, ending = await self._on(
            request, run.served.worker, lambda: exported(run, view, self.store.limits)
        )
        name = f"{run.served.id}-{run.id[:8]}.{ending}"
        return Response(content, media_type=media, headers={"content-disposition": f'attachment; filename="{name}"'})

    async def of_model(self, request: Request) -> Response:
        served = self.store.model(request.path_params["model"])
        question = _question(request, ("model", "head of a model"))
        view, where = api.from_query(question.view, request.query_params), _where(request, question)
        if view.minus is not None:
            raise ConfigError("minus is the id of a run, and this question is asked of weights: leave it out.")
        return await self._sent(request, served.worker, lambda: question.answer(served, *where, view), view)

    # ------------------------------------------------------------------------------------------------ streams

    async def sweep(self, request: Request) -> Response:
        spec = await self._body(request, api.SweepSpec)
        run = self.store.run(spec.run)
        spec, donor = await self._on(request, run.served.worker, lambda: aimed(run, spec)), None
        if spec.donor is not None:
            lender = self.store.run(spec.donor)
            donor = await self._on(request, lender.served.worker, lambda: donated(lender, run, spec))
        return await self._lines(run, lambda: swept(run, donor, spec, self.store.limits))

    async def generate(self, request: Request) -> Response:
        spec = await self._body(request, api.GenerateSpec)
        run = self.store.run(spec.run)
        return await self._lines(run, lambda: written(run, spec, self.store.limits))

    async def _lines(self, run: ServedRun, made: Callable[[], Iterator[dict[str, Any]]]) -> Response:
        """Return lines of JSON, one for each step; what goes wrong before the first is an answer of its own."""
        steps = run.served.worker.steps(made)
        first = await anext(steps, None)

        async def lines() -> AsyncIterator[str]:
            try:
                if first is not None:
                    yield _line(first)
                async for step in steps:
                    yield _line(step)
            except (GlassformerError, RuntimeError) as error:
                yield _line({"fault": _fault(error)[1].to_dict()})
            finally:
                await steps.aclose()
                self.store.fit()

        return StreamingResponse(lines(), media_type="application/x-ndjson")

    # ------------------------------------------------------------------------------------------------ ways there

    def _in_turn(self, answer: Endpoint) -> Endpoint:
        """Return what answers a request until a later one of its lane comes."""

        async def answered(request: Request) -> Response:
            with self.lanes.turn(request.headers.get(LANE, "")[:200]) as turn:
                request.state.turn = turn
                return await answer(request)

        return answered

    def _run(self, request: Request) -> ServedRun:
        return self.store.run(request.path_params["run"])

    async def _body(self, request: Request, kind: type[Config]) -> Any:
        """Return what the body of a request asks for."""
        media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media != "application/json":
            raise ConfigError(f'a request has a body of JSON (Content-Type: application/json); found "{media[:80]}".')
        content = bytearray()
        async for piece in request.stream():
            content += piece
            self.store.limits.require("body", len(content), "bytes of the request")
        try:
            data = json.loads(bytes(content))
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"the body of the request is not JSON: {error}.") from error
        return kind.from_dict(data)

    async def _on(self, request: Request, worker: Worker, work: Callable[[], T]) -> T:
        """Return what some work comes to on a worker's thread; who asked and left is not worked for."""

        def done() -> T:
            try:
                return work()
            finally:
                self.store.fit()

        asked = asyncio.ensure_future(worker.ask(done, turn=request.state.turn))
        left = asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait({asked, left}, return_when=asyncio.FIRST_COMPLETED)
            if not asked.done():
                raise _Gone
            return asked.result()
        finally:
            left.cancel()
            asked.cancel()
            # nobody is left to be told
            asked.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _sent(
        self,
        request: Request,
        worker: Worker,
        answered: Callable[[], Answer],
        view: api.View,
        headers: dict[str, str] | None = None,
    ) -> Response:
        # in one go with what finds it: work that came later would be done between the two
        content, media = await self._on(request, worker, lambda: answered().sent(view, self.store.limits))
        return Response(content, media_type=media, headers=headers)


def application(store: Store, token: str, host: str = "127.0.0.1") -> Guarded:
    """Return the ASGI application of a server.

    Args:
        store: Models and runs.
        token: What every request has to bring.
        host: That the server listens on.
    """
    own = _Application(store)
    app = Starlette(routes=own.routes(), exception_handlers={Exception: _unexpected, HTTPException: _unknown})
    app.router.redirect_slashes = False
    for kind in (GlassformerError, RuntimeError, MemoryError, _Gone, ClientDisconnect):
        app.add_exception_handler(kind, _refused)
    return Guarded(app, token, host)


def _language(request: Request) -> Language:
    """Return the language of a page: as its address says, or as the browser prefers, or as the terminal speaks."""
    asked: Any = request.query_params.get("lang") or request.headers.get("accept-language", "")[:2].lower()
    return asked if asked in get_args(Language) else language()


def _question(request: Request, of: tuple[str, ...]) -> Question:
    name, known = request.path_params["question"], [n for n, one in QUESTIONS.items() if one.of in of]
    if name not in known:
        raise NotFound(f'no question "{name[:80]}" is asked here.{nearest(name, known)} Questions: {", ".join(known)}.')
    return QUESTIONS[name]


def _where(request: Request, question: Question) -> list[Any]:
    """Return the head and the position that an address names, as far as the question is asked of those."""
    parts = [request.path_params[name] for name in ("head", "index") if name in request.path_params]
    needed = {"run": 0, "model": 0, "head": 1, "head of a model": 1, "row": 2}[question.of]
    if len(parts) != needed:
        shape = "/".join(("", "{head}", "{position}")[: needed + 1])
        raise NotFound(f"this question is asked of …/{request.path_params['question']}{shape}.")
    if needed == 2:
        try:
            return [parts[0], int(parts[1][:20])]
        except ValueError as error:
            raise ConfigError(f'a position is a whole number; found "{parts[1][:40]}".') from error
    return parts


def _tokens(served: ServedModel, spec: api.TokenizeSpec) -> tuple[api.TokenCard, ...]:
    model, of_source = served.model, spec.side == "source" and served.model.reads_pairs
    if spec.text == "":
        return ()
    # what is odd about tokens is marked on them
    said: dict[str, Any] = {"specials": spec.specials, "allow_unknown": True}
    if of_source:
        given = model.read([model.start or (0,)], source=spec.text, **said)
    else:
        given = model.read(spec.text, source=[[0]] if model.reads_pairs else None, **said)
    side: Side | None = given.source if of_source else given.output
    return () if side is None else token_cards(model, side, of_source)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _json(data: Any, status: int = 200) -> Response:
    return Response(json_text(data, ascii_only=False), status, media_type="application/json")


def _line(data: Any) -> str:
    return json_text(data, ascii_only=False) + "\n"


def _fault(error: BaseException) -> tuple[int, api.Fault]:
    """Return the status and the words for what went wrong."""
    status = next((code for kind, code in _STATUS if isinstance(error, kind)), 507)
    if status == 507:
        if not _lacks_memory(error):
            raise error
        message = "not enough memory for what was asked. Ask for less at once: a shorter text, a smaller picture."
        return status, api.Fault("OutOfMemory", message)
    message, _, hint = shortened(str(error)).partition("\n")
    return status, api.Fault(type(error).__name__, message, " ".join(hint.split()))


def _lacks_memory(error: BaseException) -> bool:
    words = ("DefaultCPUAllocator", "Storage size calculation overflowed", "out of memory")
    return isinstance(error, MemoryError) or any(one in str(error) for one in words)


async def _refused(request: Request, error: Exception) -> Response:
    if isinstance(error, _Gone | ClientDisconnect):
        return Response(status_code=499)
    try:
        status, fault = _fault(error)
    except RuntimeError:
        return await _unexpected(request, error)
    return _json({"fault": fault.to_dict()}, status)


async def _unknown(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    fault = api.Fault(
        "NoSuchAddress", f"{error.detail}: {request.method} {request.url.path[:200]}", f"See {_ROOT}/schema.json."
    )
    return _json({"fault": fault.to_dict()}, error.status_code)


async def _unexpected(request: Request, error: Exception) -> Response:
    _log.error("%s %s", request.method, request.url.path, exc_info=error)
    fault = api.Fault("Unexpected", f"{type(error).__name__}: a mistake of this server. Its log has more.")
    return _json({"fault": fault.to_dict()}, 500)
