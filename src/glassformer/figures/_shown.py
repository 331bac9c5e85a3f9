"""The figure that `plot` returns: matplotlib's own, which a notebook shows. Needs matplotlib."""

import io

from matplotlib import figure


class Figure(figure.Figure):
    """A figure made without pyplot, whose hooks would otherwise have to be switched on before a notebook shows one."""

    def _repr_png_(self) -> bytes:
        image = io.BytesIO()
        self.savefig(image, format="png")
        return image.getvalue()
