"""What the study of layers compares: the best layer with the best of what says as much of the same labels."""

from itertools import islice

import pytest
import torch

from glassformer.data import bytes_tokenizer
from glassformer.labelled import Labelled
from glassformer.studies.layer_roles import OTHER_TASK, SITE, best, beyond, functions


def test_controls_are_of_the_same_labels_and_each_has_its_best_layer() -> None:
    values = torch.tensor([[0.3, 0.5, 0.2, 0.99], [0.7, 0.1, 0.2, 0.4]], dtype=torch.float64)
    told = Labelled(values, ("site", "told_by"), {"told_by": [SITE, "untrained model", "majority", OTHER_TASK]})
    assert best(told) == 0.7 and beyond(told) == pytest.approx(0.2)
    nothing = Labelled(values[:, [1, 0]], ("site", "told_by"), {"told_by": [SITE, "untrained model"]})
    assert beyond(nothing) == pytest.approx(-0.2)


@pytest.mark.full
def test_seeds_draw_functions_without_docstrings() -> None:
    one, again, other = (
        [document.text for document in islice(functions(bytes_tokenizer(), seed), 3)] for seed in (0, 0, 1)
    )
    assert one == again != other
    assert all(text.startswith("def ") and '"""' not in text.partition(":\n")[2].strip()[:3] for text in one)
