"""What the page of a server opens with: a state in the fragment of its address, which goes to no server.

The state is JSON, deflated, in base64 for addresses: `web/src/explorer/permalink.ts` reads it, and writes what follows.
"""

import base64
import zlib
from dataclasses import dataclass
from typing import Any

from glassformer.analysis.heads.roles import heads
from glassformer.analysis.prepare import asked_position
from glassformer.config import require
from glassformer.errors import TextError, WrongArgument, nearest
from glassformer.files import json_text

VERSION = "1."
LEVELS = ("model", "head", "position")
CHAPTERS = 8
END = 2**31  # beyond every text: the page goes to its last token


@dataclass(frozen=True)
class Opened:
    """What the page opens with.

    Args:
        text: What run A reads; by default what suits the model.
        text_b: What run B reads; by default there is none.
        image: What run A reads of a model of images; by default the first that it is served with.
        head: Where one looks, by its label.
        query: The token that asks, counted from 0; the last by default.
        key: The token that is asked, counted from 0.
        level: `model`, `head` or `position`; by default `head` if one is named, and `model` if not.
        chapter: Of the tour, from 1 to 8.

    Raises:
        ConfigError: A place without a head, something to be looked at without a text, or a number out of its range.
    """

    text: str | None = None
    text_b: str | None = None
    head: str | None = None
    query: int | None = None
    key: int | None = None
    level: str | None = None
    chapter: int | None = None
    image: str | None = None

    def __post_init__(self) -> None:
        looks = [name for name in ("text_b", "head", "level") if getattr(self, name) is not None]
        require(
            self.text is not None or self.image is not None or not looks,
            f"{_options(looks)}: of which text? Say it with --text, or an image with --image.",
        )
        placed = [name for name in ("query", "key") if getattr(self, name) is not None]
        require(self.head is not None or not placed, f"{_options(placed)}: of which head? Say it with --head.")
        require(all(getattr(self, name) >= 0 for name in placed), "--query and --key are counted from 0.")
        require(
            self.chapter is None or 1 <= self.chapter <= CHAPTERS,
            f"--learn is a chapter of the tour, 1 to {CHAPTERS}; found {self.chapter}.",
        )

    def fragment(self, name: str, model: Any) -> str:
        """Return it as the end of an address, `#` included; empty if nothing was asked for.

        Args:
            name: Of the model, among those that are served.
            model: The model, whose heads are known by their labels.

        Raises:
            TextError: It reads images, and is to be opened with a text.
            WrongArgument: The model has no such head.
        """
        chapter = None if self.chapter is None else f"learn/{self.chapter}"
        if model.patches is not None and self.text is not None:
            raise TextError(f'"{name}" reads images, and no text: leave --text out, and give an image with --image.')
        said = {"text": self.text} if self.image is None or model.patches is None else {"image": self.image}
        if None in said.values():
            return "" if chapter is None else f"#{chapter}"
        level = self.level or ("model" if self.head is None else "head")
        state: dict[str, Any] = {"a": {"model": name} | said, "level": 1 + LEVELS.index(level)}
        if self.text_b is not None:
            state["b"] = {"model": name, "text": self.text_b}
        if self.head is not None:
            labels = [head.label for head in heads(model)]
            if self.head not in labels:
                known = f"from {labels[0]} to {labels[-1]}" if labels else "none"
                raise WrongArgument(f'no head "{self.head}" in {name}.{nearest(self.head, labels)} Heads: {known}.')
            query = self.query
            if query is None:
                query = 0 if asked_position(model, None) == 0 else END
            state |= {"head": self.head, "query": query, "key": self.key or 0}
        packed = zlib.compress(json_text(state).encode(), wbits=-zlib.MAX_WBITS)
        parts = [chapter, VERSION + base64.urlsafe_b64encode(packed).decode().rstrip("=")]
        return "#" + "/".join(part for part in parts if part is not None)


def _options(names: list[str]) -> str:
    return " and ".join("--" + {"level": "look"}.get(name, name).replace("_", "-") for name in names)
