"""What studies measure is right where the answer is known."""

import math

import pytest
import torch

import glassformer as gf
from glassformer.analysis.behaviour import short_circuit
from glassformer.analysis.causal import ablate_each
from glassformer.analysis.heads import evaluate_heads
from glassformer.analysis.learning import Trajectory
from glassformer.data import Digits, Needle, UnseenWords, noise_images, stretched
from glassformer.data.batch import next_token_batch
from glassformer.data.text.planted import PlantedRows
from glassformer.errors import AnalysisUnavailable
from glassformer.files import json_text
from glassformer.handmade import induction_model, repeated
from glassformer.labelled import Labelled
from glassformer.models import patchify
from glassformer.models.accounting import count_parameters
from glassformer.studies import (
    balanced_experts,
    differential_distractors,
    differential_needles,
    dispersion,
    entropy_by_length,
    induction_by_mechanism,
    induction_heads,
    key_norms_beyond_length,
    linear_patterns,
    macaron_halves,
    memorisation,
    memory_beyond_window,
    noam_and_cosine,
    output_layers,
    path_collapse,
    phase_change,
    pola_accuracy,
    pola_entropy,
    sana_generator,
    sana_places,
    task_experts,
    titans_forgetting,
    titans_memory,
    two_layers_for_induction,
    why_softmax,
)
from glassformer.studies.one_copying_head import rank_correlation, scores
from glassformer.studies.rank_collapse import share
from glassformer.study import Case
from glassformer.testing import close


def test_a_model_wired_for_induction_completes_units_of_every_length_by_a_head_that_matches_prefixes(
    tmp_path, monkeypatch
):
    wired = induction_model(induction_by_mechanism.SYMBOLS + 1, induction_by_mechanism.LENGTH)
    monkeypatch.setattr(gf, "load", lambda folder: wired)
    lines = [{"step": i, "tokens": 100 * i, "loss": loss} for i, loss in enumerate((4.0, 2.2, 2.0, 1.0))]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json_text, lines)))
    case = Case({"mechanism": "softmax"}, {"steps": 1}, 0, trains=lambda config: tmp_path)
    given = induction_by_mechanism.run(case).items()
    found = {name: value if isinstance(value, int | float) else value() for name, value in given}
    assert max(found["share_of_chance"], found["share_short"], found["share_long"]) < 1e-3
    assert found["prefix_matching"] > 0.99
    # half of ln 32 is 1.73
    assert found["tokens_until"] == 300


def test_of_heads_wired_by_hand_the_one_that_copies_has_positive_eigenvalues_and_copies():
    predicted, measured = scores(induction_model(), 0, 10)
    # blank heads have no eigenvalues; the head that looks back writes where no logit reads it
    assert len(predicted) == len(measured) == 1
    assert predicted[0] == pytest.approx(1) and measured[0] > 0.99


