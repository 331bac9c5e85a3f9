"""Serving: what requests draw together is what each draws alone; who holds which page, and when."""

from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

from glassformer.attention import DynamicScaling, Latent, NeuralMemory, Rope
from glassformer.errors import AnalysisUnavailable, OutOfPages, TextError
from glassformer.models import (
    GREEDY,
    BlockConfig,
    Convolution,
    DecoderConfig,
    Gru,
    Mlp,
    Request,
    Sampling,
    Serving,
    block,
    generate,
    titans,
)
from glassformer.models.stack import tensors
from glassformer.testing import close
from glassformer.testing.layers import randomise
from glassformer.testing.models import ARCHITECTURES, subject

BEGINNING = [3, 1, 4, 1, 5, 9, 2, 6, 5]
# whole prompts, and prompts that begin alike
PROMPTS = [[7], [8, 2, 8], [*BEGINNING, 1], [*BEGINNING, 1, 0, 2], [*BEGINNING[:6], 4, 4], BEGINNING, [5] * 12]
SAMPLINGS = [GREEDY, Sampling(), Sampling(0.7, top_k=4, repetition_penalty=1.3)]
NEW, STOPS = 5, [10]


def _decoder(*layers: Any) -> DecoderConfig:
    return DecoderConfig(11, 16, layers, max_len=24)


CONFIGS = {name: ARCHITECTURES[name] for name in ("gpt2", "llama", "alibi_window", "differential", "bounded", "linear")}
CONFIGS |= {name: ARCHITECTURES[name] for name in ("smeared", "lightning_hybrid", "experts")}
CONFIGS["latents"] = _decoder(block(n_heads=2, positions=Rope(), projection=Latent(4, rotary=4), mlp=Mlp(8)))
CONFIGS["recurrent"] = _decoder(BlockConfig((Gru(),)), BlockConfig((Convolution(),)), block(n_heads=2))
CONFIGS["memory as context"] = _decoder(
    *titans(1, n_heads=2, memory=NeuralMemory(chunk=3), used="context", tokens=2), block(n_heads=2, mlp=Mlp(8))
)
MODELS: dict[str, Any] = {}


def built(name: str) -> Any:
    if name not in MODELS:
        MODELS[name] = randomise(CONFIGS[name].build().double().eval(), std=0.4)
    return MODELS[name]


def serving(model: Any, **kwargs: Any) -> Serving:
    """Return one whose pages hold no numbers yet: whatever is read of them without having been written spreads."""
    made = Serving(model, **kwargs)
    for store in made.state.stores:
        store[..., : made.state.spare, :] = float("nan")
    return made


def alone(
    model: Any, prompt: list[int], sampling: Sampling, new: int = NEW, stop_ids: list[int] | None = None
) -> tuple[tuple[int, ...], torch.Tensor]:
    found = generate(model, [prompt], sampling, max_new_tokens=new, stop_ids=stop_ids or ())
    return found.tokens[0], torch.tensor(found.log_probs[0])


def require_equal(request: Request, expected: tuple[tuple[int, ...], torch.Tensor]) -> None:
    assert request.tokens == expected[0]
    close(torch.tensor(request.log_probs), expected[1])


def require_sound(served: Serving) -> None:
    """Every page is free or held, known under one digest at most, and counted once for each text that holds it."""
    pages, tables = served.pages, [request.table for request in served.running]
    assert [sum(table.count(page) for table in tables) for page in range(pages.n)] == pages.references
    assert {page for page in range(pages.n) if not pages.references[page]} == set(pages.free)
    assert {page: digest for digest, page in pages.known.items()} == pages.digests
    assert not any(request.table or request.stored for request in served.waiting)
    for request in served.running:
        # what was drawn last is not stored yet
        assert request.stored < len(request.ids)
        assert pages.needed(request.stored) <= len(request.table)


