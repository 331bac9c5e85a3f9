"""Generation under edits equals reading the text so far again under them; what it records is what a run records."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import glassformer as gf
from glassformer.attention import Latent, LongScaling, Rope
from glassformer.errors import AnalysisUnavailable, ShapeMismatch
from glassformer.labelled import Labelled
from glassformer.models import (
    GREEDY,
    BlockConfig,
    DecoderConfig,
    Generation,
    Sampling,
    beam_search,
    block,
    generate,
    repeat,
    stream,
)
from glassformer.testing import close
from glassformer.testing.layers import randomise
from glassformer.testing.models import ARCHITECTURES, subject
from glassformer.trace import Add, Apply, At, Edit, Project, Read, Scale, Set, Site, Take
from one_pass import in_one_pass

# what predicts other tokens than it reads cannot go on
GENERATING = [name for name in ARCHITECTURES if name != "classifier"]
QUICK = ("llama", "linear", "lightning_hybrid", "differential", "translator_post")
every = pytest.mark.parametrize("name", GENERATING)
few = pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.full) for name in GENERATING]
)
PROMPTS, SOURCES, NEW = [[3, 1, 4, 1, 5], [6, 2]], [[1, 2, 3], [4, 5, 6, 7]], 4
# laws that run a model many times per site: in the full sweep at every site, otherwise at some of a few architectures
at_sites = pytest.mark.parametrize(
    "name, each",
    [*((name, 6) for name in QUICK), *(pytest.param(name, 1, marks=pytest.mark.full) for name in GENERATING)],
)
# edits of a text so long: positions beyond its end are not there yet
Edits = Callable[[int], list[Any]]


def sources(model: Any, rows: slice = slice(None)) -> dict[str, Any]:
    return {} if model.source is None else {"source": SOURCES[rows]}


def reread(model: Any, ids: Sequence[int], row: int, edit: list[Any], read: Any = ()) -> gf.Run:
    """Return the run of one row's text so far, in one pass."""
    text = torch.tensor([list(ids)])
    given = (text,) if model.source is None else (torch.tensor([SOURCES[row]]), text)
    return gf.run(model, *given, edit=edit, read=read)


def log_probs_of(run: gf.Run, row: int = 0) -> Tensor:
    return run.predictions()[row].log_softmax(-1)


def follows(model: Any, edits: Edits, made: Generation, rows: Sequence[int] = (0, 1)) -> None:
    """Check that each token is the likeliest of the run on all before it, and its log-probability that run's."""
    for row in rows:
        for step, (token, log_prob) in enumerate(zip(made.tokens[row], made.log_probs[row])):
            before = made.ids[row][: len(PROMPTS[row]) + step]
            found = log_probs_of(reread(model, before, row, edits(len(before))))[-1]
            close(torch.tensor(log_prob, dtype=torch.float64), found[token], tolerance=1e-12)
            assert found[token] == found.max()


def made(model: Any, edit: Any, prompts: Any = PROMPTS, **options: Any) -> Generation:
    return generate(model, prompts, GREEDY, max_new_tokens=NEW, edit=edit, **(sources(model) | options))


def stream_of(model: Any) -> str:
    return f"{model.prefix}blocks.0.resid_post"


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def sites_of(model: Any, name: str, each: int) -> list[Site]:
    """Return one site of so many, others of each architecture."""
    return list(model.sites().values())[GENERATING.index(name) % each :: each]


@at_sites
def test_an_edit_at_any_site_holds_for_the_prompt_and_every_token(name: str, each: int) -> None:
    model = subject(name).model
    for site in (found.name for found in sites_of(model, name, each)):
        edit = [Scale(site, 0.5)]
        follows(model, lambda n, edit=edit: edit, made(model, edit))


@pytest.mark.full
@at_sites
def test_an_edit_at_positions_holds_where_each_rows_own_text_has_them_also_later(name: str, each: int) -> None:
    model = subject(name).model
    for site in sites_of(model, name, each):
        grows = [axis for axis in ("pos", "query", "key") if axis in site.axes and not site.reads_source(axis)]
        for axis in grows:
            # in the prompt, in one prompt and behind the other, and reached while generating only
            def edits(n: int, site: str = site.name, axis: str = axis) -> list[Edit]:
                here = [i for i in (1, 3, 6) if i < n]
                return [Scale(site, 0.5, at=At(**{axis: here}))]

            follows(model, edits, made(model, edits(99)))


PLACES: dict[str, Callable[[int], Any]] = {
    "from the start": lambda n: slice(0, min(n, 3)),
    "from a position on": lambda n: slice(3, None),
    "every second": lambda n: slice(0, None, 2),
    "one": lambda n: 1,
    "in any order": lambda n: torch.tensor([1, 0]),
}


