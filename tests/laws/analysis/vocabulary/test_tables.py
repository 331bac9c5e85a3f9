"""Token tables are the largest entries of the full circuits, and hand-made skip-trigrams are found."""

import pytest
import torch

import glassformer as gf
from glassformer import analysis, handmade, weights
from glassformer.errors import AnalysisUnavailable, TokenOutOfRange
from glassformer.testing import close
from glassformer.testing.models import ARCHITECTURES, subject


def _centred(dense):
    return dense - dense.mean(-1, keepdim=True)


@pytest.mark.parametrize("name", ["gpt2", "llama", "attention_only", "alibi_window", "post", "sandwich", "capped"])
@pytest.mark.parametrize("circuit", ["OV", "QK"])
@pytest.mark.parametrize("tokens", [None, [1, 2, 5, 7, 10]])
def test_pairs_are_the_largest_entries_of_the_centred_circuit(name, circuit, tokens):
    w = weights.of(subject(name).model, fold=True)
    found = analysis.vocabulary.token_pairs(w, circuit, k=7, tokens=tokens, offset=[1, 3])
    for label in w.labels:
        dense = (w.full_ov(label) if circuit == "OV" else w.full_qk(label, offset=[1, 3])).dense()[0]
        dense = dense if tokens is None else dense[tokens][:, tokens]
        close(found.values.select(head=label).values, _centred(dense).flatten().topk(7).values)
        rows, columns = (field.select(head=label).values for field in (found.rows, found.columns))
        if tokens is None:
            close(_centred(dense)[rows, columns], found.values.select(head=label).values)
        else:
            assert set(rows.tolist()) | set(columns.tolist()) <= set(tokens)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_what_heads_make_of_a_token_is_its_row_and_its_column(name):
    w = weights.of(subject(name).model, fold=True)
    found = analysis.vocabulary.token_circuits(w, 3, k=4, offset=2)
    for label in w.labels:
        row = _centred(w.full_ov(label).dense()[0])[3]
        column = _centred(w.full_qk(label, offset=2).dense()[0])[:, 3]
        close(found.raised.select(head=label).values, row.topk(4).values)
        close(found.lowered.select(head=label).values, row.topk(4, largest=False).values)
        close(found.sought.select(head=label).values, column.topk(4).values)


def test_two_maps_of_a_head_are_told_apart():
    found = analysis.vocabulary.token_pairs(subject("differential").model, "QK", k=3)
    assert found.values.labels("head")[:4] == ["L0H0/0", "L0H0/1", "L0H1/0", "L0H1/1"]
    assert found.offsets[0] == 1 and len(found.offsets) > 1


def test_what_all_keys_share_does_not_count():
    model = handmade.skip_trigram_model()
    before = analysis.vocabulary.token_pairs(model, "QK", k=3)
    tables = handmade.keep_in_mind()
    shifted = tables._replace(attention=tables.attention + torch.arange(6.0)[:, None])
    after = analysis.vocabulary.token_pairs(handmade.skip_trigram_model(shifted), "QK", k=3)
    close(after.values.values, before.values.values)


def test_the_skip_trigram_model_looks_for_keep_and_says_mind_and_bay():
    model = handmade.skip_trigram_model()
    said = analysis.vocabulary.token_pairs(model, "OV", k=2).table("L0H0")
    assert {pair[:2] for pair in said} == {("1:keep", "3:mind"), ("1:keep", "5:bay")}
    # 6 on two of six outputs, the mean of 2 taken out
    assert [value for *_, value in said] == pytest.approx([4.0, 4.0])
    sought = analysis.vocabulary.token_pairs(model, "QK", k=2).table("L0H0")
    assert {pair[:2] for pair in sought} == {("2:in", "1:keep"), ("4:at", "1:keep")}
    # 40 on one key and 20 on another of six
    assert [value for *_, value in sought] == pytest.approx([30.0, 30.0])
    keep = analysis.vocabulary.token_circuits(model, "keep", k=2)
    assert {keep.names[i] for i in keep.raised_tokens.values[0].tolist()} == {"3:mind", "5:bay"}
    assert {keep.names[i] for i in keep.sought_tokens.values[0].tolist()} == {"2:in", "4:at"}


def test_rare_tokens_can_be_left_out():
    ids = analysis.vocabulary.frequent_tokens([[3, 3, 1], [3, 1, 0]], least=2)
    assert ids.tolist() == [1, 3]
    assert analysis.vocabulary.token_pairs(subject("gpt2").model, tokens=ids, k=9).n_tokens == 2


