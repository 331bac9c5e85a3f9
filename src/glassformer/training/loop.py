"""The training loop: batch, loss, step; measures along the way; resumable at any moment to the same numbers.

Everything a step draws (its batch, its dropout) comes from the seed and the step's number, so a run that was stopped
and resumed goes through the same values as one that was not: bit for bit on the same device, thread count, torch and
code.
"""

import hashlib
import platform
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from glassformer.arguments import checked
from glassformer.data import Batch, Data, Masked, MixtureConfig, Noised
from glassformer.data.batch import vocabularies_of
from glassformer.errors import ConfigError
from glassformer.fitting import Descent, Interrupts
from glassformer.models.routing import Charge, charged_sites, charges
from glassformer.numerics.placement import device_name, device_of, is_accelerator, place_of
from glassformer.trace import Tape
from glassformer.training.config import TrainConfig
from glassformer.training.feed import Feed
from glassformer.training.log import log_metrics, log_sample
from glassformer.training.record import RunFolder
from glassformer.training.sharing import Checkpoints, OneProcess, Sharing, Trained
from glassformer.training.transfer import take_over

if TYPE_CHECKING:
    from glassformer.training.parallel import Mesh

Measure = Callable[[Any, Data], Mapping[str, Any]]


@dataclass(frozen=True)
class Progress:
    """What is told after every step."""

    step: int
    steps: int
    loss: float
    tokens: int
    tokens_per_second: float
    notes: Mapping[str, Any] = field(default_factory=dict)


@checked
def train(
    config: TrainConfig,
    folder: str | Path,
    *,
    measures: Mapping[str, Measure] | None = None,
    report: Callable[[Progress], None] | None = None,
    begin_from: str | Path | None = None,
    mesh: "Mesh | None" = None,
    checkpoints: Checkpoints = "whole",
) -> Any:
    """Train, or go on training, in a run folder; return the model.

    Args:
        config: The recipe; a folder that holds another recipe's run is refused.
        folder: Where checkpoints and metrics go. If it holds checkpoints of this recipe, training goes on from the
            last.
        measures: Functions of (model, data) evaluated along with the held-out loss; what they return is logged, text
            goes to samples.txt.
        report: Called after every step.
        begin_from: A run folder, or one of its checkpoints, whose weights and optimizer a new run takes over at the
            step they have reached: the way to go on under another recipe, with another rate for example.
        mesh: Processes that share the work: each calls this, as torchrun starts them, and gets the same numbers as one
            alone would. The leader writes, measures, and has the model in the end; the others have None.
        checkpoints: What a mesh keeps of a run: the whole model, which the leader then has room for, or `"shards"`, of
            which each process writes its own, and the leader one single folder in the end, tensor by tensor. No process
            has the whole model then, so none is returned, and none can be measured. A run may go on either way.

    Raises:
        RunFolderError: Another process trains there, or the folder holds another recipe.
        ConfigError: The recipe names a device that is not here, or there is no mesh to keep shards, or measures ask for
            a model that is whole nowhere.
        TrainingDiverged: A loss or a gradient is not finite; the last good checkpoint is whole.
        DataError: A source of text is not there, or the corpus holds no usable text.
        CheckpointError: The checkpoint to go on from is damaged, or of another model.
        SaveError: A checkpoint could not be written; the last one is whole.
        RankLost: A process of the mesh did not come, died or no longer answers.
        KeyboardInterrupt: Ctrl-C; the step under way was finished and saved. A second Ctrl-C does not wait for that.
    """
    _warn_if_apart(config)
    _check_checkpoints(checkpoints, mesh, measures)
    device = device_of(config.device)
    assert device is not None, "a recipe names a device"
    deterministic = _reproducible(config.compile or is_accelerator(device))
    with ExitStack() as open_ones:
        open_ones.enter_context(deterministic)
        sharing: Sharing = OneProcess()
        if mesh is not None:
            from glassformer.training.parallel.processes import own_device
            from glassformer.training.parallel.shared import shared

            device = own_device(device)
            sharing = open_ones.enter_context(shared(config, mesh, device, checkpoints))
        run = sharing.first("opening the folder", lambda: RunFolder(folder, config, begin_from, writes=sharing.leads))
        open_ones.enter_context(run)
        # what is measured on is built after what is trained on has been read
        for source in (config.data, config.evaluate or config.data):
            source.check()
        data = config.data.build(run.tokenizer())
        heldout = data if config.evaluate is None else config.evaluate.build(data.tokenizer)
        # held nowhere here: a process that trains a share lets go of the whole
        trained, restored = sharing.begun(_model(config, data).to(device), config.optim, run)
        facts = _facts(config, data, heldout, device, mesh)
        if restored is not None:
            # runs that do not say where they ran knew no other place
            restored = {"device": "cpu", "mesh": "one process"} | restored
            _warn_if_different(restored, facts, run.goes_on)
            reached = {name: restored[name] for name in ("step", "tokens", "seconds")}
            facts = restored if run.goes_on else facts | reached
        loop = _Loop(
            config=config,
            run=run,
            trained=trained,
            sharing=sharing,
            data=data,
            heldout=heldout,
            measures=measures or {},
            facts=facts,
        )
        # whatever is wrong with recipe or data shows here, before anything is written
        first = {} if run.goes_on else loop.evaluate()
        if sharing.leads:
            run.begin(config, data.tokenizer)
        if not run.goes_on:
            loop.record(0.0, first)
        if restored is not None and not run.goes_on:
            # from here on the run stands on its own feet
            loop.save()
        with Interrupts() as interrupts:
            for progress in loop.steps():
                try:
                    if report is not None:
                        report(progress)
                    # who is asked to stop tells the others, or they would wait for it
                    if any(sharing.totals(interrupts.asked)):
                        raise KeyboardInterrupt
                except KeyboardInterrupt:
                    # between two steps the state is that of a finished one
                    loop.save()
                    raise
        whole = sharing.whole()
        return None if whole is None else whole.eval()