@few
@pytest.mark.parametrize("place", PLACES)
def test_every_kind_of_data_goes_where_positions_say(name: str, place: str) -> None:
    model, width = subject(name).model, 16
    site, where = stream_of(model), PLACES[place]

    def edits(n: int) -> list[Edit]:
        at = At(pos=where(n))
        if isinstance(where(n), slice) and not range(n)[where(n)]:
            # of a text that ends before it, an edit is refused
            return []
        return [Add(site, drawn(width), at=at), Scale(site, -1.5, at=at), Project(site, drawn(2, width, seed=1), at=at)]

    follows(model, edits, made(model, edits(99)))


def test_a_value_by_position_or_by_row_goes_to_its_own_position_and_row() -> None:
    model = subject("llama").model
    site, values, places = stream_of(model), drawn(2, 3, 16), [1, 6, 3]
    found = made(model, [Set(site, values, at=At(pos=places))])
    for row in (0, 1):

        def edits(n: int, row: int = row) -> list[Edit]:
            here = [i for i, place in enumerate(places) if place < n]
            return [Set(site, values[row : row + 1, here], at=At(pos=[places[i] for i in here]))]

        follows(model, edits, found, [row])
    of_row = made(model, [Add(site, drawn(1, 16), at=At(batch=1, pos=slice(1, None)))])
    follows(model, lambda n: [], of_row, [0])
    follows(model, lambda n: [Add(site, drawn(1, 16)[0], at=At(pos=slice(1, None)))], of_row, [1])
    each = made(model, [Add(site, drawn(2, 1, 16))])
    for row in (0, 1):
        follows(model, lambda n, row=row: [Add(site, drawn(2, 1, 16)[row, 0])], each, [row])


def test_what_a_run_lends_goes_to_the_positions_that_are_named() -> None:
    model = subject("llama").model
    lent = gf.run(model, torch.tensor([[7, 8, 9]]), read=["*.z"])
    for site, at in (("blocks.0.attn.z", At(pos=[2, 1])), ("blocks.1.attn.z", At(pos=slice(0, 2), head=3))):
        follows(model, lambda n, site=site, at=at: [Set(site, lent, at=at)], made(model, Set(site, lent, at=at)), [0])


@few
def test_edits_that_look_along_the_text_are_right_too(name: str) -> None:
    model = subject(name).model
    site, first = stream_of(model), f"{model.prefix}blocks.0.resid_pre"
    patterns = [f"{model.prefix}blocks.{i}.attn.pattern" for i in (0, 1)]
    edits: list[list[Any]] = [
        [(site, lambda x: x - x.mean(1, keepdim=True))],
        [Apply(site, lambda x, earlier: x + earlier.cumsum(1), reads=(first,))],
        # at every place, those that the mask hides too
        [Set(pattern, 0.1) for pattern in patterns],
        [Set(pattern, 0.1, at=At(key=0)) for pattern in patterns],
    ]
    for edit in edits:
        for row in (0, 1):
            # what looks along the text would see padding in a batch
            alone = slice(row, row + 1)
            found = made(model, edit, PROMPTS[alone], **sources(model, alone))
            parts = {name: (getattr(found, name)[0],) * 2 for name in ("tokens", "log_probs", "ids")}
            follows(model, lambda n, edit=edit: edit, dataclasses.replace(found, **parts), [row])


def test_one_row_may_copy_from_another() -> None:
    model = subject("differential").model
    prompts, site = [[3, 1, 4], [2, 7, 1]], "blocks.0.resid_post"
    found = generate(model, prompts, GREEDY, max_new_tokens=NEW, edit=Take(site, row=0, at=At(batch=1)))
    for step in range(NEW):
        before = torch.tensor([row[: 3 + step] for row in found.ids])
        again = gf.run(model, before, edit=Take(site, row=0, at=At(batch=1)))
        for row in (0, 1):
            close(
                torch.tensor(found.log_probs[row][step], dtype=torch.float64),
                log_probs_of(again, row)[-1].max(),
                tolerance=1e-12,
            )


# recordings -----------------------------------------------------------------------------------------------------------


def same(found: Labelled, expected: Labelled, name: str) -> None:
    assert found.axes == expected.axes and found.of == expected.of, name
    assert {a: list(c) for a, c in found.coords.items()} == {a: list(c) for a, c in expected.coords.items()}, name
    assert torch.equal(found.values.isinf(), expected.values.isinf()), name
    seen = found.values.isfinite()
    if not name.endswith("scores_raw"):
        # products with keys behind a query are made in a pass over all of them only
        assert torch.equal(seen, expected.values.isfinite()), name
    close(found.values[seen], expected.values[seen], tolerance=1e-12)


