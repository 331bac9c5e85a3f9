"""The Python that makes runs, as a page lets it be copied."""

from collections.abc import Mapping, Sequence

from glassformer.models.reading import Inputs
from glassformer.serve.api import Borrowed, Change, RunSpec
from glassformer.serve.images import ServedImage


class RunCode:
    """The Python that makes a run.

    Args:
        source: What its model is loaded from; empty of one that whoever runs the code has as `model`.
        spec: What was asked for.
        inputs: What it read.
        lenders: How the runs that it borrows from are made, by their ids.
        image: The image that it read, if it was one.
    """

    def __init__(
        self, source: str, spec: RunSpec, inputs: Inputs, lenders: Mapping[str, "RunCode"],
        image: ServedImage | None = None,
    ) -> None:  # fmt: skip
        self.source, self.spec, self.inputs, self.lenders, self.image = source, spec, inputs, lenders, image

    def lines(self, name: str, reads: Sequence[str]) -> list[str]:
        """Return the lines that import, load the model and run it.

        Args:
            name: What the run is called.
            reads: What is read, as code.
        """
        return program((name, self, reads))

    def run(self, name: str, reads: Sequence[str], models: dict[str, str]) -> list[str]:
        """Return the lines that make the run.

        Args:
            name: What it is called.
            reads: What is read, as code.
            models: What models that are loaded are called, by what they are loaded from; those loaded here are added.
        """
        lines = list[str]()
        if self.source not in models:
            models[self.source] = f"{name}_model" if models else "model"
            if self.source:
                lines.append(f"{models[self.source]} = gf.load({self.source!r})")
        for i, (id, code) in enumerate(self.lenders.items()):
            borrowed = [c.site for c in self.spec.changes if isinstance(c.value, Borrowed) and c.value.run == id]
            lines += code.run(self._lender(name, i), [repr(site) for site in dict.fromkeys(borrowed)], models)
        return [*lines, f"{name} = gf.run({', '.join([models[self.source], *self._said(name, reads)])})"]

    def _said(self, name: str, reads: Sequence[str]) -> list[str]:
        """Return the arguments of the run behind its model."""
        said = [repr(self.spec.text if self.spec.ids is None else list(self.spec.ids))]
        if self.image is not None:
            said = [self.image.code]
        if self.inputs.source is not None:
            target = self.spec.target if self.spec.target_ids is None else list(self.spec.target_ids)
            said.append(repr(target if target is not None else self.inputs.output.rows[0]))
        if self.spec.specials is not None:
            said.append(f"specials={self.spec.specials!r}")
        if self.spec.allow_unknown:
            said.append("allow_unknown=True")
        if self.spec.changes:
            said.append(f"edit=[{self.edits(name)}]")
        if reads:
            said.append(f"read=[{', '.join(reads)}]")
        return said

    def edits(self, name: str) -> str:
        """Return the changes of the run as code, with commas between."""
        return ", ".join(self._edit(name, change) for change in self.spec.changes)

    def every_change(self) -> list[Change]:
        """The changes of the run, and of those it borrows from."""
        return [*self.spec.changes, *(change for code in self.lenders.values() for change in code.every_change())]

    def every_image(self) -> list[ServedImage]:
        """The images that the run, and those it borrows from, read."""
        own = [] if self.image is None else [self.image]
        return [*own, *(image for code in self.lenders.values() for image in code.every_image())]

    def _lender(self, name: str, i: int) -> str:
        return f"{name}_lender_{i}"

    def _edit(self, name: str, change: Change) -> str:
        where = ", ".join(f"{axis}={place!r}" for axis, place in change.at.where.items())
        at = f", at=gf.At({where})" if where else ""
        value = (
            repr(change.value)
            if isinstance(change.value, float)
            else f"torch.tensor({list(change.value)})"
            if (isinstance(change.value, tuple))
            else self._borrowed(name, change)
        )
        keep = ", keep=True" if change.keep else ""
        return f"gf.{change.edit.capitalize()}({change.site!r}, {value}{keep}{at})"

    def _borrowed(self, name: str, change: Change) -> str:
        assert isinstance(change.value, Borrowed), "asked where it is"
        lender = self._lender(name, list(self.lenders).index(change.value.run))
        if not change.value.mean:
            return lender if change.edit == "set" else f"{lender}[{change.site!r}]"
        dims = ", ".join(f"{lender}[{change.site!r}].dim({axis!r})" for axis in change.value.mean)
        return f"{lender}[{change.site!r}].values.mean(({dims},), keepdim=True)"


def loading(source: str) -> list[str]:
    """Return the line that loads a model; none for one that whoever runs the code has as `model`."""
    return [f"model = gf.load({source!r})"] if source else []


def program(*runs: tuple[str, RunCode, Sequence[str]], imports: Sequence[str] = ()) -> list[str]:
    """Return the lines that import, load models and make runs.

    Args:
        runs: What each run is called, what makes it, and what is read of it, as code.
        imports: Further lines that import.
    """
    models: dict[str, str] = {}
    lines = [line for name, code, reads in runs for line in code.run(name, reads, models)]
    values = [change.value for _, code, _ in runs for change in code.every_change()]
    torch_is_used = any(not isinstance(value, float | Borrowed) for value in values)
    of_images = [line for _, code, _ in runs for image in code.every_image() for line in image.imports]
    first = [*(["import torch"] if torch_is_used else []), "import glassformer as gf"]
    return [*dict.fromkeys([*first, *of_images, *imports]), "", *lines]
