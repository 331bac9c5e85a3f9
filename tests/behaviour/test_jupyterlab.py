"""The explorer in JupyterLab itself: a cell is run, keys move among heads, and numbers are the library's."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import glassformer as gf

pytestmark = [
    pytest.mark.full,
    pytest.mark.browser,
    pytest.mark.skipif(find_spec("jupyterlab") is None, reason="JupyterLab is not installed: pip install jupyterlab"),
    pytest.mark.skipif(find_spec("anywidget") is None, reason="anywidget is not installed"),
]
TEXT = "class TokenBuffer:\n    pass\n\nbuffer = Token"
CELL = f"""import glassformer as gf
gf.explorer.widget(gf.load("attn-only-2l"), {TEXT!r}, height=500)"""
TOKEN, SECONDS = "of-this-test-alone", 30
SETTINGS = {"notification": {"fetchNews": "false", "checkForUpdates": False}, "themes": {"theme": "JupyterLab Dark"}}


def notebook() -> str:
    cell = {"cell_type": "code", "id": "one", "metadata": {}, "execution_count": None, "outputs": [], "source": CELL}
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return json.dumps({"cells": [cell], "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5})


@pytest.fixture
def jupyterlab(tmp_path: Path) -> Iterator[str]:
    """Address of a JupyterLab of this test's own, with one notebook; it ends with the test."""
    work, settings = tmp_path / "work", tmp_path / "settings" / "@jupyterlab" / "apputils-extension"
    for folder in (work, settings):
        folder.mkdir(parents=True)
    (work / "one.ipynb").write_text(notebook())
    for name, said in SETTINGS.items():
        (settings / f"{name}.jupyterlab-settings").write_text(json.dumps(said))
    kinds = {"JUPYTER_CONFIG_DIR": "config", "JUPYTER_DATA_DIR": "data", "JUPYTER_RUNTIME_DIR": "runtime"}
    kinds |= {"IPYTHONDIR": "ipython", "JUPYTERLAB_SETTINGS_DIR": "settings", "JUPYTERLAB_WORKSPACES_DIR": "workspaces"}
    folders = {name: str(tmp_path / folder) for name, folder in kinds.items()}
    source = str(Path(gf.__file__).parents[1])
    ours = {"PYTHONPATH": source, "OMP_NUM_THREADS": "1", "JUPYTER_PREFER_ENV_PATH": "1"}
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ServerApp.port=0"]
    command += [f"--IdentityProvider.token={TOKEN}", f"--ServerApp.root_dir={work}"]
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(command, env=os.environ | folders | ours, stdout=log, stderr=log)
        try:
            yield _address(tmp_path / "runtime", server)
        finally:
            server.terminate()
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                server.kill()


def _address(runtime: Path, server: subprocess.Popen[bytes]) -> str:
    """Wait for what a server writes down of itself when it listens."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end and server.poll() is None:
        for path in runtime.glob("jpserver-*.json"):
            # it may be half written
            if (text := path.read_text()).rstrip().endswith("}"):
                return json.loads(text)["url"]
        time.sleep(0.1)
    raise AssertionError(f"JupyterLab did not listen: {(runtime.parent / 'log').read_text()[-2000:]}")


def test_a_cell_of_jupyterlab_draws_the_explorer_and_its_keys_move_among_heads(browser: Any, jupyterlab: str) -> None:
    context = browser.new_context(viewport={"width": 1440, "height": 1000}, color_scheme="light")
    page, complaints = context.new_page(), list[str]()
    page.set_default_timeout(1_000 * SECONDS)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    try:
        page.goto(f"{jupyterlab}lab/tree/one.ipynb?token={TOKEN}", wait_until="commit")
        page.get_by_text("| Idle").wait_for()
        page.locator(".jp-CodeCell .cm-content").first.click()
        page.keyboard.press("Control+Enter")
        page.locator(".headmap").wait_for()
        button = page.locator(".headmap button[data-label='L1H7']")
        button.focus()
        page.keyboard.press("ArrowLeft")
        page.locator(".levels button", has_text="Head L1H6").wait_for()
        # a letter that would have JupyterLab make a cell: here it says which run is shown
        page.keyboard.press("a")
        page.keyboard.press("2")
        shown = page.locator(".pipeline li", has_text="softmax").first
        shown.wait_for()
        page.locator("h2", has_text="L1H6").first.wait_for()
        page.locator(".pipeline:not(.stale)").wait_for()
        run = gf.run(gf.load("attn-only-2l"), TEXT, read="L1H6.pattern")
        weight = run["L1H6.pattern"].values.flatten(0, -3)[0, -1, 0]
        assert float(shown.locator(".number").last.inner_text()) == pytest.approx(float(weight), rel=1e-5)
        assert page.locator(".jp-CodeCell").count() == 1
        # light or dark is the notebook's, whatever the browser prefers
        style = "getComputedStyle(document.querySelector('[data-lm-suppress-shortcuts]').shadowRoot.firstElementChild)"
        assert page.evaluate(f"{style}.getPropertyValue('--theme').trim()") == "dark"
        assert complaints == []
    finally:
        context.close()