@every
@pytest.mark.parametrize("lazy", [False, True])
def test_every_site_is_recorded_as_one_run_on_the_text_records_it(name: str, lazy: bool) -> None:
    model = subject(name).model
    read = [site.name for site in model.sites().values() if lazy or not site.lazy]
    edit = [Add(stream_of(model), drawn(16), at=At(pos=slice(3, None)))]
    found = made(model, edit, read=read)
    assert list(found.sites) == read
    for row, ids in enumerate(found.ids):
        # the last token was drawn, and read by nothing
        run = reread(model, ids[:-1], row, edit, read)
        for site, value in found.sites.items():
            if value.axes:
                same(value.select(batch=row), run[site].select(batch=0), site)
            else:
                same(value, run[site], site)


def test_heads_and_parts_are_recorded_under_the_names_that_a_run_gives_them() -> None:
    model = subject("llama").model
    read = ["L1H2.pattern", Read("blocks.0.attn.key", At(kv_head=1)), Read("*.resid_post", At(batch=[1]))]
    found = made(model, (), read=read)
    run = gf.run(model, [list(ids[:-1]) for ids in found.ids], read=read)
    assert list(found.sites) == list(run)
    for name, value in found.sites.items():
        expected = run[name]
        assert value.axes == expected.axes
        for row in range(value.size("batch")):
            same(value.select(batch=row), expected.select(batch=row), name)


def test_a_row_that_has_stopped_is_recorded_no_further() -> None:
    model = subject("llama").model
    free = made(model, ())
    found = made(model, (), read="*.resid_post", stop_ids=[free.tokens[1][1]])
    assert found.stopped[1] and len(found.tokens[1]) < len(found.tokens[0])
    for row, ids in enumerate(found.ids):
        one = found.sites["blocks.1.resid_post"].select(batch=row)
        same(one, reread(model, ids[:-1], row, [], "*.resid_post")["blocks.1.resid_post"].select(batch=0), "stream")


@pytest.mark.parametrize("name", ["llama", "lightning_hybrid", "translator_post"])
def test_each_step_of_a_stream_brings_what_was_read_for_it(name: str) -> None:
    model = subject(name).model
    site, pattern = stream_of(model), f"{model.prefix}blocks.1.attn.pattern"
    whole = made(model, (), read=[site, pattern])
    steps = list(stream(model, PROMPTS, GREEDY, max_new_tokens=NEW, read=[site, pattern], **sources(model)))
    assert [step.tokens for step in steps] == list(zip(*whole.tokens))
    for row, prompt in enumerate(PROMPTS):
        for i, step in enumerate(steps):
            expected = whole.sites[site].select(batch=row)
            new = slice(0, len(prompt)) if i == 0 else slice(len(prompt) + i - 1, len(prompt) + i)
            same(step.sites[site].select(batch=row), expected.select(pos=new), site)
            rows = whole.sites[pattern].select(batch=row).select(query=new, key=slice(0, len(prompt) + i))
            same(step.sites[pattern].select(batch=row), rows, pattern)


def test_sampled_text_without_edits_is_what_it_was_while_it_is_recorded() -> None:
    model, sampling = subject("llama").model, Sampling(seed=3, repetition_penalty=1.2)
    plain = generate(model, PROMPTS, sampling, max_new_tokens=NEW)
    assert generate(model, PROMPTS, sampling, max_new_tokens=NEW, read="*.resid_post") == plain
    assert plain.sites == {}


# beams ----------------------------------------------------------------------------------------------------------------


@every
def test_every_continuation_of_a_beam_is_read_under_the_edits(name: str) -> None:
    model = subject(name).model
    edit = [Add(stream_of(model), drawn(16), at=At(pos=slice(3, None))), Scale(f"{model.prefix}final.norm", 0.7)]
    found = beam_search(model, PROMPTS, n_beams=3, max_new_tokens=NEW, edit=edit, **sources(model))
    for row, hypotheses in enumerate(found.hypotheses):
        for one in hypotheses:
            ids, n = [*PROMPTS[row], *one.tokens], len(PROMPTS[row])
            log_probs = log_probs_of(reread(model, ids, row, edit))
            close(
                torch.tensor(one.log_prob, dtype=torch.float64),
                log_probs[range(n - 1, len(ids) - 1), list(one.tokens)].sum(),
                tolerance=1e-11,
            )


