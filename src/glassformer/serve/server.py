"""The server: which models it opens, where it listens, what the terminal says, and how it stops."""

import contextlib
import os
import secrets
import socket
import sys
import webbrowser
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from glassformer.config import require
from glassformer.errors import MissingExtra
from glassformer.serve.guards import is_loopback
from glassformer.serve.permalink import Opened
from glassformer.serve.runs import Limits, OpensImages, Store
from glassformer.words import spoken


def serve(
    models: Mapping[str, Callable[[], Any]],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
    limits: Limits | None = None,
    opened: Opened | None = None,
    images: OpensImages | None = None,
    browser: bool = True,
    say: Callable[[str], None] = print,
) -> None:
    """Serve models until interrupted.

    Args:
        models: What loads each, by what it is loaded from: no others are opened. The first is loaded at once.
        host: To listen on. Another than this machine's own takes a token that was thought of by whoever starts it.
        port: To listen on; any free one by default.
        token: What requests have to bring; drawn at random by default.
        limits: What it does at most.
        opened: What the page opens with; by default a text that suits the first model.
        images: What opens the images that a model is served with, if it reads images.
        browser: Open the page in a browser, where there is a display.
        say: Where its address is told.

    Raises:
        ConfigError: Another host without a token, or a token too short.
        MissingExtra: Starlette or uvicorn is not installed.
        OSError: The address is taken.
        WrongArgument: The page is to open at a head that the first model has not.
    """
    require(
        is_loopback(host) or token is not None,
        f"--host {host} lets others reach this server: choose what they have to bring with --token, at least 16 "
        "characters, or leave --host out.",
    )
    require(
        token is None or (len(token) >= 16 and all(c.isascii() and (c.isalnum() or c in "-_") for c in token)),
        "--token takes 16 characters and more: letters, digits, - and _.",
    )
    try:
        import uvicorn

        from glassformer.serve.routes import application
    except ImportError as error:
        raise MissingExtra("serve needs Starlette and uvicorn: pip install 'glassformer[serve]'.") from error
    own = token or secrets.token_urlsafe(24)
    store = Store(models, limits, images)
    # the one that the page opens with: who named what is no model learns it now
    first, served = next(iter(store.models.items()))
    fragment = (opened or Opened()).fragment(first, served.model)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        # before it is told: who opens the address at once waits, and is not turned away
        listening.listen(128)
        at = listening.getsockname()[1]
        address = f"http://{_shown(host)}:{at}/?token={own}{fragment}"
        config = uvicorn.Config(
            application(store, own, host), log_level="warning", access_log=False, server_header=False,
            timeout_graceful_shutdown=2, limit_concurrency=256, lifespan="off",
        )  # fmt: skip
        for line in _told(address, at, list(store.models)):
            say(line)
        if browser and has_display():
            webbrowser.open(address)
        # who interrupts it has said that it is enough
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listening])


def has_display() -> bool:
    """Whether a browser that is opened here would be seen."""
    if os.environ.get("SSH_CONNECTION") or os.environ.get("SSH_TTY"):
        return False
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _told(address: str, port: int, models: Sequence[str]) -> list[str]:
    """Return what the terminal says of a server."""
    found = [spoken("models: {names}", names=", ".join(models)), spoken("open {address}", address=address)]
    if not has_display():
        found.append(
            spoken(
                "from another machine: ssh -L {port}:127.0.0.1:{port} THIS-MACHINE, then open the same address there",
                port=port,
            )
        )
    return [*found, spoken("Ctrl-C ends it")]


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else {"0.0.0.0": "127.0.0.1"}.get(host, host)
