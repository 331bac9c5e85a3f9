"""Redo the picture and the numbers of the phase-change page: `python docs/make_phase_change.py TWO ONE SMEARED`.

The arguments are run folders of `phase-change`, `attn-only-1l` and `attn-only-1l-smeared`, the latter two trained with
`--set keep=[100,200,...,4000]`. The picture goes to docs/images, the numbers between the page's markers; the page says
how to make the runs. Takes about five minutes.
"""

import re
import sys
from pathlib import Path
from typing import Any

import torch

from glassformer.analysis.causal import ablate
from glassformer.analysis.from_weights import composition
from glassformer.analysis.heads import evaluate_heads, head_scores
from glassformer.analysis.learning import (
    History,
    PhaseChange,
    Trajectory,
    in_context_learning,
    loss_trajectories,
    phase_change,
    read_history,
    trajectory,
)
from glassformer.figures import new_figure
from glassformer.figures.colours import SERIES

DOCS = Path(__file__).resolve().parent
PAGE, PICTURE = DOCS / "how-to" / "watch-the-phase-change.md", DOCS / "images" / "phase-change.png"
NAMES = ("two layers", "one layer", "one layer, smeared keys")
BATCHES = 32


def moments(found: Trajectory, phase: PhaseChange) -> dict[str, int]:
    """Return the steps before (prefix matching last below a tenth), at (it rises fastest) and after (the last)."""
    rise = phase.steepest.select(measure="prefix_matching").values.tolist()
    steps = [int(step) for step in found.measures.labels("step")]
    prefix = found.measures.select(measure="prefix_matching").values.tolist()
    low = [step for step, value in zip(steps, prefix, strict=True) if value < 0.1 and step < rise[0]]
    return {"before": low[-1], "at": int(rise[1]), "after": steps[-1]}


def circuit(history: History) -> tuple[str, str]:
    """Return the previous-token head and the induction head of the last checkpoint."""
    scores = head_scores(history.model(history.steps[-1]))
    return scores.best("previous_token")[0], scores.best("induction")[0]


def k_composition(model: Any, first: str, second: str) -> tuple[float, float, float]:
    """Return K-composition of two heads, and mean and standard deviation of random matrices of their shapes."""
    found, place = composition(model), {"kind": "K", "earlier": first, "later": second}
    return tuple(float(x.select(**place).values) for x in (found.scores, found.null_mean, found.null_sd))  # type: ignore


def table(history: History, found: Trajectory, phase: PhaseChange, heads: tuple[str, str]) -> list[str]:
    """Return the page's main table: a column per moment."""
    previous, induction = heads
    rows: dict[str, list[str]] = {}

    def put(name: str, value: str) -> None:
        rows.setdefault(name, []).append(value)

    batches = history.batches(BATCHES)
    for step in moments(found, phase).values():
        model = history.model(step)
        learning = in_context_learning(model, *batches)
        roles = evaluate_heads(model).scores.select(setting="repeated")
        put("step", f"{step}")
        put("million tokens", f"{history.tokens(step) / 1e6:.2f}")
        put("held-out loss, nats", f"{float(learning.loss.values.mean()):.3f}")
        put("in-context-learning score, nats", f"{learning.score:.3f} [{learning.low:.3f}, {learning.high:.3f}]")
        put(
            f"previous token, {previous}",
            f"{float(roles.select(head=previous, evaluator='previous_token').values):.3f}",
        )
        for evaluator, name in (("prefix_matching", "prefix matching"), ("copying", "copying")):
            put(f"{name}, {induction}", f"{float(roles.select(head=induction, evaluator=evaluator).values):.3f}")
        score, mean, spread = k_composition(model, previous, induction)
        put(f"K-composition, {previous} to {induction}", f"{score:.3f}")
        put("the same of random matrices", f"{mean:.3f} ± {spread:.3f}")
        for head in heads:
            for kind, said in (("full", "everything reacts"), ("pattern_preserving", "patterns held")):
                lost = ablate(model, head, *batches, kind=kind)  # type: ignore[arg-type]
                change, error = float(lost.loss_change.values), float(lost.loss_change_spread.values)
                put(f"loss without {head}, {said}", f"{change:+.3f} ± {error:.3f}")
                put(f"score without {head}, {said}", f"{float(lost.icl_change.values):+.3f}")
    columns = list(moments(found, phase))
    lines = [f"| | {' | '.join(columns)} |", f"|:---|{'---:|' * len(columns)}"]
    return [*lines, *(f"| {name} | {' | '.join(values)} |" for name, values in rows.items())]


def compared(histories: list[History], found: list[Trajectory], phases: list[PhaseChange]) -> list[str]:
    """Return the table of the three runs at their ends."""
    lines = ["| | prefix matching first above 0.5 | at the end | score at the end, nats | held-out loss | bump, nats |",
             "|:---|---:|---:|---:|---:|---:|"]  # fmt: skip
    batches = histories[0].batches(BATCHES)
    for name, history, path, phase in zip(NAMES, histories, found, phases, strict=True):
        prefix = path.measures.select(measure="prefix_matching").values.tolist()
        above = next((f"step {step}" for step, x in zip(path.measures.labels("step"), prefix) if x > 0.5), "never")
        learning = in_context_learning(history.model(history.steps[-1]), *batches)
        lines.append(
            f"| {name} | {above} | {prefix[-1]:.3f} | {learning.score:.3f} [{learning.low:.3f}, {learning.high:.3f}] | "
            f"{float(learning.loss.values.mean()):.3f} | {phase.bump_height:.3f} |"
        )
    return lines


