"""The numbers of the tour's chapters, found once more: from sites of a run, by loops and by hand."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import glassformer as gf
from glassformer import analysis
from glassformer.models import Sampling, generate

NAMED = 0.4  # a score from which on a head is called by its role


class Found:
    """What a chapter has to say of a model on a text.

    Args:
        model: The model, a decoder.
        given: Text or ids.
    """

    def __init__(self, model: Any, given: str | Sequence[int]) -> None:
        self.model, self.given = model, given
        names = [name for name, site in model.sites().items() if "vocab" not in site.axes]
        self.run = gf.run(model, given, read=names)
        assert self.run.logits is not None and self.run.ids is not None
        self.ids = self.run.ids[0].tolist()
        self.logits = self.run.logits[0, -1].double()
        self.n, self.answer = len(self.ids), int(self.run.logits[0, -1].argmax())
        self.labels = [
            f"L{layer.layer}H{head}"
            for layer in model.sub_layers()
            if layer.attention is not None
            for head in range(layer.attention.dims.n_heads)
        ]

    def site(self, name: str) -> Tensor:
        return self.run[name].select(batch=0).values.double()

    def pattern(self, label: str) -> Tensor:
        return self.site(f"{label}.pattern")

    def numbers(self, chapter: int) -> dict[str, float]:
        """Return every number of a chapter by its name."""
        return [
            self.of_ids, self.of_embedding, self.of_one_head, self.of_many_heads, self.of_stream, self.of_induction,
            self.of_draw, self.of_ablation,
        ][chapter - 1]()  # fmt: skip

    # -------------------------------------------------------------------------------------------- tokens

    def words(self) -> list[str]:
        return list(self.run.inputs.output.tokens[0])

    def again(self, among: Sequence[int]) -> tuple[int, int | None]:
        """The last token that stood before, words before characters and these before spaces, and its first place."""
        best: tuple[tuple[bool, bool, int], int, int] | None = None
        for i in among:
            before = [j for j in among if j < i and self.ids[j] == self.ids[i]]
            word = self.words()[i].strip()
            rank = (bool(word), len(word) > 1, i)
            if before and (best is None or rank > best[0]):
                best = rank, i, before[0]
        if best is not None:
            return best[1], best[2]
        sizes = [(len(self.words()[i].strip()), i) for i in among]
        return max(sizes)[1], None

    def of_ids(self) -> dict[str, float]:
        tokenizer, is_text = self.model.tokenizer, isinstance(self.given, str)
        special = {self.model.tokenizer.bos} if tokenizer is not None else set[int]()
        inside = [i for i, id in enumerate(self.ids) if not (is_text and id in special)]
        at, _ = self.again(inside)
        size = len(tokenizer.bytes_of(self.ids[at])) if tokenizer is not None else 0
        return {
            "tokens": self.n, "vocab": self.model.config.vocab_size, "position": at, "id": self.ids[at], "bytes": size,
            "occurs": self.ids.count(self.ids[at]), "cut": len(inside), "added": self.n - len(inside),
            "characters": len(self.given) if is_text else 0,
        }  # fmt: skip

    def of_embedding(self) -> dict[str, float]:
        at, first = self.again(range(self.n))
        state = dict(self.model.named_parameters())
        table = next(
            value for name, value in state.items() if "embed" in name and value.shape[0] == self.vocab
        ).detach()
        stream = self.site("blocks.0.resid_pre")
        found = {
            "d_model": self.model.config.d_model, "vocab": self.vocab, "position": at,
            "size": float(stream[at].norm()), "token_size": float(table[self.ids[at]].double().norm()),
        }  # fmt: skip
        if "embed.position" in self.model.sites():
            found["position_size"] = float((stream[at] - table[self.ids[at]].double()).norm())
        if first is not None:
            found |= {"first": first, "apart": float((stream[at] - stream[first]).norm())}
        return found

    @property
    def vocab(self) -> int:
        return self.model.config.vocab_size

    # -------------------------------------------------------------------------------------------- heads

    def sharpest(self) -> tuple[str, int, int]:
        best = (-1.0, "", 0, 0)
        # a text of three tokens has no key between the first and the one before
        first, near = (1, 1) if self.n > 3 else (0, 0)
        for label in self.labels:
            for query, row in enumerate(self.pattern(label)):
                for key in range(first, query - near):
                    share = float(row[key].abs() / row.abs().sum().clamp_min(1e-30))
                    best = (share, label, query, key) if share > best[0] else best
        return best[1:]

    def of_one_head(self) -> dict[str, float]:
        label, query, key = self.sharpest()
        row = self.pattern(label)[query]
        found: dict[str, float] = {
            "query": query, "key": key, "keys": self.n, "weight": float(row[key]), "sum": float(row[: query + 1].sum()),
            "share": float(row[key].abs() / row.abs().sum()),
        }  # fmt: skip
        layer = self.model.sub_layer(self.path(label)).attention
        if layer.traits.bilinear_raw_scores:
            found["product"] = float(self.site(f"{label}.query")[query] @ self.site(f"{label}.key")[key])
        if layer.traits.has_scores:
            scores = self.site(f"{label}.scores")[query, : query + 1]
            found |= {"score": float(scores[key]), "seen": int(scores.isfinite().sum())}
            found["factor"] = layer.dims.d_head**-0.5
        return found

    def path(self, label: str) -> str:
        return f"blocks.{label[1 : label.index('H')]}.attn"

    # -------------------------------------------------------------------------------------------- writes

    def shares(self) -> dict[str, float]:
        """What each component adds to the logit, by its label."""
        split = analysis.attribution.direct_logit_attribution(self.model, self.given, answer=self.answer, position=-1)
        return dict(zip(map(str, split.contributions.labels("component")), split.contributions.values.tolist()))

    def of_many_heads(self) -> dict[str, float]:
        heads = {label: share for label, share in self.shares().items() if label in self.labels}
        most = max(heads, key=heads.__getitem__)
        layer = self.model.sub_layer(self.path(most)).attention
        return {
            "position": self.n - 1, "total": float(self.logits[self.answer]), "layer": int(most[1 : most.index("H")]),
            "width": layer.dims.d_value, "beside": layer.dims.n_heads, "heads": len(self.labels),
            "written": float(self.site(f"{most}.head_out")[-1].norm()), "most": heads[most],
            "least": min(heads.values()), "adding": len([x for x in heads.values() if x > 0]),
            "taking": len([x for x in heads.values() if x < 0]), "sum": math.fsum(heads.values()),
        }  # fmt: skip

    def of_stream(self) -> dict[str, float]:
        shares, last = self.shares(), len(self.model.output_stack.blocks) - 1
        groups = {
            "heads": [x for label, x in shares.items() if label in self.labels],
            "mlps": [x for label, x in shares.items() if label.endswith(" mlp")],
            "embedding": [x for label, x in shares.items() if label in ("token", "position")],
        }
        sums = {name: math.fsum(values) for name, values in groups.items()}
        end = self.site(f"blocks.{last}.resid_post")[-1]
        found = {
            **sums, "rest": float(self.logits[self.answer]) - math.fsum(sums.values()), "position": self.n - 1,
            "total": float(self.logits[self.answer]), "layers": last + 1, "end": float(end.norm()),
            "begin": float(self.site("blocks.0.resid_pre")[-1].norm()),
            "normed": float(self.model.output_stack.final(end.float()[None, None], None).detach().norm()),
        }  # fmt: skip
        if sums["mlps"]:
            found["neurons"] = self.model.config.layers[0].parts[1].d_mlp or 4 * self.model.config.d_model
        return found

    # -------------------------------------------------------------------------------------------- induction

    def followed(self, query: int) -> list[int]:
        """The keys that stood behind earlier copies of a query's token."""
        return [j + 1 for j in range(query) if self.ids[j] == self.ids[query] and j + 1 <= query]

    def role(self, label: str, keys_of: Any) -> float:
        """The mean share of a head on some keys, over the queries that have any."""
        shares = [
            float(row[keys].sum() / row.abs().sum().clamp_min(1e-30))
            for query, row in enumerate(self.pattern(label))
            if query and (keys := keys_of(query))
        ]
        return math.fsum(shares) / len(shares) if shares else math.nan

    def of_induction(self) -> dict[str, float]:
        places = [query for query in range(1, self.n) if self.followed(query)]
        found: dict[str, float] = {"heads": len(self.labels), "places": len(places), "named": NAMED}
        lower, best = self.labels, ""
        if places:
            scores = {label: self.role(label, self.followed) for label in self.labels}
            best = max(scores, key=scores.__getitem__)
            pattern = self.pattern(best)
            _, query, key = max((float(pattern[q, k]), q, k) for q in places for k in self.followed(q))
            found |= {"induction": scores[best], "query": query, "key": key, "copy": key - 1}
            found["weight"] = float(pattern[query, key])
            lower = [
                label for label in self.labels if int(label[1 : label.index("H")]) < int(best[1 : best.index("H")])
            ]
        if lower:
            back = {label: self.role(label, lambda query: [query - 1]) for label in lower}
            previous = max(back, key=back.__getitem__)
            found["previous"] = back[previous]
            if places:
                found |= self.composed(previous, best)
        return found

    def composed(self, earlier: str, later: str) -> dict[str, float]:
        """K-composition by whole matrices, where heads are products of matrices and nothing else."""
        try:
            whole = analysis.from_weights.composition(self.model, draws=16, seed=0)
        except gf.errors.AnalysisUnavailable:
            return {}
        score = float(whole.scores.select(kind="K", earlier=earlier, later=later).values)
        null = float(whole.null_mean.select(kind="K", earlier=earlier, later=later).values)
        return {} if math.isnan(score) else {"composition": score, "times": score / null}

    # -------------------------------------------------------------------------------------------- answers

    def of_draw(self) -> dict[str, float]:
        shares = (self.logits - self.logits.max()).exp()
        shares /= shares.sum()
        colder = (2 * (self.logits - self.logits.max())).exp()
        first, second = shares.argsort(descending=True)[:2].tolist()
        drawn = int(generate(self.model, [self.ids], Sampling(seed=0), max_new_tokens=1).tokens[0][0])
        uniform = torch.rand((), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        return {
            "position": self.n - 1, "outputs": len(self.logits), "logit": float(self.logits[first]),
            "share": float(shares[first]), "second_share": float(shares[second]),
            "colder": float(colder[first] / colder.sum()), "uniform": float(uniform),
            "drawn_share": float(shares[drawn]), "rank": 1 + len([x for x in shares if x > shares[drawn]]), "seed": 0,
        }  # fmt: skip

    def of_ablation(self) -> dict[str, float]:
        heads = {label: share for label, share in self.shares().items() if label in self.labels}
        head = max(heads, key=heads.__getitem__)
        without = gf.run(self.model, self.given, edit=[gf.Scale(f"{head}.z", 0.0)])
        assert without.logits is not None
        after = without.logits[0, -1].double()
        drop = float(self.logits[self.answer] - after[self.answer])
        return {
            "position": self.n - 1, "total": float(self.logits[self.answer]),
            "before": float(self.logits[self.answer]), "after": float(after[self.answer]), "direct": heads[head],
            "before_share": float(self.logits.softmax(-1)[self.answer]), "drop": drop, "rest": drop - heads[head],
            "after_share": float(after.softmax(-1)[self.answer]), "other_share": float(after.softmax(-1).max()),
        }  # fmt: skip
