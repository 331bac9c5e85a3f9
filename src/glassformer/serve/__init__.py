"""A local server for what one looks at in a model: runs, heads, circuits, sweeps; numbers are the library's.

app = application(Store({"gpt-4l": lambda: gf.load("gpt-4l")}), "token")        an ASGI application
serve(["gpt-4l"])                                                               and what `glassformer serve` does
"""

from glassformer.serve.application import application as application
from glassformer.serve.runs import Limits as Limits, Store as Store
from glassformer.serve.server import serve as serve
