"""What can be looked at, results and runs alike: a page in a browser or a notebook, tables on the terminal."""

from pathlib import Path
from typing import Any

from glassformer import files
from glassformer.arguments import Pixels, checked
from glassformer.figures import viewers
from glassformer.words import Language, speaking


class Viewed:
    """Base of what shows itself: `show` displays it, `html` writes its page, `widget` puts the page into a cell."""

    @checked
    def show(self, lang: Language = "en") -> None:
        """Display it: its page in a notebook, elsewhere tables on the terminal, as the command line prints.

        Args:
            lang: Language of what is shown: `en`, `zh`.

        Raises:
            WrongArgument: There are no words in a language.
            SiteNotRead: It is a run that read no pattern.
            ShapeMismatch: It is a run of a model none of whose layers attends by a pattern.
        """
        with speaking(lang):
            viewers.viewer().show(self)

    @checked
    def html(self, path: str | Path, lang: Language = "en") -> Path:
        """Write a page that opens in any browser and loads nothing, whole or not at all.

        Args:
            path: File to write.
            lang: Language of the page: `en`, `zh`. The document it carries is English.

        Raises:
            WrongArgument: There are no words in a language.
            SaveError: The file cannot be written.
            SiteNotRead: It is a run that read no pattern.
            ShapeMismatch: It is a run of a model none of whose layers attends by a pattern.
        """
        with speaking(lang):
            return files.write(path, viewers.viewer().page(self))

    @checked
    def widget(self, height: Pixels = 720, lang: Language = "en") -> Any:
        """Return its page as a widget: what a cell of a notebook displays, in the notebook's own light or dark.

        Where widgets are not shown, as on pages made of a notebook, a table stands in its place.

        Args:
            height: Of the page, in pixels, at most; what is longer scrolls.
            lang: Language of the page: `en`, `zh`.

        Raises:
            WrongArgument: There are no words in a language, or the height is none.
            MissingExtra: anywidget is not installed: `pip install 'glassformer[notebook]'`.
            SiteNotRead: It is a run that read no pattern.
            ShapeMismatch: It is a run of a model none of whose layers attends by a pattern.
        """
        with speaking(lang):
            return viewers.viewer().widget(self, height)
