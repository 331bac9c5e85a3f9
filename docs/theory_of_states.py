"""Pictures and numbers of pages on theory: memories, places, spins, particles, and where tokens end."""

import heapq
import inspect
from collections.abc import Callable, Sequence
from itertools import product
from tempfile import TemporaryDirectory

import torch
from torch.nn.functional import elu

import glassformer as gf
from glassformer.data import GraphWorlds
from glassformer.data.batch import generator
from glassformer.dynamics import (
    BinaryMemory,
    ContinuousMemory,
    NeuronAstrocyteNetwork,
    ParticleFlow,
    TemDecoder,
    VectorSpins,
    clusters,
    draw_prompts,
    equal_angles,
    expected_wrong_bits,
    hebbian_recall,
    lattice_decoder,
    mean_field,
    mean_field_step,
    merged,
    merging_time,
    on_sphere,
    rate_maps,
    spins_of,
    spontaneous_order,
    token_cosines,
    wrong_bits,
)
from glassformer.figures import Panel
from glassformer.labelled import Labelled
from glassformer.studies import consensus_theorems, graph_worlds
from glassformer.training import train

View = tuple[Sequence[Panel], dict[str, str]]


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def associative_memory() -> View:
    """Wrong neurons by load, and the two phases of a network of neurons and astrocytes."""
    n, counts = 48, [2**i for i in range(1, 12)]
    degrees = {"pairs": 2, "triples": 3, "fours": 4}
    rows = {name: wrong_bits(degree, n, counts, n_tested=64) for name, degree in degrees.items()}
    rows["e^s"] = wrong_bits("exponential", n, counts, n_tested=16)
    theory = {name: [expected_wrong_bits(degree, n, count) for count in counts] for name, degree in degrees.items()}
    furthest = max(float((rows[name] - torch.tensor(theory[name])).abs().max()) for name in degrees)
    by_load = Labelled(torch.stack(list(rows.values())), ("memory", "count"),
                       {"memory": list(rows), "count": [f"{count:,}" for count in counts]})  # fmt: skip

    binary = BinaryMemory(torch.where(normal(8, n) > 0, 1.0, -1.0).double(), 3)
    states = torch.where(normal(200, n, seed=1) > 0, 1.0, -1.0).double()
    fell = binary.energy(states) - binary.energy(binary.sweep(states))
    real, starts = ContinuousMemory(normal(16, n), beta=0.2), 3 * normal(200, n, seed=2)
    slid = real.energy(starts) - real.energy(real.update(starts))

    positions, features = 12, 8
    keys, values, queries = (
        normal(positions, features),
        normal(positions, 4, seed=3),
        normal(positions, features, seed=4),
    )
    network = NeuronAstrocyteNetwork(lambda u: elu(u) + 1)
    synapses, written, answers = network.empty(keys, values), [], []
    for t in range(positions):
        synapses = network.write(synapses, keys[t : t + 1], values[t : t + 1])
        written.append(synapses.astrocyte)
        answers.append(network.calcium(synapses, queries))
    weights = (elu(queries) + 1) @ (elu(keys) + 1).mT
    apart = network.read(synapses, queries) - weights / weights.sum(-1, keepdim=True) @ values
    return [
        Panel(f"share of {n} neurons that are wrong", by_load),
        Panel("writing: synapses with the astrocyte", Labelled(torch.stack(written, 1), ("feature", "step"))),
        Panel("reading: its calcium for each query", Labelled(torch.stack(answers, 1), ("query", "step"))),
    ], {
        f"wrong neurons of {n} against the normal tail, {len(degrees)} powers at {len(counts)} loads": (
            f"at most {furthest:.3f} apart"
        ),
        "least fall of a binary energy in a sweep of 200 states": f"{float(fell.min()):.3g}",
        "least fall of a continuous energy in an update of 200 states": f"{float(slid.min()):.3g}",
        "neurons and astrocyte against linear attention, largest difference": f"{float(apart.abs().max()):.1g}",
    }  # fmt: skip