@pytest.mark.full
@given(st.data())
def test_a_request_draws_what_it_draws_alone_whoever_comes_and_goes(data: st.DataObject) -> None:
    model = built(data.draw(st.sampled_from(sorted(CONFIGS))))
    size = data.draw(st.integers(1, 5))
    # as few pages as the longest text fills: requests have to go, and are read again
    fewest = -(-(max(map(len, PROMPTS)) + NEW - 1) // size)
    served = serving(
        model,
        page_size=size,
        n_pages=fewest + data.draw(st.integers(0, 2 * fewest)),
        budget=data.draw(st.integers(1, 30)),
    )
    asked: list[tuple[Request, list[int], Sampling]] = []
    cancelled: list[Request] = []
    for number, prompt in enumerate(data.draw(st.permutations(PROMPTS))):
        sampling = data.draw(st.sampled_from(SAMPLINGS)).replace(seed=number)
        asked.append((served.submit(prompt, sampling, max_new_tokens=NEW, stop_ids=STOPS), prompt, sampling))
        for _ in range(data.draw(st.integers(0, 2))):
            served.step()
            require_sound(served)
        if data.draw(st.booleans()):
            whose, _, _ = data.draw(st.sampled_from(asked))
            if not whose.done and len(whose.ids) <= 12:
                text, other = [*whose.ids], sampling.replace(seed=50 + number)
                asked.append((served.fork(whose, other, max_new_tokens=NEW), text, other))
        if data.draw(st.integers(0, 5)) == 0:
            cancelled.append(asked[-1][0])
            served.cancel(asked[-1][0])
            require_sound(served)
    finished = list(served.run())
    require_sound(served)
    assert not served.pages.n_held
    assert served.held_bytes == 0
    assert len(set(finished)) == len(finished)
    for request, prompt, sampling in asked:
        if request not in cancelled:
            require_equal(request, alone(model, prompt, sampling, stop_ids=STOPS))


def test_prompts_that_begin_alike_share_the_full_pages_of_their_beginning() -> None:
    served = serving(built("llama"), page_size=4, n_pages=12)
    first, second = (served.submit([*BEGINNING, last], GREEDY, max_new_tokens=3) for last in (1, 7))
    served.step()
    # nine of ten tokens are the same: two full pages
    assert first.table[:2] == second.table[:2]
    assert served.pages.n_held == 4
    assert not {*first.table[2:]} & {*second.table[2:]}


def test_a_prompt_that_is_known_whole_still_has_one_token_read() -> None:
    model = built("llama")
    served = serving(model, page_size=4, n_pages=12)
    for _ in range(2):
        request = served.submit([5] * 12, GREEDY, max_new_tokens=1)
        assert list(served.run()) == [request]
        require_equal(request, alone(model, [5] * 12, GREEDY, 1))
    # pages that no text holds are known until they are taken
    assert len(served.pages.known) == 3


def test_fixed_parts_of_a_state_belong_to_one_text() -> None:
    served = serving(built("linear"), page_size=4, n_pages=12)
    first, second = (served.submit([*BEGINNING, last], GREEDY, max_new_tokens=3) for last in (1, 7))
    served.step()
    assert not {*first.table} & {*second.table}
    assert served.held_bytes == sum(part.nbytes for part in tensors(served.model.begin(2).layers))


def test_a_fork_shares_full_pages_and_copies_the_one_that_is_written_next() -> None:
    model = built("llama")
    served = serving(model, page_size=4, n_pages=12)
    first = served.submit(BEGINNING, GREEDY, max_new_tokens=NEW)
    served.step()
    fork = served.fork(first, Sampling(seed=2), max_new_tokens=NEW)
    text, before = [*first.ids], [store.clone() for store in served.state.stores]
    assert fork.table == first.table
    served.step()
    assert fork.table[:2] == first.table[:2]
    assert fork.table[2] != first.table[2]
    # what both hold is as it was
    kept = [page * 4 + token for page in first.table[:2] for token in range(4)]
    for store, old in zip(served.state.stores, before):
        assert torch.equal(store[..., kept, :], old[..., kept, :])
    list(served.run())
    require_equal(first, alone(model, BEGINNING, GREEDY))
    require_equal(fork, alone(model, text, Sampling(seed=2)))


def test_the_newest_request_goes_when_pages_run_out() -> None:
    model = built("llama")
    served = serving(model, page_size=2, n_pages=8)
    old, new = (served.submit(prompt, GREEDY, max_new_tokens=8) for prompt in ([1, 2, 3, 4], [5, 6, 7, 8]))
    went = False
    while not old.done:
        served.step()
        assert old not in served.waiting
        went |= new in served.waiting
    assert went
    assert list(served.run()) == [new]
    for request in (old, new):
        require_equal(request, alone(model, list(request.prompt), GREEDY, 8))


def test_a_window_in_long_pieces_is_shared_too() -> None:
    model = built("alibi_window")
    served = serving(model, page_size=4, n_pages=12)
    asked = [served.submit([*BEGINNING, last], GREEDY, max_new_tokens=NEW) for last in (1, 7)]
    list(served.run())
    for request in asked:
        require_equal(request, alone(model, list(request.prompt), GREEDY))


def test_more_than_all_pages_is_refused_with_what_would_do() -> None:
    served = serving(built("llama"), page_size=4, n_pages=3)
    with pytest.raises(
        OutOfPages, match=r"9 tokens and 5 new ones fill 4 pages of 4, and there are 3.\n.*n_pages=4.*4"
    ):
        served.submit(BEGINNING, max_new_tokens=5)
    request = served.submit(BEGINNING, GREEDY, max_new_tokens=4)
    assert list(served.run()) == [request]


def test_what_cannot_be_served_says_why() -> None:
    with pytest.raises(AnalysisUnavailable, match="encoder_decoder"):
        Serving(subject("translator_pre").model)
    with pytest.raises(AnalysisUnavailable, match="another"):
        Serving(subject("classifier").model)
    stretched = _decoder(block(n_heads=2, positions=Rope(scaling=DynamicScaling(2.0, 8))))
    with pytest.raises(AnalysisUnavailable, match="longer text"):
        Serving(stretched.build())
    with pytest.raises(TextError, match="2 rows"):
        serving(built("llama")).submit(torch.tensor([[1], [2]]))