class _Loop:
    def __init__(
        self,
        config: TrainConfig,
        run: RunFolder,
        trained: Trained,
        sharing: Sharing,
        data: Data,
        heldout: Data,
        measures: Mapping[str, Measure],
        facts: dict[str, Any],
    ) -> None:
        self.config, self.run, self.sharing = config, run, sharing
        model, optimizer = self.model, _ = trained
        self.data, self.heldout, self.measures, self.facts = data, heldout, measures, facts
        self.tokens, self.seconds = facts["tokens"], facts["seconds"]
        # of the steps since the last line of metrics
        self.losses: list[float] = list(facts["losses"])
        # what the loss holds beside the cross-entropy for what sub-layers did, by what it is; runs of before kept none
        self.charges: dict[str, list[float]] = {name: list(found) for name, found in facts.get("charges", {}).items()}
        self.charged = charged_sites(model)
        self.loss = torch.compile(model.loss) if config.compile else model.loss
        self.feed = Feed(self._batches, place_of(model))
        # targets that count in the step whose gradient was computed last, and what it was charged for
        self.counted, self.due = 0, dict[str, torch.Tensor]()
        self.descent = Descent(
            list(model.parameters()), optimizer, self._losses, rate=self._rate, steps=config.steps, step=facts["step"],
            clip=config.optim.clip, name="training", way_on=lambda: _way_on(config, run.resumable()),
            mean=sharing.mean,
        )  # fmt: skip
        self.started, self.seen = time.perf_counter(), self.tokens

    @property
    def step(self) -> int:
        """The step reached."""
        return self.descent.step

    def steps(self) -> Iterator[Progress]:
        config = self.config
        self.started, self.seen = time.perf_counter(), self.tokens
        for update in self.descent:
            self.tokens += self.counted
            self.losses.append(update.loss)
            for name, value in self.due.items():
                self.charges.setdefault(name, []).append(float(value))
            notes: dict[str, Any] = {}
            if self.step % config.log_every == 0 or self.step == config.steps:
                notes = {"loss": sum(self.losses) / len(self.losses), "lr": update.rate, "grad_norm": update.norm}
                notes |= {name: sum(found) / len(found) for name, found in self.charges.items()}
                self.losses.clear()
                self.charges.clear()
            if self.step % config.evaluate_every == 0 or self.step == config.steps:
                notes |= self.evaluate()
            elapsed = time.perf_counter() - self.started
            if notes:
                self.record(self.seconds + elapsed, notes)
            if self.step % config.save_every == 0 or self.step in config.keep or self.step == config.steps:
                self.save()
            rate = (self.tokens - self.seen) / max(elapsed, 1e-9)
            yield Progress(self.step, config.steps, update.loss, self.tokens, rate, notes)

    def record(self, seconds: float, notes: Mapping[str, Any]) -> None:
        """Log numbers to metrics.jsonl and texts to samples.txt; a held-out loss goes with what it was measured on."""
        if not self.sharing.leads:
            return
        numbers = {name: value for name, value in notes.items() if not isinstance(value, str)}
        on = {"heldout_on": self.facts["heldout_on"]} if "heldout_loss" in notes else {}
        told = {"step": self.step, "tokens": self.tokens, "seconds": round(seconds, 2)}
        log_metrics(self.run.path, told | numbers | on)
        for value in notes.values():
            if isinstance(value, str):
                log_sample(self.run.path, self.step, value)

    def save(self) -> None:
        """Keep the weights as they are, once they are known to give a loss and a gradient to go on by."""
        if self.step < self.config.steps:
            self.descent.gradient()
        seconds = self.seconds + time.perf_counter() - self.started
        keep = self.step in self.config.keep or self.step == self.config.steps
        told = {"tokens": self.tokens, "seconds": seconds, "losses": self.losses, "keep": keep}
        told |= {"charges": self.charges} if self.charges else {}
        self.sharing.save(self.run, self.step, self.facts | told)

    def evaluate(self) -> dict[str, Any]:
        """Return the held-out loss in nats per token, and every measure."""
        self.model.eval()
        found: dict[str, Any] = {}
        with torch.no_grad():
            total = count = 0.0
            for i in range(self.config.evaluate_batches):
                batch = self.heldout.batch(i, "heldout")
                batch.check_targets(self.config.model.n_outputs)
                batch = self.sharing.rows(batch)
                weight = float(batch.weight.sum())
                total += float(self.model.loss(batch.to(self.feed.device))) * weight
                count += weight
            total, count = self.sharing.totals(total, count)
            found["heldout_loss"] = total / max(count, 1.0)
            self.descent.check("after", self.step, {"held-out loss": found["heldout_loss"]})
            if self.measures and (whole := self.sharing.whole()) is not None:
                whole.eval()
                for measure in self.measures.values():
                    found |= measure(whole, self.heldout)
        self.model.train()
        return found

    def _rate(self, step: int) -> float:
        return self.config.optim.rate(step, self.config.steps, self.config.model.d_model)

    def _losses(self, step: int) -> Iterator[torch.Tensor]:
        config = self.config
        torch.manual_seed(_seed(config.seed, step))
        parts = self.feed.take(step)
        counted, *rows = self.sharing.totals(
            sum(part.counted for part in parts), *(len(part.batch.tokens) for part in parts)
        )
        self.counted, self.due = int(counted), {}
        for part, of_all in zip(parts, rows, strict=True):
            # parts are weighted by the tokens that count, so that accumulation changes nothing but memory, and so are
            # the rows of processes, whose gradients are averaged
            share = part.counted / max(self.counted, 1) * self.sharing.size
            tape = Tape(self.model, self.charged, grad=True) if self.charged else None
            with _autocast(self.feed.device, config.precision), self.sharing.dropout(part.batch, int(of_all)):
                value = self.loss(part.batch, config.smoothing, tape)
                penalty = self.model.penalty()
                value = value if penalty is None else value + penalty
                charged = self._charges(part.batch, tape)
                for _, factor, charge in charged:
                    value = value + factor * charge
            self._note_due(charged, share)
            yield value * share
        if step < config.steps:
            self.feed.look_ahead(step + 1)

    def _charges(self, batch: Batch, tape: Tape | None) -> list[Charge]:
        """Return what the loss is charged for what sub-layers did in one pass."""
        model, lengths = self.model, {self.model.output: batch.lengths}
        if model.source is not None:
            lengths[model.source] = batch.source_lengths
        return charges(model, tape, lengths)

    def _note_due(self, charged: list[Charge], share: float) -> None:
        """Add up, over the parts of a step, what sub-layers are charged for on average."""
        for name in {charge.name for charge in charged}:
            found = torch.stack([charge.value.detach() for charge in charged if charge.name == name]).mean()
            self.due[name] = self.due[name] + share * found if name in self.due else share * found

    def _batches(self, step: int) -> list[Batch]:
        batch = self.data.batch(step)
        batch.check_targets(self.config.model.n_outputs)
        return [self.sharing.rows(part) for part in _parts(batch, self.config.accumulate)]


