"""The server, asked what nobody should ask it: an answer or a fault, at once; never a mistake, never more memory."""

import json
import random
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
import torch

from glassformer.serve import Limits
from glassformer.serve.api import REQUESTS
from glassformer.serve.questions import QUESTIONS
from glassformer.testing.models import subject
from served import Served

if TYPE_CHECKING:
    from trials import Trials

MEMORY = 1_500_000
WORDS = (
    "", " ", "\0", "a\0b", "\x1b[31m", "\ud800", "\u202eabc", "</script><script>alert(1)</script>", "' OR 1=1",
    "../../etc", "%2e%2e/", "x" * 5_000, "*", "blocks.*", "L0H0", "L0H0.z", "L9H9.z", "L0H0.*", "logits", "embed.token",
    "final.norm", "blocks.0.attn.pattern", "blocks.0.resid_pre", "nan", "NaN", "null", "true", "[]", "{}", "-1", "0",
    "1", "99999", "1e999", "9" * 400, "3,4", "0,3,0,3", "-5,2,1,0", "f32", "sqrt8", "tril", "frame", "json", "weights",
    "scores", "٣", "日本",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 7, 10**6, -(10**6), 10**30, 2**63, 0.5, -1e300, 1e300, float("nan"), float("inf"), [],
    {}, [[]], [1, 2, 3], [-1], [10**9], [1.5], ["a"], [None], {"a": 1}, {"run": "x"}, {"pos": 0}, {"pos": [0, 1]},
    {"head": 9}, [{}] * 50, [0] * 3_000, {"kind": "softmax"},
)  # fmt: skip


