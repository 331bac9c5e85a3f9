"""Generation: what sampling keeps, what a state carries, what a beam finds."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

import glassformer as gf
from glassformer import weights
from glassformer.attention import Alibi, Differential, Lightning, Linear, QueryKeyOnly, Rope, Softmax
from glassformer.errors import ConfigError, ShapeMismatch, TextError, TokenOutOfRange, WrongArgument
from glassformer.models import (
    GREEDY,
    DecoderConfig,
    EncoderDecoderConfig,
    Learned,
    Mlp,
    NoNorm,
    RmsNorm,
    Sampling,
    Sinusoidal,
    beam_search,
    block,
    generate,
    repeat,
    sampling_steps,
    stream,
)  # fmt: skip
from glassformer.models.passes import select_rows
from glassformer.testing import close
from glassformer.testing.models import subject
from one_pass import in_one_pass

VOCAB, WIDTH = 11, 16
PROMPTS = [[3, 1, 4, 1, 5], [9, 2], [6, 5, 3, 5], [8]]
SOURCES = [[1, 2, 3], [4, 5], [6, 7, 8, 9], [10]]


def decoder(**kwargs: Any):
    positions = kwargs.pop("stream_positions", None)
    layer = block(n_heads=4, mlp=Mlp(24), **kwargs)
    return DecoderConfig(VOCAB, WIDTH, repeat(layer, 2), max_len=64, positions=positions)


def encoder_decoder(wiring: str):
    kwargs: dict[str, Any] = {"n_heads": 4, "mlp": Mlp(24, activation="relu"), "wiring": wiring}
    final = NoNorm() if wiring == "post" else RmsNorm()
    encoder, decoder = block(**kwargs), block(cross=True, **kwargs)
    return EncoderDecoderConfig(VOCAB, WIDTH, repeat(encoder, 2), repeat(decoder, 2), max_len=64, final_norm=final)


ARCHITECTURES = {
    "mha": decoder(),
    "gqa": decoder(n_kv_heads=2, positions=Rope()),
    "mqa": decoder(n_kv_heads=1, positions=Rope(pairing="interleaved", fraction=0.5)),
    "window": decoder(mixer=Softmax(window=3), positions=Rope()),
    "window of one": decoder(mixer=Softmax(window=1)),
    "alibi": decoder(positions=Alibi()),
    "alibi and window": decoder(mixer=Softmax(window=3), positions=Alibi()),
    "query-key-only": decoder(positions=QueryKeyOnly()),
    "learned": decoder(stream_positions=Learned()),
    "sinusoidal": decoder(stream_positions=Sinusoidal()),
    "linear": decoder(mixer=Linear(), positions=Rope()),
    "lightning": decoder(**Lightning(chunk=4).as_published()),
    "differential": decoder(n_kv_heads=2, positions=Rope(), **Differential().as_published(1)),
    "parallel": decoder(wiring="parallel", positions=Rope()),
    "capped": decoder(positions=Rope()).replace(logit_cap=0.3),
    "encoder-decoder post": encoder_decoder("post"),
    "encoder-decoder pre": encoder_decoder("pre"),
}
every_architecture = pytest.mark.parametrize("config", ARCHITECTURES.values(), ids=ARCHITECTURES.keys())
few_architectures = pytest.mark.parametrize("name", ["gqa", "encoder-decoder post"])


def built(config, seed: int = 0):
    model = config.build(seed=seed).double().eval()
    # fresh models are nearly uniform: larger weights make every choice count
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0 if parameter.ndim > 1 else 1.0)
    return model


def sources(config, rows: slice = slice(None)) -> dict[str, Any]:
    return {"source": SOURCES[rows]} if isinstance(config, EncoderDecoderConfig) else {}


@torch.no_grad()
def recomputed(model, prompt: list[int], source: list[int] | None, steps: int) -> tuple[list[int], list[float]]:
    """Greedy decoding that reads the whole text again at every step."""
    ids, log_probs = list(prompt), []
    for _ in range(steps):
        inputs = (torch.tensor([ids]),) if source is None else (torch.tensor([source]), torch.tensor([ids]))
        last = model(*inputs)[0, -1].log_softmax(-1)
        ids.append(int(last.argmax()))
        log_probs.append(float(last.max()))
    return ids[len(prompt) :], log_probs


@every_architecture
def test_decoding_with_a_state_equals_reading_everything_again(config) -> None:
    model = built(config)
    for i, prompt in enumerate(PROMPTS[:1]):
        source = SOURCES[i] if isinstance(config, EncoderDecoderConfig) else None
        tokens, log_probs = recomputed(model, prompt, source, steps=6)
        found = generate(model, [prompt], GREEDY, max_new_tokens=6, **sources(config, slice(i, i + 1)))
        assert list(found.tokens[0]) == tokens
        close(torch.tensor(found.log_probs[0]), torch.tensor(log_probs))


@every_architecture
def test_a_row_of_a_batch_equals_generating_it_alone(config) -> None:
    model, sampling = built(config), Sampling(seed=7, repetition_penalty=1.3)
    together = generate(model, PROMPTS, sampling, max_new_tokens=5, stop_ids=[2], **sources(config))
    for row, prompt in enumerate(PROMPTS):
        own = sampling.replace(seed=sampling.seed + row)
        alone = generate(model, [prompt], own, max_new_tokens=5, stop_ids=[2], **sources(config, slice(row, row + 1)))
        assert alone.tokens[0] == together.tokens[row]
        close(torch.tensor(alone.log_probs[0]), torch.tensor(together.log_probs[row]))


@few_architectures
@pytest.mark.parametrize(
    "sampling", [Sampling(top_k=1), Sampling(temperature=1e-300), Sampling(top_p=1e-9), Sampling(min_p=1.0)], ids=str
)
def test_every_limit_of_sampling_is_greedy(name: str, sampling: Sampling) -> None:
    config = ARCHITECTURES[name]
    model = built(config)
    greedy = generate(model, PROMPTS, GREEDY, max_new_tokens=6, **sources(config))
    assert generate(model, PROMPTS, sampling, max_new_tokens=6, **sources(config)) == greedy


def test_the_same_seed_gives_the_same_tokens_and_another_seed_others() -> None:
    model = built(ARCHITECTURES["mha"])
    first, again, other = (
        generate(model, PROMPTS, Sampling(seed=seed), max_new_tokens=12).tokens for seed in (1, 1, 100)
    )
    assert first == again
    assert first != other


def test_equal_prompts_in_one_batch_draw_differently() -> None:
    first, second = generate(built(ARCHITECTURES["mha"]), [[1, 2]] * 2, Sampling(temperature=2.0)).tokens
    assert first != second


def test_a_row_ends_with_its_stop_token_and_the_others_go_on() -> None:
    model = built(ARCHITECTURES["mha"])
    free = generate(model, PROMPTS, Sampling(seed=3), max_new_tokens=12)
    stop = free.tokens[0][2]
    found = generate(model, PROMPTS, Sampling(seed=3), max_new_tokens=12, stop_ids=[stop])
    for whole, row, stopped, trimmed in zip(free.tokens, found.tokens, found.stopped, found.trimmed):
        end = whole.index(stop) + 1 if stop in whole else len(whole)
        assert row == whole[:end]
        assert stopped == (stop in whole)
        assert trimmed == whole[: end - stopped]


def test_streaming_yields_the_tokens_of_generate_one_step_at_a_time() -> None:
    model = built(ARCHITECTURES["gqa"])
    found = generate(model, PROMPTS, Sampling(seed=5), max_new_tokens=7)
    steps = stream(model, PROMPTS, Sampling(seed=5), max_new_tokens=7)
    assert next(steps).tokens == tuple(row[0] for row in found.tokens)
    assert [step.tokens for step in steps] == list(zip(*found.tokens))[1:]


def test_streaming_leaves_the_callers_gradient_mode_alone() -> None:
    steps = stream(built(ARCHITECTURES["mha"]), [[1]], max_new_tokens=3)
    next(steps)
    assert torch.is_grad_enabled()


# sampling -------------------------------------------------------------------------------------------------------------

logits_rows = st.integers(0, 10_000).map(
    lambda seed: torch.randn(3, 20, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3
)


@given(logits_rows, st.floats(0.01, 1.0))
def test_top_p_keeps_the_smallest_set_that_reaches_p(logits: Tensor, p: float) -> None:
    stage = sampling_steps(logits, Sampling(top_p=p)).stages[-1]
    for row, kept in zip(logits.softmax(-1), stage.logits.isfinite()):
        assert row[kept].sum() >= p - 1e-12
        assert row[kept].sum() - row[kept].min() < p
        assert row[kept].min() >= row[~kept].max() if not kept.all() else True


@given(logits_rows, st.integers(1, 30))
def test_top_k_keeps_the_k_largest(logits: Tensor, k: int) -> None:
    stage = sampling_steps(logits, Sampling(top_k=k)).stages[-1]
    assert stage.kept.tolist() == [min(k, 20)] * 3
    for row, kept in zip(logits, stage.logits.isfinite()):
        assert set(row[kept].tolist()) == set(row.sort(descending=True).values[:k].tolist())


@given(logits_rows, st.floats(0.0, 1.0))
def test_min_p_keeps_what_is_likely_enough_beside_the_likeliest(logits: Tensor, fraction: float) -> None:
    stage = sampling_steps(logits, Sampling(min_p=fraction)).stages[-1]
    probabilities = logits.softmax(-1)
    expected = probabilities >= fraction * probabilities.amax(-1, keepdim=True)
    assert torch.equal(stage.logits.isfinite(), expected)


@given(logits_rows, st.floats(0.1, 5.0))
def test_temperature_is_a_power_of_the_probabilities(logits: Tensor, temperature: float) -> None:
    stage = sampling_steps(logits, Sampling(temperature=temperature)).stages[-1]
    powered = logits.softmax(-1) ** (1 / temperature)
    close(stage.probabilities, powered / powered.sum(-1, keepdim=True), 1e-7)


def test_the_repetition_penalty_makes_seen_tokens_less_likely_and_no_others() -> None:
    logits = torch.tensor([[2.0, -2.0, 1.0]])
    seen = torch.tensor([[True, True, False]])
    stages = sampling_steps(logits, Sampling(repetition_penalty=2.0, temperature=0.0), seen=seen).stages
    assert [stage.name for stage in stages] == ["logits", "repetition_penalty", "temperature"]
    assert stages[1].logits.tolist() == [[1.0, -4.0, 1.0]]


def test_stages_come_in_order_and_filters_switched_off_are_left_out() -> None:
    steps = sampling_steps(torch.randn(2, 9), Sampling(0.7, 5, 0.9, 0.01))
    assert [stage.name for stage in steps.stages] == ["logits", "temperature", "top_k", "top_p", "min_p"]
    assert [stage.name for stage in sampling_steps(torch.randn(2, 9), Sampling()).stages] == ["logits", "temperature"]
    assert [stage.name for stage in sampling_steps(torch.randn(2, 9), GREEDY).stages] == ["logits", "temperature"]


def test_draws_follow_the_distribution() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().expand(20_000, 4)
    counts = sampling_steps(logits, Sampling()).tokens.bincount(minlength=4) / 20_000
    # five standard deviations of a binomial share
    assert (counts - torch.tensor([0.5, 0.3, 0.15, 0.05])).abs().max() < 5 * (0.25 / 20_000) ** 0.5


def test_the_first_step_of_generate_is_the_one_that_sampling_steps_shows() -> None:
    model, sampling = built(ARCHITECTURES["mha"]), Sampling(0.9, 6, 0.95, 0.01, seed=11)
    shown = sampling_steps(model(torch.tensor([PROMPTS[0]]))[:, -1], sampling)
    assert generate(model, PROMPTS[:1], sampling, max_new_tokens=1).tokens[0][0] == int(shown.tokens[0])


@in_one_pass
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1.0),
        ("temperature", float("nan")),
        ("top_k", 0),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", -0.1),
        ("repetition_penalty", 0.0),
    ],
)
def test_settings_that_mean_nothing_are_refused(field: str, value: Any) -> None:
    with pytest.raises((ConfigError, WrongArgument), match=field):
        Sampling(**{field: value})


# states ---------------------------------------------------------------------------------------------------------------


@every_architecture
@torch.no_grad()
def test_a_state_can_be_continued_twice_and_stays_what_it_was(config) -> None:
    model = built(config)
    crossed = isinstance(config, EncoderDecoderConfig)
    read: Callable = (lambda t, s: model(None, t, state=s)) if crossed else (lambda t, s: model(t, state=s))
    state = model.begin(torch.tensor(SOURCES[:1])) if crossed else model.begin(1)
    _, state = read(torch.tensor([[1, 2, 3]]), state)
    step = torch.tensor([[4]])
    expected, _ = read(step, state)
    for other in (5, 6):
        _, branch = read(torch.tensor([[other]]), state)
        read(torch.tensor([[7]]), branch)
    assert torch.equal(read(step, state)[0], expected)


@few_architectures
@torch.no_grad()
def test_selecting_rows_of_a_state_selects_rows_of_what_follows(name: str) -> None:
    config = ARCHITECTURES[name]
    model = built(config)
    crossed = isinstance(config, EncoderDecoderConfig)
    source = torch.tensor([[1, 2], [3, 4], [5, 6]])
    state = model.begin(source) if crossed else model.begin(3)
    read: Callable = (lambda t, s: model(None, t, state=s)) if crossed else (lambda t, s: model(t, state=s))
    _, state = read(torch.tensor([[1, 2], [3, 4], [5, 6]]), state)
    rows = torch.tensor([2, 0, 0, 1])
    expected, _ = read(torch.tensor([[7], [8], [9]]), state)
    found, _ = read(torch.tensor([[7], [8], [9]])[rows], select_rows(state, rows))
    close(found, expected[rows])


# beams ----------------------------------------------------------------------------------------------------------------


@few_architectures
@pytest.mark.parametrize("alpha", [0.0, 2.0])
def test_one_beam_is_greedy(name: str, alpha: float) -> None:
    config = ARCHITECTURES[name]
    model = built(config)
    greedy = generate(model, PROMPTS, GREEDY, max_new_tokens=7, stop_ids=[2, 5], **sources(config))
    found = beam_search(
        model, PROMPTS, n_beams=1, length_penalty=alpha, max_new_tokens=7, stop_ids=[2, 5], **sources(config)
    )
    for row, best in enumerate(found.best):
        assert best.tokens == greedy.tokens[row]
        assert best.stopped == greedy.stopped[row]
        assert best.log_prob == pytest.approx(sum(greedy.log_probs[row]))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("wiring", ["pre", "post"])
def test_a_beam_as_wide_as_the_tree_finds_the_best_continuation(seed: int, wiring: str) -> None:
    config = encoder_decoder(wiring).replace(vocab_size=4)
    model, source, eos, depth = built(config, seed), [1, 2, 3], 2, 3
    found = beam_search(
        model, [[1]], source=[source], n_beams=4**depth, length_penalty=0.6, max_new_tokens=depth, stop_ids=[eos]
    ).best[0]

    @torch.no_grad()
    def score(tokens: tuple[int, ...]) -> float:
        log_probs = model(torch.tensor([source]), torch.tensor([[1, *tokens[:-1]]]))[0].log_softmax(-1)
        return float(log_probs[range(len(tokens)), list(tokens)].sum()) / ((5 + len(tokens)) / 6) ** 0.6

    lines = [line for n in range(depth) for line in itertools.product((0, 1, 3), repeat=n)]
    scores = {(*line, eos): score((*line, eos)) for line in lines}
    best = max(scores, key=lambda line: scores[line])
    assert found.tokens == best
    assert found.score == pytest.approx(scores[best])


def test_a_beam_row_of_a_batch_equals_searching_it_alone() -> None:
    config = ARCHITECTURES["encoder-decoder post"]
    model = built(config)
    together = beam_search(model, PROMPTS, source=SOURCES, n_beams=3, max_new_tokens=6, stop_ids=[2])
    for row, hypotheses in enumerate(together.hypotheses):
        alone = beam_search(
            model, [PROMPTS[row]], source=[SOURCES[row]], n_beams=3, max_new_tokens=6, stop_ids=[2]
        ).hypotheses[0]
        assert [h.tokens for h in alone] == [h.tokens for h in hypotheses]


# bad input ------------------------------------------------------------------------------------------------------------


def test_an_empty_prompt_is_refused() -> None:
    model = built(ARCHITECTURES["mha"])
    with pytest.raises(TextError, match="row 1 holds no tokens"):
        generate(model, [[1], []])
    with pytest.raises(TextError, match="no token to read: give at least one"):
        generate(model, [])


@pytest.mark.parametrize("id", [-1, VOCAB])
def test_an_id_outside_the_vocabulary_is_refused(id: int) -> None:
    with pytest.raises(TokenOutOfRange, match=f"token id {id} is outside the vocabulary: 0 to {VOCAB - 1}"):
        generate(built(ARCHITECTURES["mha"]), [[1, id]])


def test_more_tokens_than_learned_positions_are_refused_before_any_work() -> None:
    model = built(ARCHITECTURES["learned"].replace(max_len=8))
    with pytest.raises(TextError, match="max_len=8 only; ask for at most 6 new ones"):
        stream(model, [[1, 2, 3]], max_new_tokens=7)
    with pytest.raises(TextError, match="learned positions"):
        stream(model, [[1, 2, 3]], max_new_tokens=7, beyond_context=True)
    assert len(generate(model, [[1, 2, 3]], GREEDY, max_new_tokens=6).tokens[0]) == 6


def test_a_source_is_asked_of_an_encoder_decoder_and_refused_by_a_decoder() -> None:
    with pytest.raises(ShapeMismatch, match="reads a source too, and there is none"):
        generate(built(ARCHITECTURES["encoder-decoder post"]), [[1]])
    with pytest.raises(ShapeMismatch, match="has no encoder, so it reads no source"):
        generate(built(ARCHITECTURES["mha"]), [[1]], source=[[1]])


@pytest.mark.parametrize("search", [generate, beam_search])
def test_lengths_that_no_source_has_are_refused(search: Any) -> None:
    model = built(encoder_decoder("post"))
    source = torch.tensor([[1, 2, 3, 0], [4, 5, 6, 7]])

    def found(lengths: list[int], source: Any = source) -> Any:
        return search(model, [[1], [1]], source=source, source_lengths=torch.tensor(lengths), max_new_tokens=2)

    for lengths, words in (
        ([3, 9], "a length of 9: rows have 1 to 4 real tokens"),
        ([0, 4], "a length of 0: rows"),
        ([3], "one for each of 2 rows"),
    ):
        with pytest.raises(ShapeMismatch, match=words):
            found(lengths)
    with pytest.raises(ShapeMismatch, match="rows of unequal lengths, say themselves"):
        found([1, 1], [[1, 2, 3], [4]])
    with pytest.raises(ShapeMismatch, match="has no encoder, so it reads no source"):
        search(tiny("rotary"), [[1]], source_lengths=torch.tensor([1]))


def test_a_list_of_truths_is_no_prompt() -> None:
    for rows, words in (
        ([[True, False]], "token ids are integers.* found bool"),
        ([[True], [True, False]], "expected a text or token ids"),
    ):
        with pytest.raises(ShapeMismatch, match=words):
            generate(tiny("rotary"), rows)


@pytest.mark.parametrize("kept_as", [torch.uint8, torch.int16, torch.uint16])
def test_ids_are_read_whatever_integers_they_are_kept_as(kept_as: torch.dtype) -> None:
    model, ids, sampling = tiny("rotary"), torch.tensor([[1, 2], [3, 0]]), Sampling(seed=1, repetition_penalty=1.2)
    expected = generate(model, ids, sampling, max_new_tokens=3)
    assert generate(model, ids.to(kept_as), sampling, max_new_tokens=3) == expected
    if kept_as.is_signed:
        assert torch.equal(weights.logits(weights.of(model), ids.to(kept_as)), weights.logits(weights.of(model), ids))


def tiny(positions: str):
    """Return a model with a short context, with learned positions or with ones that go on."""
    config = decoder(stream_positions=Learned()) if positions == "learned" else decoder(positions=Rope())
    return config.replace(max_len=12).build(seed=0)


def continuations(model, length: int, **options):
    """Return what generation and beam search make of a prompt of some length."""
    prompt = [[i % model.config.vocab_size for i in range(length)]]
    yield lambda: generate(model, prompt, GREEDY, **options).tokens[0]
    yield lambda: beam_search(model, prompt, n_beams=2, **options).best[0].tokens


@pytest.mark.parametrize("new", [0, -1])
def test_fewer_than_one_new_token_is_refused(new):
    for continuation in continuations(tiny("rotary"), 2, max_new_tokens=new):
        with pytest.raises(ConfigError, match=f"max_new_tokens must be at least 1, found {new}"):
            continuation()


@pytest.mark.parametrize("width", [0, -1])
def test_a_beam_of_no_width_is_refused(width: int) -> None:
    with pytest.raises(WrongArgument, match=rf"n_beams= takes a whole number, 1 .*; found {width} "):
        beam_search(tiny("rotary"), [[1, 2]], n_beams=width)


def test_a_source_longer_than_the_context_is_refused_unless_one_goes_on_beyond_it() -> None:
    model = built(ARCHITECTURES["encoder-decoder post"].replace(max_len=8))
    source = [[1] * 9]
    for continue_ in (generate, beam_search):
        with pytest.raises(TextError, match=r"a source of 9 tokens, but the context of this model is 8; shorten"):
            continue_(model, [[1]], source=source, max_new_tokens=1)
    for made in (
        generate(model, [[1]], GREEDY, source=source, max_new_tokens=1, beyond_context=True).tokens[0],
        beam_search(model, [[1]], source=source, max_new_tokens=1, beyond_context=True).best[0].tokens,
    ):
        assert len(made) == 1


@pytest.mark.parametrize("positions", ["rotary", "learned"])
def test_the_context_ends_a_text_at_its_last_token(positions):
    model = tiny(positions)
    limit = model.config.max_len
    for continuation in continuations(model, 5, max_new_tokens=limit - 4):
        assert len(continuation()) == limit - 4  # the last one is never read
    for length, new, advice in ((5, limit - 3, f"at most {limit - 4}"), (limit + 2, 1, f"shorten the text to {limit}")):
        for continuation in continuations(model, length, max_new_tokens=new):
            with pytest.raises(TextError, match=advice):
                continuation()


def test_by_default_a_text_goes_as_far_as_the_context_has_room():
    model = tiny("rotary")
    for continuation in continuations(model, 5):
        assert len(continuation()) == model.config.max_len - 4


def test_beyond_the_context_a_model_goes_on_where_that_is_asked_for_and_it_has_positions():
    rotary, learned = tiny("rotary"), tiny("learned")
    limit = rotary.config.max_len
    for continuation in continuations(rotary, limit + 2, max_new_tokens=3, beyond_context=True):
        assert len(continuation()) == 3
    for continuation in continuations(learned, limit + 2, max_new_tokens=3, beyond_context=True):
        with pytest.raises(TextError, match="learned positions"):
            continuation()


def test_texts_are_continued_like_their_ids_however_long_each_is() -> None:
    model = gf.load("gpt-4l")
    texts = ["def f(x):", "import"]
    begin, end = model.require_tokenizer().around("opening")
    ids = [[*begin, *model.require_tokenizer().encode(text), *end] for text in texts]
    found = generate(model, texts, GREEDY, max_new_tokens=3)
    assert found.tokens == generate(model, ids, GREEDY, max_new_tokens=3).tokens
    assert found.tokens[1:] == generate(model, "import", GREEDY, max_new_tokens=3).tokens
    beams = (beam_search(model, rows, n_beams=2, max_new_tokens=2).best for rows in (texts, ids))
    assert len({tuple(one.tokens for one in best) for best in beams}) == 1


def test_rows_are_lists_or_tensors_and_a_row_alone_is_a_batch_of_one() -> None:
    model = tiny("rotary")
    expected = generate(model, [[3, 1, 4], [9, 2]], GREEDY, max_new_tokens=3)
    assert generate(model, [torch.tensor([3, 1, 4]), torch.tensor([9, 2])], GREEDY, max_new_tokens=3) == expected
    for alone in ([9, 2], (9, 2), torch.tensor([9, 2])):
        assert generate(model, alone, GREEDY, max_new_tokens=3).tokens == expected.tokens[1:]
        assert len(beam_search(model, alone, n_beams=2, max_new_tokens=2).best) == 1


def test_texts_that_cannot_be_continued_are_refused() -> None:
    with pytest.raises(TextError, match="no tokenizer"):
        generate(subject("gpt2").model, ["a"])
    with pytest.raises(TextError, match="starts from a token of its own"):
        generate(subject("translator_pre").model, ["a"], source=[[1, 2]])