def hippocampus() -> View:
    """Where memory units of a trained TEM-t are active, its codes by place, and how alike those are."""
    steps, data, apart, right = 250, graph_worlds.WORLDS, 0.0, []
    for graph in ("ring", "torus", "square", "hexagonal"):
        worlds = GraphWorlds(graph=graph, side=4)
        built, batch = lattice_decoder(worlds), worlds.build().batch(0, "heldout")
        places = worlds.walks("heldout", generator(0, "heldout", 0)).places[:, :-1]
        codes = built.codes(batch.tokens)[:, ::2]
        # scores of one place are 40, of two places 0
        same = 40.0 * (places[:, :, None] == places[:, None])
        apart = max(apart, float((codes @ codes.mT - same).abs().max()))
        said = built(batch.tokens).argmax(-1) == batch.targets
        right.append(f"{int(said[batch.weight].sum()):,} of {int(batch.weight.sum()):,} ({graph})")

    with TemporaryDirectory() as folder:
        model = train(graph_worlds.recipe(graph_worlds.RECURRENT, data, steps), folder)
    assert isinstance(model, TemDecoder), "that is its recipe"
    walks = data.walks("heldout", generator("picture"))
    told, known = graph_worlds.foretold(model, data, walks), walks.revisited[:, 1:]
    new = known & walks.new_edge[:, 1:]
    pool = data.replace(batch_size=1024).walks("heldout", generator("pool"))
    memory = rate_maps(*graph_worlds.memory_cells(model, data, pool), data.n_places)
    cells = rate_maps(*graph_worlds.code_cells(model, data, pool), data.n_places)
    # a place each, the first memory of it
    first = memory.rates.argmax(1).tolist()
    units = [first.index(place) for place in range(data.n_places) if place in first]
    centres = torch.nn.functional.normalize(cells.rates.mT, dim=-1)

    seen = torch.nn.functional.one_hot(torch.arange(24) % 5, 5).double()[None]
    codes = normal(1, 24, 8)
    products = (codes @ codes.mT).tril()
    linear = torch.einsum("bts,bsx,bse->btxe", products, seen, codes)
    hebbian = float((hebbian_recall(codes, seen) - linear).abs().max())
    return [
        Panel("activity of memory units", Labelled(memory.rates[units], ("unit", "place"))),
        Panel("codes of places", Labelled(cells.rates, ("unit", "place")), signed=True),
        Panel("cosine of two places' codes", Labelled(centres @ centres.mT, ("query", "key")), signed=True),
    ], {
        "codes by construction, largest error of a score on four graphs": f"{apart:.1g}",
        "recalled by construction, of what was seen before": ", ".join(right),
        "Hebb's rule against linear attention, largest difference": f"{hebbian:.1g}",
        f"foretold in new worlds after {steps} updates, of what was seen before": (
            f"{graph_worlds.share(told, known):.3f}; along edges never gone before {graph_worlds.share(told, new):.3f}"
        ),
        "what a memory unit's activity says about place, of four bits": f"{float(memory.information().mean()):.1f}",
        "share of a code unit's map in its strongest wave": f"{float(cells.wave_share(data.side).mean()):.2f}",
    }