# what cannot be carried -----------------------------------------------------------------------------------------------

LONG = LongScaling((1.0, 1.2, 1.5), (2.0, 3.0, 5.0), 6, attention_factor=1.3)


def decoder(**kwargs: Any) -> Any:
    """Return a decoder of two layers, whose attention has these fields."""
    (attention,) = block(n_heads=2, d_head=6).parts
    config = DecoderConfig(11, 12, repeat(BlockConfig((attention.replace(**kwargs),)), 2), max_len=24)
    return randomise(config.build().double().eval(), 0, std=0.4)


def test_a_text_that_is_read_again_is_edited_and_recorded_again() -> None:
    model, edit = decoder(positions=Rope(50.0, scaling=LONG)), [Scale("blocks.0.resid_post", 0.5, at=At(pos=[1, 5, 7]))]
    found = generate(model, [[1, 2, 3]], GREEDY, max_new_tokens=8, edit=edit, read="*.key")
    for step in range(8):
        before = found.ids[0][: 3 + step]
        here = [Scale("blocks.0.resid_post", 0.5, at=At(pos=[i for i in (1, 5, 7) if i < len(before)]))]
        expected = log_probs_of(gf.run(model, torch.tensor([before]), edit=here))[-1]
        close(torch.tensor(found.log_probs[0][step], dtype=torch.float64), expected.max(), tolerance=1e-12)
    run = gf.run(model, torch.tensor([found.ids[0][:-1]]), edit=edit, read="*.key")
    for name, value in found.sites.items():
        same(value, run[name], name)


def test_one_beam_over_a_text_that_is_read_again_is_greedy() -> None:
    model, texts = decoder(positions=Rope(50.0, scaling=LONG)), [[1, 2, 3], [4]]
    greedy, best = (
        generate(model, texts, GREEDY, max_new_tokens=8),
        beam_search(model, texts, n_beams=1, max_new_tokens=8),
    )
    for tokens, log_probs, one in zip(greedy.tokens, greedy.log_probs, best.best):
        assert one.tokens == tokens
        assert one.log_prob == pytest.approx(sum(log_probs), abs=1e-12)


@pytest.mark.parametrize("site", ["key", "value", "key_in", "value_in", "query_in"])
def test_keys_that_are_made_anew_from_latents_are_edited_at_every_step(site: str) -> None:
    model, axis = decoder(projection=Latent(4)), "pos" if site == "query_in" else "key"
    for places in (None, [1, 6]):

        def edits(n: int, places: list[int] | None = places) -> list[Edit]:
            at = At() if places is None else At(**{axis: [i for i in places if i < n]})
            return [Scale(f"blocks.0.attn.{site}", 0.5, at=at)]

        found = made(model, edits(99), read=f"blocks.0.attn.{site}")
        follows(model, edits, found)
        for row, ids in enumerate(found.ids):
            run = reread(model, ids[:-1], row, edits(len(ids) - 1), f"blocks.0.attn.{site}")
            for name, value in found.sites.items():
                same(value.select(batch=row), run[name].select(batch=0), name)


# refusals -------------------------------------------------------------------------------------------------------------

LENT = {"blocks.0.resid_post": torch.zeros(1, 5, 16)}


@in_one_pass
@pytest.mark.parametrize(
    "edit, words",
    [
        (Scale("blocks.0.resid_post", 0.0, at=At(pos=-1)), "At(pos=-1) is no place in a text that grows"),
        (Scale("L0H1.pattern", 0.0, at=At(query=slice(0, -1))), "At(query=slice(0, -1, None)) is no place"),
        (Apply("L0H1.z", torch.neg, at=At(pos=[True, False])), "At(pos=[True, False]) is no place"),
        (Add("blocks.0.resid_post", torch.zeros(1, 5, 16)), 'fixed number of positions along "pos"'),
        (Set("blocks.0.resid_post", LENT), "a run has a fixed number of positions"),
        (Set("blocks.0.resid_post", LENT, at=At(pos=slice(1, None))), "Say which ones it is for"),
        (Set("blocks.0.resid_post", torch.zeros(2, 16), at=At(batch=0, pos=[1, 2, 3])), "names 3 positions"),
        (Add("blocks.0.resid_post", torch.zeros(15)), "has d_model=15; the site carries"),
        (Add("blocks.0.resid_post", torch.zeros(3, 1, 16)), "has batch=3 pos=1 d_model=16"),
        (Scale("L0H1.z", 0.0, at=At(batch=2)), "batch=2: the axis has 2 entries"),
        (Scale("blocks.0.attn.z", 0.0, at=At(head=99)), "head=99: the axis has 4 entries"),
        # of a position that is not reached
        (Apply("blocks.0.attn.z", torch.neg, at=At(head=99, pos=20)), "head=99: the axis has 4 entries"),
        (Project("blocks.0.resid_post", torch.ones(3)), "directions are 1x3; the last axis has 16"),
        (Take("blocks.0.resid_post", row=7), "batch=7: the axis has 2 entries"),
    ],
)
def test_an_edit_without_a_place_in_a_growing_text_is_refused_at_the_call(edit: Any, words: str) -> None:
    with pytest.raises(ShapeMismatch) as caught:
        stream(subject("gpt2").model, PROMPTS, edit=edit)
    assert words in str(caught.value)