def _way_on(config: TrainConfig, place: Path | None) -> str:
    """Return where a run that diverged can go on from, and what to change."""
    optim = config.optim
    clip = f"{optim.clip:g}" if optim.clip else "0: none"
    change = f"a smaller optim.lr (now {optim.lr:g}), a longer optim.warmup (now {optim.warmup} steps), "
    change += f"a smaller optim.clip (now {clip})"
    if config.precision != "float32":
        change += f', precision="float32" (now {config.precision})'
    if place is None:
        return f"No checkpoint was made before. Begin again in a new folder, with {change}."
    return (
        f'The last good checkpoint is "{place}".\n'
        f"    Go on from it in a new folder, by begin_from (--begin-from on the command line), with {change}."
    )


def _parts(batch: Batch, count: int) -> list[Batch]:
    if count == 1:
        return [batch]
    size = -(-len(batch.tokens) // count)
    pieces = {name: value.split(size) for name, value in batch.tensors().items()}
    return [Batch(**{name: value[i] for name, value in pieces.items()}) for i in range(len(pieces["tokens"]))]


def _autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """Return the context of a forward pass in some precision; not every device knows lower ones."""
    return nullcontext() if precision == "float32" else torch.autocast(device.type, torch.bfloat16)


def _model(config: TrainConfig, data: Data) -> Any:
    _check_noise(config)
    _check_vocabularies(config, data)
    model = config.model.build(config.seed)
    _check_masked(config, model)
    batch = data.batch(1)
    _check_images(config, model, batch)
    if model.reads_pairs != (batch.source is not None):
        raise ConfigError(
            f'train: data of kind "{config.data.kind}" has {"no " if batch.source is None else ""}sources, which '
            f"{'an encoder-decoder needs' if batch.source is None else 'only an encoder-decoder reads'}."
        )
    for side, tokenizer in vocabularies_of(data).items():
        if side == "input":
            model.tokenizer = tokenizer
        elif tokenizer is not data.tokenizer:
            setattr(model, f"{side}_tokenizer", tokenizer)
    if config.weights is not None:
        take_over(model, config.weights, data.tokenizer)
    read = batch.tokens.shape[1] if model.patches is None else model.patches.n_tokens
    model.trained_length = max(config.data.length, read)
    return model.train()


def _check_images(config: TrainConfig, model: Any, batch: Batch) -> None:
    """Raise `ConfigError` unless the model reads images if the data are images, of the same size."""
    found = tuple(batch.tokens.shape[1:]) if batch.tokens.is_floating_point() else None
    wanted = None if model.patches is None else model.patches.shape
    if found != wanted:
        raise ConfigError(
            f'train: data of kind "{config.data.kind}" are {_said_of(found)}, and the model reads {_said_of(wanted)} '
            "(patches)."
        )
    if (
        wanted is not None
        and not model.config.denoises
        and not (model.predicts and model.config.classifies in ("text", "mean"))
    ):
        raise ConfigError(
            f"train: images have one class each, and the model's outputs are no class of the whole (classifies="
            f"{model.config.classifies!r}); build it with image_encoder(…, n_classes=…)."
        )


def _check_masked(config: TrainConfig, model: Any) -> None:
    """Raise `ConfigError` unless tokens are hidden where the model says what stands at a position, and only there."""
    masked = isinstance(config.data, Masked)
    if masked != isinstance(config.evaluate or config.data, Masked):
        raise ConfigError("train: data and evaluate are both Masked(…), or neither is: a model learns one of the two.")
    if isinstance(config.data, MixtureConfig) and any(isinstance(part, Masked) for part in config.data.parts):
        raise ConfigError("train: a part of the mixture is Masked(…). Hide the rows of all: Masked(text=the mixture).")
    if model.patches is not None:
        return
    if not masked and not model.generates:
        raise ConfigError(
            "train: an encoder reads both ways, so it sees each next token. It learns from masked tokens: "
            "Masked(text=the data) hides some and asks for them."
        )
    if masked and model.logits_of != "token":
        found = "writes the next token" if model.generates else "has no unembedding (predicts=False)"
        raise ConfigError(f'train: data of kind "masked" is for encoders that say tokens; this model {found}.')


def _check_noise(config: TrainConfig) -> None:
    """Raise `ConfigError` unless images have noise in them where the model is told how much, and as it is told."""
    data, denoises = config.data if isinstance(config.data, Noised) else None, config.model.denoises
    if data is None and denoises is None:
        return
    if data is None or denoises is None:
        raise ConfigError(
            f'train: data of kind "{config.data.kind}" has {"no " if data is None else ""}noise in it, and the model '
            f"{'is not told of any' if denoises is None else 'makes images out of noise'}. Noised(images) goes with "
            "image_generator(…), images as they are with image_encoder(…)."
        )
    if data.schedule != denoises.schedule or len(data.classes()) > denoises.n_classes:
        raise ConfigError(
            f"train: the data have {len(data.classes())} classes and noise by {data.schedule}, the model "
            f"{denoises.n_classes} and {denoises.schedule}."
        )


def _said_of(shape: tuple[int, ...] | None) -> str:
    return "token ids" if shape is None else f"images of {' x '.join(map(str, shape))}"


def _check_vocabularies(config: TrainConfig, data: Data) -> None:
    """Raise `ConfigError` unless the model reads what the data holds, and its logits are of the data's targets."""
    model = config.model
    if model.vocab_size < data.vocab_size:
        raise ConfigError(
            f"train: the model has vocab_size={model.vocab_size}, the data's tokenizer {data.vocab_size}."
        )
    whose = {"output": "targets", "source": "sources"}
    for side, what in whose.items():
        field, tokenizer = f"{side}_vocab_size", vocabularies_of(data)[side]
        size, own = getattr(model, field, None), tokenizer is not data.tokenizer
        if tokenizer is None:
            continue
        if own != (size is not None):
            wanted = f"another vocabulary, of {tokenizer.vocab_size}" if own else "the tokens it reads"
            raise ConfigError(f"train: the data's {what} are of {wanted}; the model has {field}={size}.")
        if size is not None and size < tokenizer.vocab_size:
            raise ConfigError(f"train: the model has {field}={size}, the data {tokenizer.vocab_size} such tokens.")


def _check_checkpoints(checkpoints: Checkpoints, mesh: "Mesh | None", measures: Mapping[str, Measure] | None) -> None:
    """Raise `ConfigError` for shards of one process, and for measures of a model that no process has."""
    if checkpoints == "whole":
        return
    if mesh is None:
        raise ConfigError(
            'train: checkpoints="shards" are written by the ranks of a mesh, and there is none. Give mesh=Mesh(dp=2) '
            '(--mesh dp=2), or checkpoints="whole".'
        )
    if measures:
        raise ConfigError(
            f'train: {", ".join(measures)} measure the whole model, which no rank has where checkpoints="shards". '
            'Give no measures (the held-out loss is told all the same), or checkpoints="whole".'
        )


@contextmanager
def _reproducible(asked: bool) -> Iterator[None]:
    """Ask for deterministic algorithms where there are others: in compiled code, on accelerators."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    if asked:
        torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def _seed(seed: int, step: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed} {step}".encode()).digest()[:7], "big")


def _facts(config: TrainConfig, data: Data, heldout: Data, device: torch.device, mesh: "Mesh | None") -> dict[str, Any]:
    return {
        "step": 0,
        "tokens": 0,
        "seconds": 0.0,
        "losses": [],
        "device": device_name(device),
        "mesh": "one process" if mesh is None else str(mesh),
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "heldout_on": ", ".join((config.evaluate or config.data).origins()),
        "texts": sorted({*_digests(data.describe()), *_digests(heldout.describe())}),
    }


def _digests(described: Any) -> Iterator[str]:
    """Yield the digests of texts in what data say of themselves, however deep."""
    for name, value in described.items():
        if name == "sha256":
            yield value
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, dict):
                yield from _digests(part)


def _warn_if_different(began: dict[str, Any], now: dict[str, Any], same_run: bool) -> None:
    for name in ("device", "mesh", "threads", "torch"):
        if began[name] != now[name]:
            warnings.warn(
                f"this run began with {name}={began[name]} and goes on with {name}={now[name]}: "
                "it will be as good, but not the same bit for bit.",
                stacklevel=3,
            )
    if same_run and began.get("texts") != now["texts"]:
        warnings.warn(
            "the text this run began with has changed: the losses before and after are not of the same text. "
            "Put the files back as they were, or begin a new run.",
            stacklevel=3,
        )


def _warn_if_apart(config: TrainConfig) -> None:
    if config.evaluate is None:
        return
    trained, measured = config.data.origins(), config.evaluate.origins()
    if apart := [name for name in measured if name not in trained]:
        warnings.warn(
            f"training is on {', '.join(trained)}, but the held-out loss is measured on {', '.join(apart)}: it says "
            "nothing of what is trained on. Set data and evaluate to the same source; config.on_text(PATH), or --data "
            "on the command line, sets both.",
            stacklevel=3,
        )