def spins() -> View:
    """Order by temperature, and magnetisation in context."""
    n, d, coupling = 48, 8, 0.5
    # none at the critical temperature itself, where equations never come to rest
    ratios = [0.05 + 0.1 * i for i in range(16)]
    couplings = (torch.ones(n, n, dtype=torch.float64) - torch.eye(n, dtype=torch.float64)) * coupling / n
    critical = n / (2 * coupling * (n - 1))
    none, begun = torch.zeros(n, d, dtype=torch.float64), torch.ones(n, d, dtype=torch.float64)
    found, theory = [], []
    for ratio in ratios:
        means = mean_field(none, couplings, critical / ratio, start=begun)
        found.append(float(means.mean(0).square().mean()))
        theory.append(spontaneous_order(coupling, n, critical / ratio))
    by_temperature = Labelled(torch.tensor([found, theory]), ("of", "temperature"),
                              {"of": ["equations solved", "1 - T / T_c"],
                               "temperature": [round(ratio, 2) for ratio in ratios]})  # fmt: skip
    off = max(abs(a - b) for a, b in zip(found, theory))

    drawn = 0.3 * normal(6, 6) / 6**0.5
    system, fields = VectorSpins((drawn + drawn.mT) / 2 * (1 - torch.eye(6)), 1.3), normal(6, 32, seed=1)
    solved, reaction = system.magnetisations(fields), system.reaction(fields)
    tap = (mean_field_step(solved, fields, system.couplings, 1.3, reaction) - solved).abs().max()
    naive = (mean_field(fields, system.couplings, 1.3) - solved).norm() / solved.norm()

    width, pairs, prompts = 6, 12, 12_000
    limit = torch.eye(width, dtype=torch.float64) / (1 + (width + 1) / pairs)
    fresh, panels, errors, known = draw_prompts(4000, pairs, width, n_prompts=4000, seed=9), [], {}, limit
    for tasks in (width, prompts):
        spins = spins_of(draw_prompts(tasks, pairs, width, n_prompts=prompts))
        known = spins.magnetisations().reshape(width, width)
        errors[tasks] = float((fresh.predicted(known) - fresh.answer).square().sum() / fresh.answer.square().sum())
        panels.append(Panel(f"mean weights, {tasks:,} tasks", Labelled(known, ("query", "key")), signed=True))
    return [Panel("order by temperature, T / T_c", by_temperature), *panels], {
        f"order against 1 - T / T_c, {len(ratios)} temperatures": f"at most {off:.1g} apart",
        "steepest descent put into the TAP equations, largest change": f"{float(tap):.1g}",
        "naive mean field against steepest descent, relative": f"{float(naive):.2g}",
        "mean weights of many tasks against the one matrix for all, largest difference": (
            f"{float((known - limit).abs().max()):.2g}"
        ),
    } | {
        f"error on new tasks after {tasks:,} tasks, of what guessing zero has": f"{error:.2f}"
        for tasks, error in errors.items()
    }


def phases(n: int, betas: list[float], dimensions: list[int], time: float, length: float = 0.1) -> Labelled:
    """The share of pairs of tokens that have merged at a time, by temperature and dimension."""
    shares = torch.zeros(len(betas), len(dimensions))
    for (i, beta), (j, d) in product(enumerate(betas), enumerate(dimensions)):
        x = on_sphere(4, n, d)
        for _ in range(round(time / length)):
            x = ParticleFlow(beta).layer(x, length)
        shares[i, j] = merged(x).mean()
    return Labelled(shares, ("beta", "dimensions"), {"beta": betas, "dimensions": dimensions})


