"""Judges come to the numbers of analyses in another way, and notice where one number is another."""

import copy
import dataclasses
import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import torch
from torch import Tensor

from glassformer.analysis import ROOMS
from glassformer.analysis.cards import cards
from glassformer.applicability import applied
from glassformer.labelled import Labelled
from glassformer.testing.applies import made, outcome
from glassformer.testing.calls import right_call
from glassformer.testing.judges import JUDGES, Asked
from glassformer.testing.models import subject
from one_pass import in_one_pass

CARDS = {card.name: card for card in cards()}
README = Path(__file__).parents[3] / "README.md"


def promised() -> set[str]:
    """Return the analyses that the README lists, and those of the first room."""
    rows = [line for line in README.read_text(encoding="utf-8").splitlines() if "| `analysis." in line]
    named = [found for row in rows for found in re.findall(r"`analysis\.([\w.]+)`", row)]
    rooms = {next(iter(ROOMS)), *(one for one in named if "." not in one)}
    of_rooms = {card.name for card in CARDS.values() if card.room in rooms}
    return of_rooms | {one.rpartition(".")[2] for one in named if "." in one} | {"explain"}


def drawn(name: str, among: list[Any]) -> Any:
    return among[int(hashlib.sha256(name.encode()).hexdigest(), 16) % len(among)]


def test_every_analysis_with_a_judge_says_so_on_its_card_and_no_other() -> None:
    assert {name for name, card in CARDS.items() if card.judge} == set(JUDGES)


def test_the_readmes_analyses_and_those_of_the_first_room_are_compared_wherever_they_answer() -> None:
    assert len(promised()) >= 10 and promised() <= set(JUDGES)
    for row in applied().rows:
        for name in JUDGES:
            one = row.outcomes[name]
            assert one.compared == (one.status != "refused"), f"{name} of {row.name}"


@in_one_pass
@pytest.mark.parametrize("name", JUDGES)
def test_a_judge_comes_to_the_same_numbers_of_a_model_drawn_by_its_name(name: str) -> None:
    rows = [row for row in applied().rows if row.outcomes[name].compared]
    row = drawn(name, rows)
    assert outcome(CARDS[name], made()[row.group][row.name]()) == row.outcomes[name]


def numbers(found: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield every number or tensor of a result: its path by the names of fields, what holds it, and under which key."""
    if dataclasses.is_dataclass(found) and not isinstance(found, Labelled):
        inside: Any = [(field.name, field.name, getattr(found, field.name)) for field in dataclasses.fields(found)]
    elif isinstance(found, Mapping):
        inside = [(None, key, value) for key, value in found.items()]
    elif isinstance(found, list | tuple):
        inside = [(None, key, value) for key, value in enumerate(found)]
    else:
        return
    for name, key, value in inside:
        at = path if name is None else f"{path}.{name}".lstrip(".")
        if isinstance(value, Labelled | Tensor | float | int):
            yield at, found, key
        else:
            yield from numbers(value, at)


def moved(x: Tensor, seed: str) -> Tensor:
    """Return a tensor with one entry, which is a number, changed by a thousandth of its size or of the largest."""
    known = x.isfinite().nonzero() if x.numel() else x.new_zeros(0, x.ndim)
    entry, x = tuple(drawn(seed, known.tolist())), x.clone()
    if x.dtype == torch.bool:
        x[entry] = ~x[entry]
    elif x.is_floating_point() or x.is_complex():
        x[entry] += 1e-3 * max(float(x[x.isfinite()].abs().max()), 1e-3)
    else:
        x[entry] += 1
    return x


def with_a_number_moved(found: Any, path: str) -> Any:
    """Return a result with one number of a field changed; None if the field holds no number."""
    if isinstance(found, Labelled):
        return dataclasses.replace(found, values=moved(found.values, path))
    found = copy.deepcopy(found)
    places = [(holder, key) for at, holder, key in numbers(found) if at == path]
    while places:
        holder, key = places.pop(places.index(drawn(path, places)))
        value = getattr(holder, key) if dataclasses.is_dataclass(holder) else holder[key]
        tensor = value.values if isinstance(value, Labelled) else torch.as_tensor(value)
        if not tensor.numel() or not bool(tensor.isfinite().any()):
            continue
        new: Any = moved(tensor, path)
        new = dataclasses.replace(value, values=new) if isinstance(value, Labelled) else new
        new = new if isinstance(value, Labelled | Tensor) else new.item()
        if dataclasses.is_dataclass(holder):
            object.__setattr__(holder, key, new)
        else:
            put(found, holder, key, new)
        return found
    return None


def put(found: Any, holder: Any, key: Any, new: Any) -> None:
    """Change an entry of a mapping or of a row somewhere in a result."""
    if isinstance(holder, dict):
        holder[key] = new
        return
    changed = tuple(new if i == key else one for i, one in enumerate(holder))
    for owner in owners(found):
        for field in dataclasses.fields(owner):
            if getattr(owner, field.name) is holder:
                object.__setattr__(owner, field.name, changed)
                return
    raise AssertionError("every row is a field's")


def owners(found: Any) -> Iterator[Any]:
    if dataclasses.is_dataclass(found) and not isinstance(found, Labelled):
        yield found
        inside: Any = [getattr(found, field.name) for field in dataclasses.fields(found)]
    else:
        inside = found.values() if isinstance(found, Mapping) else found if isinstance(found, list | tuple) else ()
    for value in inside:
        yield from owners(value)


MODELS = ("llama", "gpt2", "translator_pre")
# what is asked of a kind of layer that these have not
OF = {"memory_influence": ("memory",)}


def rejects_a_moved_number(name: str, path: str) -> None:
    for model in OF.get(name, MODELS):
        asked = subject(model)
        call = right_call(CARDS[name].function, asked)
        wrong = with_a_number_moved(call(), path)
        if wrong is not None:
            with pytest.raises(AssertionError):
                JUDGES[name].compare(Asked(asked, call, wrong))
            return
    raise AssertionError(f"no model has numbers in {path} of {name}")


@in_one_pass
@pytest.mark.parametrize("name", JUDGES)
def test_a_judge_notices_one_number_that_is_a_thousandth_off(name: str) -> None:
    rejects_a_moved_number(name, drawn(name, list(JUDGES[name].covers)))


@pytest.mark.full
@in_one_pass
@pytest.mark.parametrize(("name", "path"), [(name, path) for name, judge in JUDGES.items() for path in judge.covers])
def test_a_judge_notices_a_number_that_is_off_in_every_field_it_covers(name: str, path: str) -> None:
    rejects_a_moved_number(name, path)


@in_one_pass
@pytest.mark.parametrize("name", JUDGES)
def test_a_judge_covers_what_its_analysis_shows_first(name: str) -> None:
    kind = get_type_hints(CARDS[name].function)["return"]
    if kind is not Labelled:
        fields = {field.name for field in dataclasses.fields(kind)}
        covered = {path.partition(".")[0] for path in JUDGES[name].covers}
        assert {first for first in kind.HEADLINE if first in fields} <= covered
