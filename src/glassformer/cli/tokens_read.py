"""What a model read, token by token: printed above every result and written into its document."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TokensRead:
    """Readable tokens of every row; several names for several sets of rows, such as clean and corrupt prompts.

    Args:
        rows: Tokens by what they are, one list per row.
        added: Which special tokens the tokenizer added, in words.
    """

    rows: dict[str, Sequence[Sequence[str]]]
    added: str = ""

    def shown(self) -> Any:
        """Return the first row of each, every token behind its index, for a rich console."""
        from rich.console import Group
        from rich.text import Text

        from glassformer.render.terminal.tables import QUIET, numbered

        width = max(map(len, self.rows), default=0)
        lines = [numbered(name.ljust(width), rows[0]) for name, rows in self.rows.items() if rows]
        return Group(*lines, *([Text(self.added, style=QUIET)] if self.added else []))

    def to_dict(self) -> dict[str, Any]:
        return {"tokens": {name: [list(row) for row in rows] for name, rows in self.rows.items()}, "added": self.added}


def tokens_of(run: Any) -> TokensRead:
    """Return what a run, or prepared inputs, read."""
    rows = {"source": run.source_rows, "reads": run.token_rows} if run.source_rows else {"reads": run.token_rows}
    return TokensRead(rows, run.added)


def tell(read: TokensRead) -> None:
    """Print to standard error, for commands whose output goes on into other programs."""
    from glassformer.cli.console import Console

    Console(stderr=True).print(read.shown())
