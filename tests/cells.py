"""A page that stands for a notebook: cells in which widgets are drawn, and messages between these and the widgets."""

import base64
import json
import queue
from typing import Any

from playwright.sync_api import Page

# what a notebook gives each view: the traits of its widget, and a way to and from the kernel
_NOTEBOOK = """<!doctype html><html lang="en"><head><title>a notebook</title></head>
<body style="margin:0;background:%s"><main><h1 style="color:gray">A notebook</h1></main><script>
const views = [], cells = [];
async function draw(script, traits, width) {
    const address = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
    const { default: widget } = await import(address);
    const heard = {}, at = cells.length;
    const cell = document.querySelector("main").appendChild(document.createElement("div"));
    cell.style.width = width;
    const model = {
        get: (name) => traits[name],
        set: (name, value) => { traits[name] = value; },
        save_changes: () => undefined,
        send: (message) => toKernel(at, JSON.stringify(message)),
        on: (event, one) => { (heard[event] ??= new Set()).add(one); },
        off: (event, one) => { heard[event]?.delete(one); },
    };
    cells.push({ cell, traits, heard, end: widget.render({ model, el: cell }) });
}
function hear(at, part, content) {
    const bytes = Uint8Array.from(atob(content), (character) => character.charCodeAt(0));
    for (const one of cells[at].heard["msg:custom"] ?? []) one(part, [new DataView(bytes.buffer)]);
}
</script></body></html>"""


class Cells:
    """Cells of a notebook.

    Args:
        page: Where they are drawn.
        ground: Colour of the notebook.
    """

    def __init__(self, page: Page, ground: str = "white") -> None:
        self.page, self.widgets = page, list[Any]()
        self._parts: queue.Queue[tuple[int, Any, bytes]] = queue.Queue()
        page.expose_function("toKernel", self._told)
        page.set_content(_NOTEBOOK % ground)

    def draw(self, widget: Any, width: str = "auto") -> None:
        """Draw a widget in a further cell."""
        at, traits = len(self.widgets), {name: value for name, value in widget.get_state().items() if name != "layout"}
        widget.send = lambda part, buffers: self._parts.put((at, part, buffers[0]))
        self.widgets.append(widget)
        self.page.evaluate("given => draw(...given)", [traits.pop("_esm"), traits, width])

    def until(self, expression: str) -> Any:
        """Carry messages until an expression is true, and return it."""
        for _ in range(600):
            while not self._parts.empty():
                at, part, content = self._parts.get()
                self.page.evaluate("given => hear(...given)", [at, part, base64.b64encode(content).decode()])
            if found := self.page.evaluate(expression):
                return found
            self.page.wait_for_timeout(25)
        raise AssertionError(f"never so: {expression}")

    def settled(self, at: int = 0) -> None:
        """Carry messages until nothing in a cell is being computed."""
        tree = f"cells[{at}].cell.shadowRoot"
        self.until(f"{tree}.querySelector('.headmap')")
        self.until(f"!{tree}.querySelector('.stale, [aria-busy=true]')")
        self.until(f"!/computing…|running…/.test({tree}.textContent)")

    def _told(self, at: int, message: str) -> None:
        # as ipywidgets hands on what comes
        self.widgets[at]._handle_custom_msg(json.loads(message), [])
