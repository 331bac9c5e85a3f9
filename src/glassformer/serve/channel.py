"""Requests that come as messages, each answered by the application that answers them over HTTP.

A widget's view has no address to ask at: it sends a message to the kernel, which is put to the application as a
request, and the answer goes back in parts, its bytes beside each.

    {"id": "7-1/3", "method": "GET", "path": "/api/v1/models", "headers": {}, "body": null}       asked
    {"id": "7-1/3", "isDropped": true}                                                  not wanted any more
    {"id": "7-1/3", "status": 200, "headers": {…}, "isLast": true}, [bytes]            answered, in one part or several
"""

import asyncio
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import cache
from typing import Any
from urllib.parse import unquote, urlsplit

from glassformer.serve.guards import App, Message

Part = dict[str, Any]
_HOST = "127.0.0.1"
_ROOT = "/api/"


class Channel:
    """Where messages of a widget's views come in.

    Args:
        app: What answers, as `application` returns it.
        token: What requests to it have to bring.
        send: Sends a part of an answer and its bytes to the views; called on another thread than `receive`.
    """

    def __init__(self, app: App, token: str, send: Callable[[Part, bytes], None]) -> None:
        self._app, self._token, self._send = app, token, send
        self._asked: dict[str, Future[None]] = {}

    def receive(self, message: Mapping[str, Any]) -> None:
        """Answer a message some time later, or leave what an earlier one asked for."""
        id = str(message.get("id", ""))
        if message.get("isDropped"):
            if (asked := self._asked.get(id)) is not None:
                asked.cancel()
            return
        if not id or not str(message.get("path", "")).startswith(_ROOT):
            return
        asked = self._asked[id] = asyncio.run_coroutine_threadsafe(self._answer(id, message), _loop())
        asked.add_done_callback(lambda _: self._asked.pop(id, None))

    def close(self) -> None:
        """Leave all that is asked for."""
        for asked in list(self._asked.values()):
            asked.cancel()

    async def _answer(self, id: str, message: Mapping[str, Any]) -> None:
        """Put a request to the application, and send what it says."""
        body, begun, left = (message.get("body") or "").encode(), Part(), asyncio.Event()
        given = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            if given:
                return given.pop()
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(told: Message) -> None:
            if told["type"] == "http.response.start":
                headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in told["headers"]}
                begun.update(status=told["status"], headers=headers)
                return
            self._send({"id": id, **begun, "isLast": not told.get("more_body", False)}, told.get("body", b""))
            begun.clear()

        # a task of its own: who leaves is told to the application, which ends its work
        answering = asyncio.ensure_future(self._app(self._scope(message), receive, send))
        try:
            await asyncio.shield(answering)
        except asyncio.CancelledError:
            left.set()
            raise

    def _scope(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Return what an application is told of a request: of HTTP, from this machine, with the token."""
        address = urlsplit(str(message["path"]))
        said = {"host": _HOST, "authorization": f"Bearer {self._token}"}
        asked = {str(name).lower(): str(value) for name, value in (message.get("headers") or {}).items()} | said
        headers = [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in asked.items()]
        return {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "root_path": "",
            "method": str(message.get("method", "GET")), "path": unquote(address.path),
            "raw_path": address.path.encode(), "query_string": address.query.encode(), "headers": headers,
            "server": (_HOST, 80), "client": (_HOST, 0),
        }  # fmt: skip


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of all channels, which runs on a thread of its own while the process does."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="requests of widgets", daemon=True).start()
    return loop
