"""Let the tree of links beside a page end at the packages of the API: a module is reached from its package's page.

With every module each page would repeat four hundred links, and writing those is most of the work of building the site.
"""

from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment


def end_at_packages(app: Sphinx, environment: BuildEnvironment) -> None:
    """Take what lies below pages of the API out of their tables of contents, of which the tree is put together."""
    for page, contents in environment.tocs.items():
        if page.startswith("api/generated/"):
            for below in list(contents.findall(addnodes.toctree)):
                below.parent.remove(below)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("env-updated", end_at_packages)
    return {"parallel_read_safe": True}
