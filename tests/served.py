"""A server in this process, on models of this process, and what its answers are compared with."""

import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch
from starlette.testclient import TestClient
from torch import Tensor

import glassformer as gf
from glassformer.serve import Limits, Store, application
from glassformer.serve.frames import read_frame

TOKEN = "of-this-session-0"
ROOT = "/api/v1"


class Served(TestClient):
    """A client that may ask.

    Args:
        models: By name.
        limits: Of the server.
        images: What opens those of a model that reads images.
    """

    def __init__(self, models: Mapping[str, Any], limits: Limits | None = None, images: Any = None) -> None:
        self.models = models
        self.store = Store({name: lambda name=name: models[name] for name in models}, limits, images)
        app = application(self.store, TOKEN)
        super().__init__(app, base_url=f"http://127.0.0.1:8000{ROOT}/", headers={"Authorization": f"Bearer {TOKEN}"})  # type: ignore[arg-type]

    def run(self, model: str, given: str | list[int] | None, **more: Any) -> dict[str, Any]:
        """Return the card of a run; of an image, which is said in place of what is given."""
        said = {} if given is None else {"text": given} if isinstance(given, str) else {"ids": given}
        found = self.post("runs", json={"model": model} | said | more)
        assert found.status_code == 200, found.text
        return found.json()

    def ask(self, address: str, **view: Any) -> Any:
        """Return an answer as JSON data."""
        found = self.get(address, params=view)
        assert found.status_code == 200, found.text
        return found.json()

    def arrays(self, address: str, **view: Any) -> dict[str, Tensor]:
        """Return the arrays of an answer, from a frame."""
        found = self.get(address, params=view | {"form": "frame"})
        assert found.status_code == 200, found.text
        return read_frame(found.content)[0]

    def copied(self, python: str) -> dict[str, Any]:
        """Return the names that code to be copied leaves behind, with the models of this server in place of files."""
        names: dict[str, Any] = {}
        load = gf.load
        try:
            gf.load = lambda name: self.models[name]  # type: ignore[assignment]
            exec(python, names)
        finally:
            gf.load = load
        return names


def values_of(found: Any, name: str) -> Tensor:
    """Return an array by its name from what copied code calls `found`."""
    value = found[name] if isinstance(found, Mapping) else getattr(found, name)
    values = value.values.detach()
    return (torch.view_as_real(values.resolve_conj()) if values.is_complex() else values).float()


def agree(sent: Tensor, computed: Tensor) -> None:
    """Raise unless what was sent is what was computed, but for what a mask hides."""
    assert sent.shape == computed.shape, (sent.shape, computed.shape)
    there = sent.isfinite()
    # what is hidden has no weight, or no score
    hidden = computed[~there]
    assert bool(((hidden == 0) | ~hidden.isfinite()).all())
    torch.testing.assert_close(sent[there], computed[there], rtol=2e-5, atol=2e-6)


class Listening:
    """A server on a port of this machine, in a thread of this process, for browsers.

    Args:
        models: What loads each, by name.
        port: Of the address; any free one by default.
        images: What opens those of a model that reads images.
    """

    def __init__(self, models: Mapping[str, Callable[[], Any]], port: int = 0, images: Any = None) -> None:
        import uvicorn

        self.store = Store(models, images=images)
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(("127.0.0.1", port))
        self.socket.listen(32)
        self.root = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        config = uvicorn.Config(application(self.store, TOKEN), log_level="error", lifespan="off")
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.socket]}, daemon=True)
        self.thread.start()

    def model(self, name: str) -> Any:
        """Return a model that it has."""
        return self.store.model(name).model

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(5)
        self.socket.close()