def test_what_a_run_lends_is_refused_in_the_words_of_a_run() -> None:
    model, site, text = subject("llama").model, "blocks.0.attn.z", [[3, 1, 4]]
    one_head = gf.run(model, text, read=Read(site, At(head=[3])))
    one_position = gf.run(model, [[7]], read=site)
    for lent in (one_head, one_position):
        edit = Set(site, lent, at=At(pos=slice(0, 3)))
        with pytest.raises(ShapeMismatch, match="What a run lends is as long as what it replaces") as by_run:
            gf.run(model, text, edit=edit)
        with pytest.raises(ShapeMismatch) as by_stream:
            stream(model, text, edit=edit)
        assert str(by_stream.value) == str(by_run.value)


def test_padding_of_the_run_that_lends_is_not_put_in() -> None:
    model, site = subject("llama").model, "blocks.0.resid_post"
    left = gf.run(model, [[0, 0, 7, 8], [1, 2, 3, 4]], mask=[[0, 0, 1, 1], [1, 1, 1, 1]], read=site)
    right = gf.run(model, [[7, 8], [1, 2, 3, 4]], read=site)
    for lent, places in ((left, [0, 1]), (left, [2, 3]), (right, slice(0, 3))):
        with pytest.raises(ShapeMismatch, match=r"row 0 of the run .* is padded there"):
            stream(model, PROMPTS, edit=Set(site, lent, at=At(pos=places)))
    # of rows and positions that are whole
    alone = made(model, Set(site, gf.run(model, [[7, 8]], read=site), at=At(pos=[0, 1])), PROMPTS[:1])
    among = made(model, Set(site, right, at=At(pos=[0, 1])))
    assert among.tokens[0] == alone.tokens[0]
    whole = made(model, Set(site, left, at=At(batch=1, pos=slice(0, 4))))
    same_row = made(model, Set(site, right, at=At(batch=1, pos=slice(0, 4))))
    assert whole.tokens == same_row.tokens


def test_a_slice_that_ends_far_behind_the_text_is_one_without_an_end() -> None:
    model, site = subject("llama").model, "blocks.0.resid_post"
    far, open_ended = (made(model, Scale(site, 0.5, at=At(pos=slice(2, end)))) for end in (10**15, None))
    assert far == open_ended


def test_a_read_of_a_head_or_row_that_is_not_there_is_refused_at_the_call() -> None:
    model = subject("gpt2").model
    for at, words in ((At(head=99), "head=99: the axis has 4"), (At(batch=2), "batch=2: the axis has 2")):
        with pytest.raises(ShapeMismatch, match=words):
            stream(model, PROMPTS, read=Read("blocks.0.attn.z", at))


def test_a_read_of_what_is_not_there_yet_is_refused_at_the_call() -> None:
    model = subject("gpt2").model
    with pytest.raises(AnalysisUnavailable, match=r"select afterwards: .select\(pos=-1\)"):
        stream(model, PROMPTS, read=Read("*.resid_post", At(pos=-1)))
    with pytest.raises(AnalysisUnavailable, match="come one by one"):
        stream(model, PROMPTS, read=Read("*.resid_post", reduce=torch.mean))
    with pytest.raises(AnalysisUnavailable, match=r"gf.run\(model, found.ids\[0\], read=\[logit_lens\]"):
        stream(model, PROMPTS, read=[gf.analysis.lens.logit_lens])


def test_beams_take_no_edits_that_tell_rows_from_each_other() -> None:
    model = subject("gpt2").model
    for edit in (
        Scale("L0H1.z", 0.0, at=At(batch=0)),
        Take("L0H1.z", row=0),
        Add("blocks.0.resid_post", torch.zeros(2, 1, 16)),
    ):
        with pytest.raises(AnalysisUnavailable, match="one prompt after another"):
            beam_search(model, PROMPTS, edit=edit)