class Attacker:
    """Draws requests, most of them nearly right.

    Args:
        served: The server.
        seed: Of the draws.
    """

    def __init__(self, served: Served, seed: int) -> None:
        self.served, self.draw, self.sent = served, random.Random(seed), b""
        self.runs = [
            served.run("gpt2", [1, 2, 3, 4])["id"],
            served.run("linear", [5, 1, 2])["id"],
            served.run("translator_pre", [1, 2, 3], target_ids=[4, 5])["id"],
        ]

    def word(self) -> str:
        return self.draw.choice((*WORDS, *self.runs))

    def value(self, depth: int = 0) -> Any:
        if depth < 2 and self.draw.random() < 0.2:
            return {self.word(): self.value(depth + 1) for _ in range(self.draw.randint(0, 3))}
        return self.draw.choice((*VALUES, *WORDS, *self.runs))

    def right(self, kind: str) -> dict[str, Any]:
        """Return a body that is as it should be."""
        change = {
            "edit": self.draw.choice(["set", "add", "scale", "project"]),
            "site": self.draw.choice(
                ["L0H0.z", "blocks.0.resid_pre", "blocks.*.mlp.out", "logits", "*.pattern", "embed.token"]
            ),
            "value": self.draw.choice([0, 1.5, [1.0] * 16, [1.0] * 4, {"run": self.draw.choice(self.runs)}]),
            "at": self.draw.choice([{}, {"pos": 0}, {"pos": [0, -1]}, {"head": 1}, {"d_model": 3}]),
        }
        model, run = self.draw.choice(["gpt2", "linear", "translator_pre"]), self.draw.choice(self.runs)
        sweep = self.draw.choice(["patch_positions", "patch_heads", "ablate_heads"])
        return {
            "LoadSpec": {"model": model},
            "TokenizeSpec": {"model": model, "text": "a"},
            "RunSpec": {"model": model, "ids": [1, 2, 3], "changes": self.draw.choice([[], [change], [change] * 3])},
            "SweepSpec": {"run": run, "sweep": sweep, "donor": self.draw.choice(self.runs), "position": -1},
            "GenerateSpec": {"run": run, "max_new_tokens": 2, "temperature": 0.5, "top_k": 3},
        }[kind]

    def body(self, kind: str) -> Any:
        body: Any = self.right(kind)
        for _ in range(self.draw.choice([0, 0, 0, 1, 2])):
            body[self.draw.choice([*body, self.word()])] = self.value()
        return self.draw.choice([body] * 8 + [self.value(), [body]])

    def send(self) -> Any:
        draw, served, self.sent = self.draw, self.served, b""
        if draw.random() < 0.4:
            address, kind = draw.choice(list(zip(("models/load", "tokenize", "runs", "sweeps", "generate"), REQUESTS)))
            content = json.dumps(self.body(kind)).encode("utf-8", "surrogatepass")
            if draw.random() < 0.05:
                content = bytes(draw.randrange(256) for _ in range(draw.randint(0, 60))) or content[: len(content) // 2]
            self.sent = content
            media = draw.choice(["application/json"] * 19 + ["text/plain"])
            return served.post(address, content=content, headers={"content-type": media})
        question = draw.choice([*[*QUESTIONS] * 3, "export", self.safe(self.word())])
        kind, of = ("runs", draw.choice([*self.runs * 4, self.safe(self.word())]))
        of_weights = question in QUESTIONS and "model" in QUESTIONS[question].of
        if of_weights if draw.random() < 0.9 else draw.random() < 0.3:
            kind, of = ("models", draw.choice([*["gpt2", "linear"] * 4, self.safe(self.word())]))
        parts = [kind, of, question]
        # as many parts as the question takes, or one more or fewer
        takes = {"run": 0, "model": 0, "head": 1, "head of a model": 1, "row": 2}
        n = takes[QUESTIONS[question].of] if question in QUESTIONS else 0
        n = draw.choice([n] * 6 + [max(0, n - 1), n + 1])
        parts += [draw.choice([*["L0H0", "L1X1", "enc L0H1"] * 2, self.safe(self.word())])][:n]
        parts += [draw.choice([*["0", "-1", "2"] * 2, self.safe(self.word())]) for _ in range(n - 1)]
        fields = list(QUESTIONS[question].view.__dataclass_fields__) if question in QUESTIONS else ["sites", "form"]
        view = {
            self.plain(draw.choice([*fields * 2, self.word() or "x"])): self.plain(self.word())
            for _ in range(draw.choice([0, 0, 1, 2]))
        }
        method = draw.choice(["GET"] * 12 + ["POST", "DELETE", "OPTIONS", "HEAD"])
        return served.request(method, "/".join(parts), params=view)

    @staticmethod
    def plain(word: str) -> str:
        """Return a word that a client encodes by itself."""
        return word.encode("utf-8", "replace").decode()

    @staticmethod
    def safe(word: str) -> str:
        """Return a word that a client can put into an address."""
        return quote(word.encode("utf-8", "surrogatepass"))


@pytest.fixture(scope="module")
def served() -> Served:
    models = {name: subject(name, batch=1, dtype=torch.float32).model for name in ("gpt2", "linear", "translator_pre")}
    limits = Limits(text=2_000, tokens=64, body=20_000, memory=MEMORY, answer=2_000_000, rows=400, new_tokens=8)
    return Served(models, limits)


def test_a_hostile_request_is_answered_or_refused_at_once(trials: "Trials", served: Served) -> None:
    for seed in trials(quick=10, sweep=100):
        attacker = Attacker(served, seed)
        for _ in range(30):
            started = time.monotonic()
            found = attacker.send()
            told = (str(found.request.url)[:300], attacker.sent[:300], found.text[:300])
            assert found.status_code != 500 and found.status_code < 508, told
            assert time.monotonic() - started < 20, told
            if found.status_code >= 400 and found.request.method != "HEAD":
                fault = found.json()["fault"]
                assert fault["code"] != "Unexpected" and len(found.content) < 8_000, told
            trials.count("answered" if found.status_code < 400 else "refused")
            newest = next(reversed(served.store.runs.values()))
            assert sum(run.nbytes for run in served.store.runs.values()) <= MEMORY + newest.nbytes