def particles() -> View:
    """Phases by temperature and time, clusters that wait, and the tokens of a text by depth."""
    n, length, times, betas = 32, 0.1, 120, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]
    panels, when = [], {}
    for d in (2, 128):
        rows = []
        for beta in betas:
            flow, x, shares = ParticleFlow(beta), on_sphere(4, n, d), []
            for step in range(2 * times + 1):
                if step % 10 == 0:
                    shares.append(float(merged(x).mean()))
                x = flow.layer(x, length)
            rows.append(shares)
            if d == 128 and beta in (1.0, 4.0, 6.0):
                when[beta] = next(i for i, share in enumerate(shares) if share >= 0.5)
        by_time = Labelled(torch.tensor(rows), ("beta", "time"), {"beta": betas, "time": list(range(len(rows[0])))})
        panels.append(Panel(f"share of pairs merged, {d} dimensions", by_time, of_a_whole=True))
    panels.append(Panel("share of pairs merged, at time 12", phases(n, betas, [2, 3, 4, 8, 16, 32, 64, 128], 12.0),
                        of_a_whole=True))  # fmt: skip
    flow, x = ParticleFlow(9.0), on_sphere(40, n, 2)
    counts = [float(clusters(y).double().mean()) for y in flow.flow(x, 100, 0.5)[::4]]
    of_time = Labelled(torch.tensor(counts), ("time",), {"time": list(range(0, 51, 2))})
    panels.append(Panel("clusters in the plane, beta = 9", of_time))
    text, names = inspect.getsource(heapq), ("gpt-4l", "hybrid-4l", "encoder-4l")
    rows, facts = {}, {}
    for name in names:
        model = gf.load(name)
        ids = model.tokenizer.encode(text)[:96]
        for label, read in ((name, model), (f"{name}, drawn anew", model.config.build(0))):
            cosines = token_cosines(read, ids).values
            rows[label] = ((cosines.sum((-2, -1)) - len(ids)) / (len(ids) * (len(ids) - 1))).tolist()
        facts[f"mean cosine of two tokens of {name}, before the first layer and behind the last"] = (
            f"{rows[name][0]:.2f}, {rows[name][-1]:.2f}; weights drawn anew {rows[label][0]:.2f}, {rows[label][-1]:.2f}"
        )
    by_depth = Labelled(torch.tensor(list(rows.values())), ("model", "depth"), {"model": list(rows)})
    panels.append(Panel("mean cosine of two tokens of a text", by_depth))
    start, off = torch.eye(8, 16, dtype=torch.float64), ~torch.eye(8, dtype=torch.bool)
    path = ParticleFlow(2.0).flow(start, 100, 0.02)[-1]
    apart = ((path @ path.mT)[off] - equal_angles([2.0], 2.0, 8)).abs().max()
    return panels, {
        "tokens at equal angles against the one equation, largest difference of cosines": f"{float(apart):.1g}",
        **{
            f"half of all pairs merged in 128 dimensions, beta = {beta:g}": (
                f"by time {time}; theory has angles merge at {merging_time(beta, n):.1f}"
            )
            for beta, time in when.items()
        },
        "clusters in the plane at beta = 9, at times 20, 30, 50": ", ".join(f"{counts[i]:.1f}" for i in (10, 15, 25)),
        **facts,
    }


def asymptotics() -> View:
    """Distances from where theorems have tokens end, with all that they ask and without."""
    cases: dict[str, list[str]] = {"as asked": [], "one hypothesis dropped": []}
    for case, theorem in consensus_theorems.THEOREMS.items():
        cases["as asked" if case == theorem else "one hypothesis dropped"].append(case)
    until, every, panels, facts = 40.0, 20, [], {}
    for label, names in cases.items():
        found = {name: consensus_theorems.checked_case(name, 0, until) for name in names}
        rows = torch.stack([check.distance[::every].clamp_min(1e-16).log10() for check in found.values()])
        times = [round(i * every * consensus_theorems.LENGTH) for i in range(rows.shape[1])]
        distances = Labelled(rows, ("of", "depth"), {"of": list(found), "depth": times})
        panels.append(Panel(f"{label}: distance, power of ten", distances))
        for name, check in found.items():
            lacks = [hypothesis for hypothesis, so in check.hypotheses.items() if not so]
            told = f"lacks: {lacks[0]}" if lacks else "all is so that it asks"
            facts[f"theorem {name}, distance at time {until:g}"] = f"{float(check.distance[-1]):.1e}; {told}"
            if check.applies and check.potential is not None:
                falling = Labelled(check.potential[::every], ("time",), {"time": times})
                facts["largest rise of the potential of theorem 3.2 in a step"] = (
                    f"{float(check.potential.diff().max()):.1g}"
                )
    return [*panels, Panel("potential of theorem 3.2", falling)], facts


VIEWS: dict[str, Callable[[], View]] = {
    "associative-memory": associative_memory,
    "hippocampus": hippocampus,
    "spins": spins,
    "particles": particles,
    "asymptotics": asymptotics,
}
