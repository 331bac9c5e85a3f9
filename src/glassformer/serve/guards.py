"""Who may ask: a request passes if it comes to this machine by its own name, from this page or none, with the token.

The token stands in the address that the terminal prints. `GET /?token=…` puts it into a cookie and leads to the
address without it: a cookie goes with downloads and pictures as well as with what scripts ask, no script can read it
(HttpOnly), no other site can make a browser send it (SameSite=Strict), and it leaves the address bar before it is
copied from there. Programs send it as `Authorization: Bearer …`. Cookies are shared among the ports of a host, so its
name has the port.
"""

import hmac
import ipaddress
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from glassformer.errors import GlassformerError
from glassformer.files import json_text
from glassformer.serve.api import Fault

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LOOPBACK = ("127.0.0.1", "localhost", "::1")
# nothing from elsewhere, no frames, no forms, and nothing that stands in the page itself
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "x-frame-options": "DENY",
}


class Refused(GlassformerError, PermissionError):
    """A request that does not pass."""

    status = 403


class Unknown(Refused):
    """A request without the token."""

    status = 401


def is_loopback(host: str) -> bool:
    """Whether nobody but this machine reaches a host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Guarded:
    """An application that answers nobody else.

    Args:
        app: The application.
        token: What requests have to bring.
        host: The server listens on; beside it this machine's own names pass if that is a loopback address, and other
            addresses, but no other names, if it is not: a name can be made to lead here.
    """

    def __init__(self, app: App, token: str, host: str = "127.0.0.1") -> None:
        self.app, self.token, self.host = app, token, host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}

        async def sealed(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name for name, _ in message["headers"]}
                told = {**_HEADERS, "content-security-policy": POLICY, "cache-control": "no-store"}
                more = [(name.encode(), value.encode()) for name, value in told.items() if name.encode() not in own]
                message["headers"] = [*message["headers"], *more]
            await send(message)

        try:
            self._require_own_name(headers)
            self._require_own_page(headers)
            if scope["path"] == "/" and scope["method"] == "GET" and self._in_address(scope):
                await _answer(sealed, 303, b"", {"location": self._onward(scope), "set-cookie": self._cookie(headers)})
                return
            self._require_token(headers)
        except Refused as error:
            fault = Fault("Refused", str(error), "Open the address that the terminal printed.")
            body = json_text({"fault": fault.to_dict()}).encode()
            await _answer(sealed, error.status, body, {"content-type": "application/json"})
            return
        await self.app(scope, receive, sealed)

    def _require_own_name(self, headers: dict[str, str]) -> None:
        host = _name_in(headers.get("host", ""))
        known = (*LOOPBACK, self.host) if is_loopback(self.host) else (self.host,)
        if host in known or (not is_loopback(self.host) and _is_address(host)):
            return
        raise Refused(f'the request is for "{host[:80]}", and this server goes by {", ".join(known)}.')

    def _require_own_page(self, headers: dict[str, str]) -> None:
        origin, host = headers.get("origin"), headers.get("host", "")
        # a link that leads here from elsewhere opens nothing either
        elsewhere = headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
        if elsewhere or (origin is not None and _host_of(origin) != host.lower()):
            raise Refused("the request comes from a page of another site.")

    def _require_token(self, headers: dict[str, str]) -> None:
        kind, _, bearer = headers.get("authorization", "").partition(" ")
        given = [bearer.strip()] if kind.lower() == "bearer" else []
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(self._cookie_name(headers))
        except CookieError:
            cookie = None
        given += [] if cookie is None else [cookie.value]
        if not any(self._is_token(one) for one in given):
            raise Unknown("the request brings no token, or that of another server.")

    def _in_address(self, scope: Scope) -> bool:
        asked = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token", [])
        return any(self._is_token(one) for one in asked)

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "replace"), self.token.encode())

    def _onward(self, scope: Scope) -> str:
        """Return the address without the token."""
        asked = parse_qs(scope.get("query_string", b"").decode("latin-1"))
        left = urlencode({name: values for name, values in asked.items() if name != "token"}, doseq=True)
        return f"/?{left}" if left else "/"

    def _cookie(self, headers: dict[str, str]) -> str:
        return f"{self._cookie_name(headers)}={self.token}; Path=/; HttpOnly; SameSite=Strict"

    def _cookie_name(self, headers: dict[str, str]) -> str:
        port = headers.get("host", "").rpartition(":")[2]
        return f"glassformer-{port if port.isdecimal() else 80}"


def _host_of(origin: str) -> str:
    """Return host and port of an origin; nothing of what is none."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _name_in(host: str) -> str:
    """Return the name in a Host header, without its port."""
    name, colon, port = host.rpartition(":")
    if not colon or not port.isdecimal():
        name = host
    return name.strip("[]").lower()


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


async def _answer(send: Send, status: int, body: bytes, headers: dict[str, str]) -> None:
    told = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    told.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": told})
    await send({"type": "http.response.body", "body": body})
