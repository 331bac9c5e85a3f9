"""Random edits of random models: the engine of sweeps gives the numbers of the plain loop."""

import random
from typing import Any

import torch
from torch import Tensor

from glassformer.analysis.sweep import Metric, one_by_one, sweep
from glassformer.errors import GlassformerError
from glassformer.models import EncoderDecoder, Model
from glassformer.testing import close
from glassformer.testing.models import ARCHITECTURES, subject
from glassformer.trace import Add, At, Scale, Set, Site
from trials import Trials

BATCH, LENGTH = 2, 5


def drawn_part(draw: random.Random, site: Site) -> At:
    """Return some part of a site: an index, a slice, several indices or a mask along some of its axes."""
    sizes = {"batch": BATCH, "pos": LENGTH, "query": LENGTH, "key": LENGTH, **site.sizes}
    where: dict[str, Any] = {}
    for axis in draw.sample(site.axes, draw.randrange(len(site.axes) + 1)):
        if axis not in sizes:
            continue
        size = sizes[axis]
        several = sorted(draw.sample(range(size), draw.randint(1, size)))
        where[axis] = draw.choice(
            [several[0], several[0] - size, slice(several[0], None), several, [i in several for i in range(size)]]
        )
    return At(**where)


def drawn_plan(draw: random.Random, model: Model) -> list[list[Any]]:
    sites = [site for site in model.sites().values() if not site.read_only and "batch" in site.axes]
    kinds = (Set, Add, Scale)
    rows = [[draw.choice(sites) for _ in range(draw.randint(0, 2))] for _ in range(draw.randint(1, 4))]
    return [[draw.choice(kinds)(s.name, draw.uniform(-1, 1), at=drawn_part(draw, s)) for s in row] for row in rows]


def numbers(of: Any, *asked: Any, **more: Any) -> Tensor | GlassformerError:
    try:
        return of(*asked, **more).values.values
    except GlassformerError as error:
        return error


def test_a_random_sweep_gives_the_numbers_of_the_plain_loop_or_the_same_refusal(trials: Trials) -> None:
    metric = Metric("logit", lambda logits: logits.clamp(-50, 50)[..., 3], (), -1)
    for seed in trials(quick=4, sweep=150):
        draw = random.Random(seed)
        name = draw.choice(list(ARCHITECTURES))
        model = subject(name, seed=seed % 7).model
        ids = torch.randint(0, model.config.vocab_size, (BATCH, LENGTH), generator=torch.Generator().manual_seed(seed))
        target = {"target": ids} if isinstance(model, EncoderDecoder) else {}
        asked = model, ids, drawn_plan(draw, model), metric
        fast = numbers(sweep, *asked, rows=draw.choice([None, 1, 2]), **target)
        slow = numbers(one_by_one, *asked, **target)
        if isinstance(slow, GlassformerError):
            assert type(fast) is type(slow), (name, fast, slow)
            trials.count("refused by both")
            continue
        assert isinstance(fast, Tensor), (name, fast)
        # a negative factor on scores makes what is hidden infinite
        lost = slow.isnan()
        assert torch.equal(fast.isnan(), lost), (name, fast, slow)
        close(fast[~lost], slow[~lost], 1e-9)
        trials.count("equal")
    assert trials.outcomes["equal"] > trials.outcomes["refused by both"]
