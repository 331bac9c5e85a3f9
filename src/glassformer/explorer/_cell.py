"""The widget of an explorer, which hands what its views ask to the application of a server. Needs anywidget."""

from collections.abc import Mapping
from html import escape
from typing import Any

import traitlets

from glassformer.explorer._picture import picture
from glassformer.render.widget import PageWidget
from glassformer.serve.channel import Channel
from glassformer.serve.guards import App
from glassformer.serve.runs import ServedRun, Store
from glassformer.words import spoken

_MOST = 200  # tokens that are written out where widgets are not shown


class ExplorerWidget(PageWidget):
    """An explorer in a cell of a notebook.

    Args:
        store: The model and its runs.
        run: What it begins with.
        app: What answers its views.
        token: What requests to that have to bring.
        height: In pixels.
    """

    state = traitlets.Dict().tag(sync=True)

    def __init__(self, store: Store, run: ServedRun, app: App, token: str, *, height: int) -> None:
        self.store = store
        self._channel = Channel(app, token, lambda part, content: self.send(part, [content]))
        title = spoken("{model}, explored", model=run.served.id)
        super().__init__(
            "explorer", height=height, title=title, static=lambda: _static(title, run),
            state={"a": {name: value for name, value in run.spec.to_dict().items() if value}},
        )  # fmt: skip
        self.on_msg(self._told)

    def _told(self, _: Any, message: Mapping[str, Any], buffers: Any) -> None:
        self._channel.receive(message)

    def close(self) -> None:
        """Take the widget from the notebook, and leave what its views asked for."""
        self._channel.close()
        super().close()


def _static(title: str, run: ServedRun) -> str:
    """Return the run as it began, as HTML without scripts: its tokens, and a picture of every head."""
    tokens = " ".join(
        f"<code>{escape(token)}</code>".replace("\n", "⏎") for token in run.inputs.output.tokens[0][:_MOST]
    )
    image = run.served.worker.submit(lambda: picture(run)).result()
    return f"<div><p><b>{escape(title)}</b>: {tokens}</p>{image}</div>"
