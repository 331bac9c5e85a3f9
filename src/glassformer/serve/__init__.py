"""A local server for what one looks at in a model: runs, heads, circuits, sweeps; numbers are the library's.

    app = application(Store({"gpt-4l": lambda: gf.load("gpt-4l")}), "token")        an ASGI application
    serve({"gpt-4l": lambda: gf.load("gpt-4l")})                                    what `glassformer serve` does

Names are imported when first used: what answers requests needs the extra `serve`.
"""

from typing import TYPE_CHECKING

from glassformer.lazy import lazily

if TYPE_CHECKING:
    from glassformer.serve.channel import Channel as Channel
    from glassformer.serve.routes import application as application
    from glassformer.serve.runs import Limits as Limits, Store as Store
    from glassformer.serve.server import serve as serve

_HOMES = {"channel": ("Channel",), "routes": ("application",), "runs": ("Limits", "Store"), "server": ("serve",)}

__all__ = ["Channel", "Limits", "Store", "application", "serve"]

__getattr__, __dir__ = lazily(__name__, _HOMES)
