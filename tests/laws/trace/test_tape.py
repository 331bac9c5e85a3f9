"""Laws of reading and editing, over every architecture."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from glassformer.errors import ShapeMismatch
from glassformer.models import DecoderConfig, Learned, Mlp, block
from glassformer.testing import close
from glassformer.testing.layers import randomise
from glassformer.testing.models import ARCHITECTURES, Subject, subject
from glassformer.trace import Add, Apply, At, Project, Read, Scale, Set, Take, Tape

every = pytest.mark.parametrize("name", ARCHITECTURES)
# laws that run a model once per site: three architectures stand for all outside the full sweep
QUICK = ("llama", "differential", "translator_post")
few = pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.full) for n in ARCHITECTURES]
)
translators = pytest.mark.parametrize("name", [n for n in ARCHITECTURES if n.startswith("translator")])
decoders = pytest.mark.parametrize("name", [n for n in ARCHITECTURES if not n.startswith("translator")])


def lengths(model: Subject, site: str) -> dict[str, int]:
    """Return the lengths that the batch fixes at a site."""
    target = model.inputs[-1].shape[1]
    source = model.inputs[0].shape[1]
    crossed = ".cross." in site
    query, key = (source, source) if site.startswith("encoder.") else (target, source if crossed else target)
    return {"batch": model.inputs[0].shape[0], "pos": query, "query": query, "key": key}


@every
def test_every_declared_site_is_visited_in_order_with_the_declared_axes_and_sizes(name: str) -> None:
    model = subject(name)
    values, table = model.values("*"), model.model.sites()
    assert list(values) == list(table)
    for site in table.values():
        expected = tuple((lengths(model, site.name) | dict(site.sizes))[axis] for axis in site.axes)
        assert tuple(values[site.name].shape) == expected, site.name


@every
def test_reading_changes_nothing(name: str) -> None:
    model = subject(name)
    bare, table = model(), model.model.sites()
    plain = [site.name for site in table.values() if not site.lazy]
    assert torch.equal(model(model.tape(*plain)), bare)
    # a lazy site may force the dense route, which rounds differently
    close(model(model.tape("*")), bare)


@pytest.mark.full
@every
def test_reading_one_lazy_site_changes_nothing(name: str) -> None:
    model = subject(name)
    bare = model()
    for site in model.model.sites().values():
        if site.lazy:
            close(model(model.tape(site.name)), bare)


@every
def test_writing_a_sites_own_value_back_is_a_no_op(name: str) -> None:
    model = subject(name)
    bare, values = model(), model.values("*")
    # an edit of a norm's output and one of what heads read before it exclude each other
    for apart in (".norm", "_in"):
        edits = [Set(site, value) for site, value in values.items() if not site.endswith(apart)]
        close(model(model.tape(edit=edits)), bare)


@pytest.mark.full
@every
def test_writing_one_sites_own_value_back_is_a_no_op(name: str) -> None:
    model = subject(name)
    bare, values = model(), model.values("*")
    for site, value in values.items():
        close(model(model.tape(edit=[Set(site, value)])), bare)


@few
def test_an_edit_at_any_site_reaches_the_logits(name: str) -> None:
    model = subject(name)
    bare = model()
    for site in model.model.sites():
        # a factor that differs by entry: norms undo a common one, softmax a common addend
        edited = model(model.tape(edit=[Apply(site, lambda u: u * torch.linspace(0.5, 1.5, u.numel()).view_as(u))]))
        assert (edited - bare).abs().max() > 1e-9, site


@few
def test_reads_see_what_downstream_code_sees(name: str) -> None:
    model = subject(name)
    for site in model.model.sites():
        tape = model.tape(site, edit=[Scale(site, 0.5)])
        logits = model(tape)
        again = model(model.tape(edit=[Set(site, tape.values[site])]))
        close(again, logits)


@every
def test_edits_at_one_site_compose_in_the_order_given(name: str) -> None:
    model = subject(name)
    for site in model.model.sites("*resid_post"):
        plain = model.values(site)[site]
        first = model.values(site, edit=[Add(site, 1.0), Scale(site, 3.0)])[site]
        second = model.values(site, edit=[Scale(site, 3.0), Add(site, 1.0)])[site]
        # a deeper stream is untouched before its own site, so the plain value is what both start from
        close(first, (plain + 1) * 3)
        close(second, plain * 3 + 1)


@every
def test_values_of_another_tape_can_be_set(name: str) -> None:
    clean, corrupt = subject(name, seed=0), subject(name, seed=1)
    corrupt.model = clean.model
    last = list(clean.model.sites("*resid_post"))[-1]
    donor = clean.tape(last)
    logits = clean(donor)
    for source in (donor.values, donor[last], donor.values[last], donor):
        close(corrupt(corrupt.tape(edit=[Set(last, source)])), logits)
    patched = corrupt(corrupt.tape(edit=[Set(last, donor, at=At(pos=-1))]))
    close(patched[:, -1], logits[:, -1])
    close(patched[:, :-1], corrupt()[:, :-1])


@every
def test_the_fused_and_the_dense_route_give_the_same_logits(name: str) -> None:
    model = subject(name)
    close(model(model.tape("*.pattern")), model())
    close(model(form="parallel"), model())
    close(model(form="scan"), model())


@every
def test_a_tape_that_needs_no_logits_stops_early(name: str) -> None:
    model = subject(name)
    all_values = model.values("*")
    ran: list[str] = []
    for path, part in model.model.named_modules():
        if type(part).__name__ == "Block":
            part.register_forward_hook(lambda *_, path=path: ran.append(path))
    for site in model.model.sites("*resid_mid*") if "resid_mid" in str(list(all_values)) else ["blocks.0.resid_pre"]:
        ran.clear()
        tape = model.tape(site, logits=False)
        model(tape)
        close(tape.values[site], all_values[site])
        prefix, _, rest = site.rpartition("blocks.")
        stack = prefix.rstrip(".")
        deepest = int(rest.split(".")[0])
        expected = deepest + 1 + (2 if stack == "decoder" else 0)
        assert len(ran) == expected


@decoders
def test_resuming_from_any_layer_equals_a_full_pass(name: str) -> None:
    model = subject(name)
    values, bare = model.values("blocks.*.resid_pre"), model()
    for layer in range(len(model.model.stack.blocks)):
        tape = model.tape("logits", "*resid_post")
        resumed = model.model.resume(layer, values[f"blocks.{layer}.resid_pre"], tape=tape)
        assert torch.equal(resumed, bare)
        assert set(tape.values) == {"logits", *[f"blocks.{i}.resid_post" for i in range(layer, 2)]}


@decoders
def test_resuming_keeps_lengths_and_documents(name: str) -> None:
    model = subject(name)
    for kwargs in ({"lengths": torch.tensor([3, 7])}, {"documents": torch.tensor([[0, 0, 0, 1, 1, 2, 2]] * 2)}):
        tape = model.tape("blocks.1.resid_pre")
        bare = model(tape, **kwargs)
        assert torch.equal(model.model.resume(1, tape.values["blocks.1.resid_pre"], **kwargs), bare)


@translators
def test_resuming_a_decoder_keeps_the_encoders_output(name: str) -> None:
    model = subject(name)
    source_lengths = torch.tensor([4, 9])
    tape = model.tape("decoder.blocks.*.resid_pre")
    bare = model(tape, source_lengths=source_lengths)
    encoded = model.model.encode(model.inputs[0], source_lengths)
    for layer in range(2):
        resid = tape.values[f"decoder.blocks.{layer}.resid_pre"]
        resumed = model.model.resume(layer, resid, encoded=encoded, source_lengths=source_lengths)
        assert torch.equal(resumed, bare)


@decoders
def test_steps_with_a_state_equal_one_pass(name: str) -> None:
    model = subject(name)
    (tokens,) = model.inputs
    state, pieces = model.model.begin(2), []
    for start, stop in ((0, 3), (3, 4), (4, 5), (5, 7)):
        logits, state = model.model(tokens[:, start:stop], state=state)
        pieces.append(logits)
    close(torch.cat(pieces, 1), model())


@decoders
def test_prompts_of_unequal_length_continue_as_if_alone(name: str) -> None:
    model = subject(name, batch=3)
    (tokens,) = model.inputs
    real = torch.tensor([2, 5, 4])
    first, state = model.model(tokens[:, :5], state=model.model.begin(3), lengths=real)
    second, state = model.model(tokens[:, 5:], state=state)
    both = torch.cat((first, second), 1)
    for row, length in enumerate(real.tolist()):
        alone = model.model(tokens[row : row + 1, 5 - length :])
        close(both[row, 5 - length :], alone[0])


@translators
def test_translation_steps_equal_one_pass(name: str) -> None:
    model = subject(name)
    source, tokens = model.inputs
    source_lengths = torch.tensor([4, 9])
    state, pieces = model.model.begin(source, source_lengths), []
    for start, stop in ((0, 2), (2, 3), (3, 7)):
        logits, state = model.model(None, tokens[:, start:stop], state=state)
        pieces.append(logits)
    close(torch.cat(pieces, 1), model(source_lengths=source_lengths))


@every
def test_an_edit_during_steps_is_applied_once_per_position(name: str) -> None:
    model = subject(name)
    edit = [Scale(n, 0.5) for n in model.model.sites() if n.endswith((".attn.key", ".cross.key", ".mlp.out"))]
    edit = [change for change in edit if not change.site.startswith("encoder.")]
    whole = model(model.tape(edit=edit))
    *source, tokens = model.inputs
    state, pieces = model.model.begin(*(source or [2])), []
    for t in range(tokens.shape[1]):
        inputs = (None, tokens[:, t : t + 1]) if source else (tokens[:, t : t + 1],)
        logits, state = model.model(*inputs, state=state, tape=model.tape(edit=edit))
        pieces.append(logits)
    close(torch.cat(pieces, 1), whole)


@decoders
def test_packed_documents_equal_separate_ones(name: str) -> None:
    model = subject(name)
    (tokens,) = model.inputs
    ids = torch.tensor([[0, 0, 0, 1, 1, 2, 2], [5, 5, 6, 6, 6, 6, 6]])
    packed = model(documents=ids)
    for row in range(2):
        for document in ids[row].unique():
            where = ids[row] == document
            close(packed[row, where], model.model(tokens[row : row + 1, where])[0])


@decoders
def test_padding_changes_no_real_position(name: str) -> None:
    model = subject(name)
    (tokens,) = model.inputs
    padded = model(lengths=torch.tensor([3, 7]))
    close(padded[0, :3], model.model(tokens[:1, :3])[0])
    assert torch.equal(padded[1], model()[1])
    assert padded.isfinite().all()


@translators
def test_padding_of_the_source_changes_nothing(name: str) -> None:
    model = subject(name)
    source, tokens = model.inputs
    padded = model(source_lengths=torch.tensor([4, 9]))
    close(padded[0], model.model(source[:1, :4], tokens[:1])[0])


@every
def test_rows_of_a_batch_do_not_see_each_other(name: str) -> None:
    model = subject(name, batch=3)
    alone = model.model(*[tokens[1:2] for tokens in model.inputs])
    close(model()[1:2], alone)


@every
def test_future_tokens_change_no_logits(name: str) -> None:
    model = subject(name)
    *source, tokens = model.inputs
    other = tokens.clone()
    other[:, 4:] = (other[:, 4:] + 1) % 11
    assert torch.equal(model.model(*source, other)[:, :4], model()[:, :4])


@few
def test_gradients_at_sites_are_those_of_what_comes_after(name: str) -> None:
    """Each gradient equals that of the pass in which the site's value is an independent variable."""
    model = subject(name, length=3)
    weights = torch.randn(model().shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    tape = model.tape("*", grad=True)
    total = (model(tape) * weights).sum()
    sites = [n for n in tape.values if tape.values[n].requires_grad]
    together = torch.autograd.grad(total, [tape.values[n] for n in sites], allow_unused=True)
    for site, gradient in zip(sites, together):
        variable = tape.values[site].detach().clone().requires_grad_()
        alone = (model(model.tape("*", edit=[Set(site, variable)])) * weights).sum()
        assert gradient is not None, site
        close(gradient, torch.autograd.grad(alone, variable)[0])


def test_gradients_at_sites_equal_autograd_of_a_model_written_by_hand() -> None:
    """Two pre-norm blocks with learned positions, as one would write them on a blackboard."""
    config = DecoderConfig(
        7, 8, (block(n_heads=2, mlp=Mlp(6, "relu"), bias=True),) * 2, max_len=5, positions=Learned(), tied=False
    )
    model = randomise(config.build().double().eval(), std=0.3)
    tokens = torch.tensor([[1, 4, 2, 6], [0, 3, 3, 5]])
    weights = dict(model.named_parameters())
    seen: dict[str, Tensor] = {}

    def keep(site: str, value: Tensor) -> Tensor:
        if value.requires_grad:
            value.retain_grad()
        seen[site] = value
        return value

    def norm(x: Tensor, name: str) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return (
            centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weights[f"{name}.weight"]
            + weights[f"{name}.bias"]
        )

    x = keep("embed.token", weights["embed.matrix"][tokens]) + keep(
        "embed.position", weights["embed.positions.weight"][:4].expand(2, 4, 8)
    )
    for i in range(2):
        at, path = f"blocks.{i}", f"stack.blocks.{i}"
        x = keep(f"{at}.resid_pre", x)
        y = keep(f"{at}.attn.norm", norm(x, f"{path}.attn_norm"))
        qkv = y @ weights[f"{path}.attn.projection.qkv.weight"].T + weights[f"{path}.attn.projection.qkv.bias"]
        q, k, v = (
            keep(f"{at}.attn.{n}", u.reshape(2, 4, 2, 4).transpose(1, 2))
            for n, u in zip(("query", "key", "value"), qkv.chunk(3, -1))
        )
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / 2
        scores = keep(f"{at}.attn.scores", scores.masked_fill(torch.ones(4, 4).triu(1).bool(), -torch.inf))
        pattern = keep(f"{at}.attn.pattern", scores.softmax(-1))
        z = keep(f"{at}.attn.z", torch.einsum("bhqk,bhkd->bhqd", pattern, v))
        w_o = weights[f"{path}.attn.merge.output.weight"].reshape(8, 2, 4)
        written = keep(f"{at}.attn.head_out", torch.einsum("bhqd,mhd->bhqm", z, w_o))
        x = x + keep(f"{at}.attn.out", written.sum(1) + weights[f"{path}.attn.merge.output.bias"])
        x = keep(f"{at}.resid_mid", x)
        y = keep(f"{at}.mlp.norm", norm(x, f"{path}.mlp_norm"))
        pre = keep(f"{at}.mlp.pre", y @ weights[f"{path}.mlp.input.weight"].T + weights[f"{path}.mlp.input.bias"])
        hidden = keep(f"{at}.mlp.hidden", pre.clamp_min(0))
        x = x + keep(
            f"{at}.mlp.out", hidden @ weights[f"{path}.mlp.output.weight"].T + weights[f"{path}.mlp.output.bias"]
        )
        x = keep(f"{at}.resid_post", x)
    x = keep("final.norm", norm(x, "stack.final"))
    logits = keep("logits", x @ weights["unembed.matrix"].T)
    F.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()

    tape = Tape(model, list(seen), grad=True)
    loss = F.cross_entropy(model(tokens, tape=tape).flatten(0, 1), tokens.flatten())
    gradients = torch.autograd.grad(loss, [tape.values[name] for name in seen])
    for (name, value), gradient in zip(seen.items(), gradients):
        close(tape.values[name].nan_to_num(), value.nan_to_num())
        assert value.grad is not None
        close(gradient, value.grad)


@every
def test_a_read_can_keep_a_part_or_a_reduced_value(name: str) -> None:
    model = subject(name)
    site = next(iter(model.model.sites("*.attn.z")))
    whole = model.values(site)[site]
    tape = model.tape(Read(site, at=At(head=1, pos=slice(1, 3))))
    model(tape)
    assert torch.equal(tape.values[site], whole[:, 1, 1:3])
    assert tape[site].axes == ("batch", "pos", "d_value")
    tape = model.tape(Read(site, reduce=lambda value: value.norm(dim=-1)))
    model(tape)
    assert torch.equal(tape.values[site], whole.norm(dim=-1))
    with pytest.raises(ShapeMismatch, match="returns a tensor; this one returned a NoneType"):
        model(model.tape(Read(site, reduce=lambda value: None)))  # type: ignore[arg-type, return-value]


@every
def test_values_without_grad_are_detached(name: str) -> None:
    assert not any(value.requires_grad for value in subject(name).values("*").values())


@every
def test_taking_from_another_row_makes_rows_alike(name: str) -> None:
    model = subject(name, batch=3)
    last = list(model.model.sites("*resid_post"))[-1]
    bare, values = model(), model.values(last)[last]
    for row in (1, -1):
        tape = model.tape(last, edit=[Take(last, row)])
        logits = model(tape)
        close(logits, bare[row].expand_as(bare))
        assert torch.equal(tape.values[last], values[row].expand_as(values))
    one = model.values(last, edit=[Take(last, 2, at=At(batch=0, pos=-1))])[last]
    assert torch.equal(one[0, -1], values[2, -1])
    assert torch.equal(one[1:], values[1:])
    assert torch.equal(one[0, :-1], values[0, :-1])


@every
def test_removing_a_direction_leaves_nothing_along_it(name: str) -> None:
    model = subject(name)
    last = list(model.model.sites("*resid_post"))[-1]
    plain = model.values(last)[last]
    directions = torch.randn(3, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    # the third lies in the span of the first two: only a plane may be removed
    directions[2] = directions[0] - 2 * directions[1]
    removed = model.values(last, edit=[Project(last, directions)])[last]
    kept = model.values(last, edit=[Project(last, directions, keep=True)])[last]
    close(removed @ directions.T, torch.zeros(*plain.shape[:2], 3, dtype=torch.float64))
    close(removed + kept, plain)
    assert torch.linalg.matrix_rank(kept.flatten(0, 1)) == 2


@every
def test_a_plain_function_is_an_edit(name: str) -> None:
    model = subject(name)
    site = next(iter(model.model.sites("*.attn.out")))
    as_pairs = model(model.tape(edit=[(site, lambda value: value * 0.25)]))
    as_mapping = model(model.tape(edit={site: lambda value: value * 0.25}))
    assert torch.equal(as_pairs, model(model.tape(edit=[Scale(site, 0.25)])))
    assert torch.equal(as_mapping, as_pairs)