@pytest.mark.parametrize(
    ("name", "what", "error", "match"),
    [
        ("linear", lambda m: analysis.vocabulary.token_pairs(m, "QK"), AnalysisUnavailable, "bilinear_scores"),
        ("lightning_hybrid", lambda m: analysis.vocabulary.token_pairs(m, "OV", ["L0H0"]), AnalysisUnavailable, "gate"),
        (
            "translator_pre",
            lambda m: analysis.vocabulary.token_pairs(m, "OV", ["enc L0H0"]),
            AnalysisUnavailable,
            "unembedding",
        ),
        (
            "translator_apart",
            lambda m: analysis.vocabulary.token_pairs(m, "QK", ["enc L0H0"]),
            AnalysisUnavailable,
            r"enc L0H0 reads sources, a vocabulary of their own(.|\n)*full_qk",
        ),
        ("gpt2", lambda m: analysis.vocabulary.token_pairs(m, tokens=[11]), TokenOutOfRange, "0 to 10"),
    ],
)
def test_circuits_that_do_not_exist_say_so(name, what, error, match):
    with pytest.raises(error, match=match):
        what(subject(name).model)


def _all_on_oneself(w, labels):
    return torch.ones(len(labels)), torch.zeros(len(labels))


@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("tokens", [None, [1, 2, 5, 7, 10]])
def test_through_the_stream_tokens_are_read_as_in_a_run_of_one_token(tokens, fold, monkeypatch):
    # a token by itself attends to itself alone
    monkeypatch.setattr("glassformer.analysis.vocabulary._token_circuits.by_position", _all_on_oneself)
    model = subject("llama").model
    w, own = weights.of(model, fold=fold), weights.of(model)
    ids = torch.arange(11) if tokens is None else torch.tensor(tokens)
    sites = {layer.path: model.stack.blocks[layer.layer].norm("attn").at_out for layer in own.attention}
    done = gf.run(model, ids[:, None], read=list(sites.values()))
    found = {
        c: analysis.vocabulary.token_pairs(w, c, k=7, tokens=tokens, offset=2, through="stream") for c in ("OV", "QK")
    }
    keep = analysis.vocabulary.token_circuits(w, 3, k=4, offset=2, through="stream") if tokens is None else None
    for label in own.labels:
        layer = own[label]
        rows = done[sites[layer.path]].values[:, 0]
        ov = _centred((rows @ layer.ov() @ own.read_out()[:, ids]).dense()[0])
        query, key = layer.rotated(rows @ layer.Q, 2), (rows @ layer.K)[layer.group]
        qk = _centred((query @ key.mT)[0] * layer.scale)
        close(found["OV"].values.select(head=label).values, ov.flatten().topk(7).values)
        close(found["QK"].values.select(head=label).values, qk.flatten().topk(7).values)
        if keep is not None:
            close(keep.raised.select(head=label).values, ov[3].topk(4).values)
            close(keep.sought.select(head=label).values, qk[:, 3].topk(4).values)
    assert found["OV"].through == "stream"


def test_the_first_layer_reads_tokens_alone_where_no_positions_are_in_the_stream():
    first = ["L0H0", "L0H3"]
    for circuit in ("OV", "QK"):
        one, other = (
            analysis.vocabulary.token_pairs(subject("llama").model, circuit, first, through=t)
            for t in ("token", "stream")
        )
        close(one.values.values, other.values.values)
    behind = [
        analysis.vocabulary.token_pairs(subject("llama").model, "OV", ["L1H0"], k=3, through=t).values.values
        for t in ("token", "stream")
    ]
    assert (behind[0] - behind[1]).abs().max() > 0.01 * behind[0].abs().max()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_through_the_stream_every_architecture_has_tables_or_the_reason_why_not(name):
    model = subject(name).model
    for circuit in ("OV", "QK"):
        found = {}
        for through in ("token", "stream"):
            try:
                found[through] = analysis.vocabulary.token_pairs(model, circuit, k=3, through=through)
            except AnalysisUnavailable as error:
                found[through] = None
                if through == "stream" and found["token"] is not None:
                    assert "post-norm" in str(error) and 'through="token"' in str(error)
        alone, reaching = found["token"], found["stream"]
        if reaching is not None:
            assert alone is not None and sorted(reaching.values.labels("head")) == sorted(alone.values.labels("head"))
            assert reaching.values.values.isfinite().all()


def test_the_stream_of_augmented_weights_is_not_read():
    with pytest.raises(AnalysisUnavailable, match="augment=False"):
        analysis.vocabulary.token_pairs(weights.of(subject("gpt2").model, augment=True), through="stream")