def test_rank_correlation_asks_for_order_alone():
    drawn = torch.randn(9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert rank_correlation(drawn, drawn.exp()) == pytest.approx(1)
    assert rank_correlation(drawn, -(drawn**3)) == pytest.approx(-1)
    assert math.isnan(rank_correlation(drawn[:1], drawn[:1]))


def test_paths_of_all_lengths_sum_to_what_the_network_returns_and_end_in_that_of_all_heads():
    generator = torch.Generator().manual_seed(0)
    layers = [[torch.randn(2, 6, 6, generator=generator, dtype=torch.float64) for _ in range(3)] for _ in range(4)]
    x = torch.randn(5, 6, generator=generator, dtype=torch.float64)
    sums, patterns = path_collapse.by_length(x, layers)
    assert len(sums) == 5 and len(patterns) == 4
    close(torch.stack(sums).sum(0), path_collapse.network(x, layers))
    close(sums[0], x)
    longest = x
    for pattern, (_, _, out) in zip(patterns, layers, strict=True):
        longest = (pattern @ longest @ out).sum(0) / math.sqrt(2)
    close(sums[-1], longest)


def test_tokens_that_are_all_alike_stay_so_on_every_path():
    generator = torch.Generator().manual_seed(0)
    layers = [[torch.randn(2, 6, 6, generator=generator, dtype=torch.float64) for _ in range(3)] for _ in range(3)]
    alike = torch.randn(6, generator=generator, dtype=torch.float64).expand(5, 6)
    assert all(share(path) < 1e-9 for path in path_collapse.by_length(alike, layers)[0])


def test_shares_of_attention_are_what_even_attention_gives_where_all_weights_are_zero():
    data = Needle(length=32, n_needles=3, n_names=4)
    model = differential_needles.recipe("softmax", data, 1).model.build()
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    tokens, answers = differential_needles.asked(data)
    found = differential_needles.looked(model, tokens, differential_needles.parts_of(tokens, answers, data))
    # three needles with values, another to ask by, and <bos> among 32 tokens
    expected = {"on_answer": 1 / 32, "on_others": 2 / 32, "on_noise": 24 / 32}
    assert found == pytest.approx(expected)
    assert differential_distractors.sizes(model, tokens) == {"largest_score": 0, "median_score": 0}


def test_frequent_words_are_the_fewest_that_do_not_exceed_half_of_what_is_read():
    rare = output_layers.is_rare(torch.tensor([0.1, 0.4, 0.3, 0.2], dtype=torch.float64))
    assert rare.tolist() == [True, False, True, True]


def test_schedules_that_are_compared_have_the_same_peak_at_the_same_step():
    found = [noam_and_cosine.recipe(str(kind), 100) for kind in noam_and_cosine.STUDY.grid["schedule"]]
    for recipe in found:
        rates = [recipe.optim.rate(step, recipe.steps, recipe.model.d_model) for step in range(1, 101)]
        assert max(rates) == pytest.approx(noam_and_cosine.PEAK)
        assert rates[noam_and_cosine.WARMUP - 1] == max(rates)


def test_the_best_loss_is_near_that_of_all_rows():
    # 512 rows of 32 symbols: the standard error is 0.012
    assert noam_and_cosine.best_loss() == pytest.approx(noam_and_cosine.DATA.optimal_loss(), abs=0.02)


@pytest.mark.full
def test_of_an_induction_circuit_wired_by_hand_each_argument_says_what_was_wired():
    # a vocabulary that leaves room for fresh tokens between the copies
    model = induction_model(60, 128)
    rows = next_token_batch(repeated(60, batch=4))
    found = induction_heads.Circuit(model, evaluate_heads(model, rows.tokens))
    assert (found.induction, found.best, found.source) == (["L1H0"], "L1H0", "L0H0")
    assert found.matching_without_source() < 0.1
    assert found.score("L1H0", "copying") > 0.9
    assert found.k_composition() > 4
    # L0H0 carries as much as L1H0, the blank heads nothing: of three others the middle one is blank
    assert abs(found.median_of_others(ablate_each(model, rows).icl_share)) < 1e-6


def test_a_model_without_induction_heads_has_nothing_to_ablate():
    model = induction_model(60, 128)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    found = induction_heads.Circuit(model, evaluate_heads(model, repeated(60, batch=2)))
    with pytest.raises(AnalysisUnavailable, match="there is no induction head"):
        assert found.best


def test_tokens_until_and_apart_are_read_from_the_curves():
    steps = [0, 10, 20, 40, 80, 160]
    curves = torch.tensor([[0, 0, 0, 0.6, 0.9, 0.9], [0, 0, 0, 0, -0.4, -0.45]], dtype=torch.float64)
    zeros = torch.zeros(6, dtype=torch.float64)
    measures = Labelled(
        torch.stack([zeros + 3, curves[1], curves[0], zeros], 1), ("step", "measure"),
        {"step": steps, "measure": ["loss", "icl_score", "prefix_matching", "previous_token"]},
    )  # fmt: skip
    losses = Labelled(torch.zeros(6, 4, dtype=torch.float64), ("step", "pos"), {"step": steps})
    interval = Labelled(
        torch.zeros(6, 2, dtype=torch.float64), ("step", "end"), {"step": steps, "end": ["low", "high"]}
    )
    path = Trajectory(
        losses, measures, interval, ("L0H0",) * 6, Labelled(torch.tensor(steps), ("step",), {"step": steps}), "made", 1
    )
    assert phase_change.tokens_until(path) == 40
    # prefix matching rises from 20 to 40, the score falls from 40 to 80: a doubling apart
    assert phase_change.apart(path) == pytest.approx(2)


def test_recitation_and_cost_are_those_of_the_layers_named():
    ids = repeated(60, batch=4)
    planted, rows = PlantedRows(ids[:, :80], torch.tensor([0, 0, 16, 16]), 64), next_token_batch(ids)
    found = short_circuit(induction_model(60, 128), planted, rows)
    # the second copy goes on by induction, whatever was shown; without the layer that looks back nothing does
    assert memorisation.recited(found, "none", 16) == 1
    assert memorisation.recited(found, "layer 1", 0) == 0
    cost = float(found.novel_loss_change.select(layers="layer 1").values)
    assert memorisation.cost(found, ("layer 1",)) == pytest.approx(cost) and cost > 0.5
    assert memorisation.cost(found, ("none", "layer 1")) == pytest.approx(cost / 2)


def test_words_that_nobody_saw_cost_chance_where_nothing_is_known():
    data = UnseenWords(seed=3)
    rows = [data.build().batch(i, "heldout") for i in range(2)]
    case = Case({"model": "two layers"}, {"steps": 1}, 3)
    even = torch.full((len(rows) * rows[0].tokens.shape[0], rows[0].tokens.shape[1]), math.log(data.alphabet))
    found = two_layers_for_induction.measures_of(case, rows, even)
    assert found["share_of_chance"] == pytest.approx(1) and found["gain"] == pytest.approx(0, abs=1e-6)
    marks = data.marks(torch.cat([torch.cat((row.tokens, row.targets[:, -1:]), 1) for row in rows]))
    known = torch.where((marks.letter > 0) & (marks.occurrence > 1), 0.0, even)
    found = two_layers_for_induction.measures_of(case, rows, known)
    assert found["share_of_chance"] == 0 and found["gain"] == pytest.approx(math.log(data.alphabet))


def test_a_head_that_asks_for_nothing_spreads_evenly_and_the_rule_acts_on_four_keys_and_not_on_512():
    finder = dispersion.Finder()
    torch.nn.init.zeros_(finder.query)
    few, many = (
        dispersion.measured(finder, *dispersion.drawn(3, n, torch.Generator().manual_seed(0))) for n in (4, 512)
    )
    close(few["entropy"], torch.full_like(few["entropy"], math.log(4)), 1e-6)
    close(many["largest"], torch.full_like(many["largest"], 1 / 512), 1e-6)
    assert bool(few["sharpened"].all()) and not bool(many["sharpened"].any())
    # rows that are even stay so, however sharp
    assert torch.equal(few["accuracy"], few["accuracy_rule"])


def test_scores_without_spread_have_the_entropy_of_even_rows_at_every_length():
    for temperature in (entropy_by_length.PLAIN, entropy_by_length.LOG_N):
        case = Case({"temperature": temperature, "n": 48}, {"rows": 16}, 0)
        assert entropy_by_length.noise(0.0, case) == pytest.approx(math.log(48))


def test_log_n_at_test_time_alone_changes_nothing_within_the_trained_length():
    plain, tested = (
        entropy_by_length.decoder(kind).build(seed=1).double()
        for kind in (entropy_by_length.PLAIN, entropy_by_length.TESTED)
    )
    ids = torch.randint(512, (2, 70), generator=torch.Generator().manual_seed(0))
    trained = entropy_by_length.TRAINED
    close(tested(ids)[:, :trained], plain(ids)[:, :trained])
    assert not torch.equal(tested(ids)[:, trained:], plain(ids)[:, trained:])


def test_a_choice_tells_all_of_the_chain_or_nothing_of_it():
    chain = torch.arange(4).repeat_interleave(4)
    for expert, bits in ((chain, 2.0), (torch.arange(16) % 4, 0.0), (chain // 2, 1.0)):
        chosen = torch.nn.functional.one_hot(expert, 4)[:, None].expand(16, 5, 4)
        assert balanced_experts.told(chosen) == pytest.approx(bits)


def test_the_rank_of_products_of_features_is_how_many_features_there_are_whatever_divides_the_rows():
    q, k = torch.randn(2, 5, 32, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).exp()
    pattern = q @ k.mT
    assert linear_patterns.rank(pattern / pattern.sum(-1, keepdim=True)) == 16
    assert linear_patterns.rank(pattern.softmax(-1)) > 16


def test_with_both_normed_scores_are_cosines_times_what_the_article_has():
    model = key_norms_beyond_length.recipe(key_norms_beyond_length.COSINE, 1).model.build().double()
    read = gf.run(model, torch.arange(1, 9)[None], read=["query", "key", "scores"])
    q, k, scores = (read[name, 1].values for name in ("query", "key", "scores"))
    cosines = torch.nn.functional.cosine_similarity(q[..., :, None, :], k[..., None, :, :], dim=-1)
    seen = scores > -math.inf
    close(scores[seen], (4 * math.log(32) * cosines)[seen])


def test_what_is_missed_is_all_that_an_even_row_gives_to_others_and_nothing_of_a_look_up():
    even, exact = torch.full((5, 5), 0.2, dtype=torch.float64), torch.eye(5, dtype=torch.float64)
    close(why_softmax.missed(even), torch.full((5,), 0.8, dtype=torch.float64))
    assert not bool(why_softmax.missed(exact).any())
    orthogonal = why_softmax.pattern(why_softmax.MIXERS["score"], exact, exact)
    close(orthogonal, exact)


def test_entropies_are_those_of_weights_over_their_sum_and_powers_are_put_on_features():
    close(
        pola_entropy.entropy(torch.full((1, 8), 3.0, dtype=torch.float64)),
        torch.tensor([math.log(8)], dtype=torch.float64),
    )
    drawn = torch.tensor([[0.1, 0.2]], dtype=torch.float64)
    close(pola_entropy.entropy(drawn), torch.tensor([math.log(3 / 2 ** (2 / 3))], dtype=torch.float64))
    q = torch.tensor([[[1.0, -2.0], [3.0, 1.0]]], dtype=torch.float64).repeat(1, 1, 4)
    products = (q[:, :, None] * q[:, None]).clamp_min(0) / math.log(2) ** 2
    for power in (1, 2):
        weights = products.pow(power).sum(-1)
        close(pola_entropy.same_signs(q, q, power), weights / weights.sum(-1, keepdim=True))


@pytest.mark.parametrize("places", list(sana_generator.NEURONS))
def test_generators_have_as_many_parameters_and_the_mean_is_one_of_all_patches(places: str):
    data = Digits(packaged=True)
    mixers = (sana_generator.SANA, sana_generator.UNIFORM)
    built = {mixer: sana_generator.generator(mixer, places, data, 1).model.build() for mixer in mixers}
    sizes = [sum(parameter.numel() for parameter in model.parameters()) for model in built.values()]
    assert abs(sizes[0] - sizes[1]) < 0.02 * sizes[0]
    batch = noise_images(torch.zeros(1, 1, 8, 8), torch.tensor([3]), torch.tensor([0.5]))
    run = gf.run(built[sana_generator.UNIFORM], batch, read=["pattern"])
    for layer in range(4):
        close(run["pattern", layer].values, torch.full((1, 4, 16, 16), 1 / 16))


def test_samples_are_judged_by_their_pixels_and_copies_are_seen():
    images = data = stretched(Digits(packaged=True).every("train").images)
    assert sana_generator.nearest(images, data) < 1e-2 < sana_generator.nearest(-images, data)
    one, other = sana_generator.halved(images, torch.Generator().manual_seed(0))
    assert len(one) == len(other) == len(images) // 2
    assert sana_generator.nearest(one, other) > 1
    assert abs(sana_generator.distance(images, images)) < 1e-6 < 1 < sana_generator.distance(images, -images)


def test_rows_without_mass_have_no_entropy_to_be_averaged():
    rows = torch.tensor([[[2.0, 2.0], [0.0, 0.0]], [[0.0, 3.0], [1.0, 1.0]]], dtype=torch.float64)
    close(pola_accuracy.entropy(rows), torch.tensor([math.log(2), 0.0, math.log(2)], dtype=torch.float64))


def test_models_that_are_compared_have_as_many_parameters_to_two_hundredths():
    def parameters(mixer: str) -> int:
        config = pola_accuracy.encoder(mixer, "shapes", pola_accuracy.neurons(mixer, "shapes"))
        return sum(count_parameters(config).values())

    counts = [parameters(mixer) for mixer in (*pola_accuracy.MIXERS, pola_accuracy.POLA, pola_accuracy.NONE)]
    assert max(counts) < 1.02 * min(counts)


def test_moved_patches_are_those_of_the_image_in_other_places():
    images = torch.arange(2.0 * 256).view(2, 1, 16, 16)
    found = sana_places.moved(images, torch.Generator().manual_seed(0))
    assert not torch.equal(found, images)
    for one, other in zip(patchify(images, 4), patchify(found, 4), strict=True):
        assert sorted(one.tolist()) == sorted(other.tolist())


def test_halves_are_of_second_order_where_they_are_solved_and_of_first_by_steps_of_euler():
    generator = torch.Generator().manual_seed(0)
    fields = [torch.randn(4, 4, generator=generator, dtype=torch.float64) * 0.4 for _ in range(2)]
    start, exact = torch.ones(4, 1, dtype=torch.float64), macaron_halves.SOLVERS["exact"]
    for kind, order in (("usual", 1), ("macaron", 2), ("attention halved", 2)):
        assert macaron_halves.order(exact, fields, start, kind) == pytest.approx(order, abs=0.05)
    euler = macaron_halves.SOLVERS["euler"]
    assert macaron_halves.order(euler, fields, start, "macaron") == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("redefined", [True, False])
def test_questions_of_rows_of_topics_are_answered_by_the_last_fact_told_of_their_key(redefined: bool):
    rows = titans_memory.told(5, torch.Generator().manual_seed(0), topics=4, redefined=redefined)
    assert (rows.tokens[:, :: titans_memory.WINDOW] == titans_memory.NEW).all()
    first, changed = titans_memory.FIRST_FACT, 0
    for tokens, answers, asked in zip(*(x.tolist() for x in rows), strict=True):
        known: dict[int, int] = {}
        for token, answer, is_question in zip(tokens, answers, asked, strict=True):
            key, what = divmod(token - first, titans_memory.VALUES)
            if is_question:
                assert answer - titans_memory.FIRST_ANSWER == known[token - titans_memory.FIRST_QUESTION]
            elif token != titans_memory.NEW:
                changed += known.get(key, what) != what
                known[key] = what
        assert len(known) == titans_memory.KEYS
    assert (changed > 0) == redefined


def test_rows_that_repeat_have_one_fact_whose_value_is_another_where_they_say():
    tokens, place = titans_memory.repeated(50, torch.Generator().manual_seed(0))
    unit = tokens[:, : titans_memory.KEYS]
    other = tokens != unit.repeat(1, titans_memory.LENGTH // titans_memory.KEYS)
    assert (other.sum(1) == 1).all() and (other.double().argmax(1) == place).all()
    planted, known = (x.gather(1, at[:, None]) - 1 for x, at in ((tokens, place), (unit, place % titans_memory.KEYS)))
    assert (planted // titans_memory.VALUES == known // titans_memory.VALUES).all()


def test_a_memory_that_writes_is_surprised_by_a_new_value_and_attention_by_nothing():
    case = Case({}, {}, 0)
    memory, attention = (
        titans_memory.decoder(titans_memory.layers(name)).build(0) for name in ("alone", titans_memory.ALL)
    )
    assert titans_memory.novelty(memory, case)[0] > 1
    with pytest.raises(AnalysisUnavailable, match="learns nothing"):
        titans_memory.novelty(attention, case)


def test_a_memory_with_its_decay_switched_off_forgets_nothing():
    model = titans_memory.decoder(titans_memory.layers("alone")).build(0)
    rows = titans_memory.told(2, torch.Generator().manual_seed(0), topics=4)
    found = gf.run(model, rows.tokens, read="*.log_decay", edit=titans_forgetting.NEVER)
    assert (found["blocks.0.attn.log_decay"].values == 0).all()
    assert all(0 < alpha < 0.1 for alpha in titans_forgetting.forgotten(model, rows).values())


@pytest.mark.parametrize("distance", [memory_beyond_window.NEAR, memory_beyond_window.FAR])
def test_questions_stand_so_far_behind_the_value_that_they_ask_for(distance: int):
    batch = memory_beyond_window.asked(distance).build().batch(0)
    assert (batch.tokens[:, -1 - distance] == batch.targets[:, -1]).all()


def test_two_layers_reach_what_the_study_says():
    length = memory_beyond_window.LENGTH
    for memory, reach in {"window": 14, "segments alone": 7, "segments": 23, "all": length - 1}.items():
        model = memory_beyond_window.recipe(memory, 1).model.build(0).double()
        stream = torch.randn(1, length, memory_beyond_window.WIDTH, dtype=torch.float64, requires_grad=True)
        felt = torch.autograd.grad(model.eval().resume(0, stream)[0, -1].square().sum(), stream)[0]
        seen = (felt[0].abs().sum(-1) > 0).nonzero()
        assert length - 1 - int(seen.min()) == reach, memory


def test_the_unseen_task_of_experts_is_longer_than_any_that_is_trained_on_and_fits_their_decoder():
    seen, unseen = task_experts.TASKS[str(task_experts.UNSEEN.kind)], task_experts.UNSEEN
    recipe, trained = task_experts.RECIPE, [len(one.prompt.split()) for one in seen.questions(200)]
    asked = unseen.questions(50, "heldout") + unseen.questions(50, "test")
    assert min(len(one.prompt.split()) for one in asked) > max(trained) == seen.longest().prompt
    assert all(seen.answer(one.prompt) == one.answer for one in asked)
    assert set(unseen.symbols() or ()) <= set(recipe.data.symbols() or ())
    # <bos> in front and the end behind
    assert sum(unseen.longest()) + 2 <= recipe.model.max_len