def draw(histories: list[History], found: list[Trajectory], phases: list[PhaseChange], heads: tuple[str, str]) -> Any:
    """Return the picture: six panels, time in millions of tokens."""
    figure = new_figure(13.5, 7.2)
    panels = [figure.add_subplot(2, 3, i + 1) for i in range(6)]
    two, phase = histories[0], phases[0]
    ends = [two.tokens(step) / 1e6 for step in phase.bump]
    for axes in (*panels[:3], *panels[4:]):
        axes.axvspan(*ends, color="0.92", lw=0)
        axes.set_xlabel("million tokens")
    for i, (measure, title) in enumerate(
        (("loss", "held-out loss, nats"), ("icl_score", "in-context-learning score, nats"),
         ("prefix_matching", "prefix matching, best head"))
    ):  # fmt: skip
        panels[i].set_title(title, fontsize=10)
        for name, path, colour in zip(NAMES, found, SERIES):
            values = path.measures.select(measure=measure).values[1:]
            panels[i].plot((path.tokens.values[1:] / 1e6).tolist(), values.tolist(), color=colour, label=name, lw=1.5)
    panels[0].set_ylim(2.7, 4.2)
    panels[0].legend(frameon=False, fontsize=8)
    panels[3].set_title("loss by position, two layers (means of 8), nats", fontsize=10)
    for (moment, step), colour in zip(moments(found[0], phase).items(), SERIES):
        losses = found[0].losses.values[found[0].measures.labels("step").index(step)]
        means = losses[: len(losses) // 8 * 8].unflatten(0, (-1, 8)).mean(1)
        panels[3].plot(
            [8 * i + 4.5 for i in range(len(means))], means.tolist(), color=colour, label=f"{moment}: {step}"
        )
    panels[3].set_xlabel("position")
    panels[3].legend(frameon=False, fontsize=8)
    history_of_circuit(two, heads, panels[4], panels[5])
    return figure


def history_of_circuit(history: History, heads: tuple[str, str], roles: Any, effects: Any) -> None:
    """Draw the two heads' scores and composition, and what ablating each does, over the run."""
    previous, induction = heads
    tokens, curves, lost = [], {}, {}
    batches = history.batches(16)
    for step in [step for step in history.steps if step and step % 200 == 0]:
        model = history.model(step)
        scores = head_scores(model).scores
        tokens.append(history.tokens(step) / 1e6)
        for name, value in (
            (f"previous token, {previous}", float(scores.select(head=previous, role="previous_token").values)),
            (f"prefix matching, {induction}", float(scores.select(head=induction, role="induction").values)),
            ("K-composition of the two", k_composition(model, previous, induction)[0]),
        ):
            curves.setdefault(name, []).append(value)
        for head in heads:
            change = ablate(model, head, *batches).icl_change
            lost.setdefault(f"without {head}", []).append(float(change.values))
    for axes, lines, title in (
        (roles, curves, "the two heads"), (effects, lost, "change of the score by ablation, nats")
    ):  # fmt: skip
        axes.set_title(title, fontsize=10)
        for (name, values), colour in zip(lines.items(), SERIES):
            axes.plot(tokens, values, color=colour, label=name, lw=1.5)
        axes.legend(frameon=False, fontsize=8)


def paths(histories: list[History]) -> list[str]:
    """Return what the principal axes of per-token losses say, and what random walks would."""
    found = loss_trajectories(histories)
    shares, control, spread = (x.values.tolist() for x in (found.explained, found.control, found.control_spread))
    lines = ["| | first axis | second axis |", "|:---|---:|---:|"]
    lines.append(f"| the three runs | {shares[0]:.0%} | {shares[1]:.0%} |")
    walks = [f"{c:.0%} ± {s:.0%}" for c, s in zip(control, spread)]
    return [*lines, f"| three random walks | {walks[0]} | {walks[1]} |"]


def fill(page: str, name: str, lines: list[str]) -> str:
    """Return the page with the lines between its markers of that name."""
    block = "\n".join(
        [f"<!-- {name}: made by docs/make_phase_change.py -->", "", *lines, "", f"<!-- end of {name} -->"]
    )
    filled, count = re.subn(rf"<!-- {name}: .*?<!-- end of {name} -->", lambda _: block, page, flags=re.DOTALL)
    assert count == 1, f"{PAGE} has {count} places for {name}"
    return filled


def main(folders: list[str]) -> None:
    histories = [read_history(folder) for folder in folders]
    batches = histories[0].batches(BATCHES)
    found = [trajectory(history, *batches) for history in histories]
    phases = [phase_change(path) for path in found]
    heads = circuit(histories[0])
    tables = {
        "moments": table(histories[0], found[0], phases[0], heads),
        "runs": compared(histories, found, phases),
        "paths": paths(histories),
    }
    page = PAGE.read_text(encoding="utf-8")
    for name, lines in tables.items():
        page = fill(page, name, lines)
    PAGE.write_text(page, encoding="utf-8")
    draw(histories, found, phases, heads).savefig(PICTURE, dpi=110)
    for path, phase in zip(found, phases, strict=True):
        print(path.name, phase)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    torch.set_num_threads(1)
    main(sys.argv[1:])
