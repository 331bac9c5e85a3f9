"""A hub on the loopback address that answers as the real one does: redirects, digests, tokens, ranges, typed refusals.

with hub_stand_in() as hub:
    hub.publish("org/name", {"config.json": b"…", "model.safetensors": b"…"}, revision="main")
    hub.endpoint, hub.asked
"""

import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

# larger files lie elsewhere, and are redirected to
LARGE = 4096
_REPOSITORY = r"(?P<name>[\w.-]+/[\w.-]+)"


@dataclass
class Hub:
    """What the stand-in holds and was asked.

    Args:
        endpoint: Its address.
        storage: Address of where large files lie: another host to a client, which gets no token.
        commits: Files by path, by commit, by repository.
        revisions: Commits by branch or tag, by repository.
        tokens: Tokens that open a private or gated repository, by repository.
        gated: Repositories whose files, not whose names, need a token.
        moved: New names of repositories.
        asked: Method, path and headers of each request.
        breaks: How often the next answers that hold this file's content break off half-way.
        refuses: Status that is answered instead of a file's content, or of what a repository holds, by either's name.
    """

    endpoint: str = ""
    storage: str = ""
    commits: dict[str, dict[str, dict[str, bytes]]] = field(default_factory=dict)
    revisions: dict[str, dict[str, str]] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    moved: dict[str, str] = field(default_factory=dict)
    asked: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    breaks: dict[str, int] = field(default_factory=dict)
    refuses: dict[str, int] = field(default_factory=dict)

    def publish(self, name: str, files: Mapping[str, bytes], revision: str = "main") -> str:
        """Add a commit to a repository and let a branch be it."""
        commit = hashlib.sha1(repr((name, revision, sorted(files.items()))).encode()).hexdigest()
        self.commits.setdefault(name, {})[commit] = dict(files)
        self.revisions.setdefault(name, {})[revision] = commit
        return commit

    def downloads(self) -> list[tuple[str, dict[str, str]]]:
        """Return the requests for content, with their headers."""
        return [(path, headers) for method, path, headers in self.asked if method == "GET" and "/api/" not in path]


class _Refusal(Exception):
    def __init__(self, status: int, code: str) -> None:
        self.status, self.code = status, code


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = urlsplit(self.path).path
        self.hub.asked.append((self.command, path, {name.lower(): value for name, value in self.headers.items()}))
        try:
            if match := re.fullmatch(rf"/api/models/{_REPOSITORY}(/revision/(?P<revision>.+))?", path):
                self._info(match["name"], unquote(match["revision"] or "main"))
            elif match := re.fullmatch(rf"/api/models/{_REPOSITORY}/tree/(?P<revision>[^/]+)/?", path):
                self._tree(match["name"], unquote(match["revision"]))
            elif match := re.fullmatch(rf"/{_REPOSITORY}/resolve/(?P<revision>[^/]+)/(?P<file>.+)", path):
                self._resolve(match["name"], unquote(match["revision"]), unquote(match["file"]))
            elif match := re.fullmatch(rf"/stored/{_REPOSITORY}/(?P<revision>[^/]+)/(?P<file>.+)", path):
                self._content(match["file"], self.hub.commits[match["name"]][match["revision"]][match["file"]], {})
            else:
                raise _Refusal(404, "EntryNotFound")
        except _Refusal as refusal:
            self._send(refusal.status, b"", {"X-Error-Code": refusal.code, "X-Error-Message": "refused"})

    def _commit(self, name: str, revision: str, *, files: bool) -> str:
        if name in self.hub.moved:
            raise _Refusal(404, "RepoNotFound")
        wanted = self.hub.tokens.get(name)
        allowed = wanted is None or self.headers.get("Authorization") == f"Bearer {wanted}"
        if name not in self.hub.commits or (not allowed and name not in self.hub.gated):
            # a private repository is not told from one that is not there
            raise _Refusal(401, "RepoNotFound")
        if not allowed and files:
            raise _Refusal(401 if "Authorization" not in self.headers else 403, "GatedRepo")
        commit = self.hub.revisions[name].get(revision, revision)
        if commit not in self.hub.commits[name]:
            raise _Refusal(404, "RevisionNotFound")
        return commit

    def _info(self, name: str, revision: str) -> None:
        if name in self.hub.moved:
            self._send(307, b"", {"Location": self.path.replace(name, self.hub.moved[name])})
            return
        if name in self.hub.refuses:
            raise _Refusal(self.hub.refuses[name], "")
        commit = self._commit(name, revision, files=False)
        siblings = [{"rfilename": path} for path in self.hub.commits[name][commit]]
        self._json({"_id": "0", "id": name, "modelId": name, "sha": commit, "siblings": siblings, "tags": []})

    def _tree(self, name: str, revision: str) -> None:
        if name in self.hub.moved:
            self._send(307, b"", {"Location": self.path.replace(name, self.hub.moved[name])})
            return
        commit = self._commit(name, revision, files=False)
        self._json([_entry(path, content) for path, content in self.hub.commits[name][commit].items()])

    def _resolve(self, name: str, revision: str, file: str) -> None:
        if name in self.hub.moved:
            self._send(307, b"", {"Location": self.path.replace(name, self.hub.moved[name])})
            return
        commit = self._commit(name, revision, files=True)
        content = self.hub.commits[name][commit].get(file)
        if content is None:
            raise _Refusal(404, "EntryNotFound")
        told = {"X-Repo-Commit": commit, "ETag": f'"{hashlib.sha1(content).hexdigest()}"'}
        if len(content) <= LARGE:
            self._content(file, content, told)
            return
        told |= {"X-Linked-Etag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Linked-Size": str(len(content))}
        self._send(302, b"", told | {"Location": f"{self.hub.storage}/stored/{name}/{commit}/{file}"})

    def _content(self, file: str, content: bytes, told: dict[str, str]) -> None:
        if self.command == "GET" and file in self.hub.refuses:
            raise _Refusal(self.hub.refuses[file], "")
        status, start = 200, 0
        if match := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", "")):
            status, start = 206, int(match[1])
            told = told | {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"}
        part = content[start:]
        if self.command == "GET" and self.hub.breaks.get(file, 0) > 0:
            self.hub.breaks[file] -= 1
            self._send(status, part, told, stop=len(part) // 2)
            self.close_connection = True
            return
        self._send(status, part, told)

    def _json(self, data: Any) -> None:
        self._send(200, json.dumps(data).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, body: bytes, headers: dict[str, str], stop: int | None = None) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body if stop is None else body[:stop])


def _entry(path: str, content: bytes) -> dict[str, Any]:
    found: dict[str, Any] = {
        "type": "file", "path": path, "size": len(content), "oid": hashlib.sha1(content).hexdigest()
    }  # fmt: skip
    if len(content) > LARGE:
        found["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
    return found


@contextlib.contextmanager
def hub_stand_in() -> Iterator[Hub]:
    """Serve an empty hub while the context is open."""
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    with _served(handler) as hub.endpoint, _served(handler) as hub.storage:
        yield hub


@contextlib.contextmanager
def _served(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Serve on a free port, and give the address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
