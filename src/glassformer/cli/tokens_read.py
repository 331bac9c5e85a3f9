"""What a model read, token by token: printed above every result and written into its document."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glassformer.data import Marks
    from glassformer.provenance import Note


@dataclass(frozen=True)
class TokensRead:
    """Readable tokens of every row; several names for several sets of rows, such as clean and corrupt prompts.

    Args:
        rows: Tokens by what they are, one list per row.
        notes: What must be known of them.
        marks: By what they are, which tokens of a single row are unknown or parts of a character.
    """

    rows: dict[str, Sequence[Sequence[str]]]
    notes: "tuple[Note, ...]" = ()
    marks: "dict[str, Marks]" = field(default_factory=dict)

    def shown(self) -> Any:
        """Return the first row of each, every token behind its index, for a rich console."""
        from rich.cells import cell_len, set_cell_size
        from rich.console import Group

        from glassformer.render.terminal.tables import noted, numbered
        from glassformer.words import spoken

        names = {name: spoken(name) for name in self.rows}
        width = max(map(cell_len, names.values()), default=0)
        lines = [
            numbered(set_cell_size(names[name], width), rows[0], self.marks.get(name))
            for name, rows in self.rows.items()
            if rows
        ]
        return Group(*lines, *noted(note for note in self.notes if not note.denies))

    def further(self, *results: Any) -> Any:
        """Return the notes of results that do not stand here already, for a rich console."""
        from rich.console import Group

        from glassformer.provenance import distinct
        from glassformer.render.terminal.tables import noted

        found = distinct(*(result.notes for result in results))
        return Group(*noted(note for note in found if note not in self.notes and not note.denies))

    def to_dict(self) -> dict[str, Any]:
        """Return JSON data: `tokens` by what they are, and `marks` of those of which something is odd."""
        tokens = {name: [list(row) for row in rows] for name, rows in self.rows.items()}
        marks = {name: found for name, odd in self.marks.items() if (found := odd.to_list())}
        return {"tokens": tokens} | ({"marks": marks} if marks else {})


def tokens_of(run: Any) -> TokensRead:
    """Return what a run, or prepared inputs, read."""
    rows = {"source": run.source_rows, "reads": run.token_rows} if run.source_rows else {"reads": run.token_rows}
    return TokensRead(rows, run.notes, {"source": run.source_marks, "reads": run.marks})


def tell(read: TokensRead) -> None:
    """Print to standard error, for commands whose output goes on into other programs."""
    from glassformer.cli.console import Console

    Console(stderr=True).print(read.shown())
