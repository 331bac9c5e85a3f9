"""One result of every class that the package defines, of tiny models: `result("Composition")`."""

import importlib
import pkgutil
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch

import explanations
import glassformer
import reports
from circuit_pairs import Compared, pair
from glassformer import adaptation, handmade
from glassformer.analysis import (
    attribution,
    behaviour,
    causal,
    circuits,
    dictionaries,
    from_weights,
    frozen,
    gradients,
    heads,
    learning,
    lens,
    paths,
    probes,
    subspaces,
    sweep,
    token_flow,
    vocabulary,
)
from glassformer.bench import attention_costs
from glassformer.data import Batch, ClosingBrackets, Counterfactuals, Pairs, WhichTask
from glassformer.data.batch import next_token_batch
from glassformer.data.pairs import Pair
from glassformer.dynamics import equivariance_table
from glassformer.handmade import induction_model, repeated
from glassformer.labelled import Result
from glassformer.models import DecoderConfig, block
from glassformer.testing.calls import right_call
from glassformer.testing.models import subject
from glassformer.trace import Add, Scale
from glassformer.training import OptimConfig, train
from glassformer.training.parallel import Mesh, plan
from results import memorisation
from tiny_runs import recipe


def classes() -> list[type[Result]]:
    """Return every public class of results in the package, by name."""
    for module in pkgutil.walk_packages(glassformer.__path__, "glassformer."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found = [kind for kind in _below(Result) if kind.__module__.startswith("glassformer.")]
    return sorted(set(found), key=lambda kind: kind.__name__)


def _below(kind: type[Result]) -> Iterator[type[Result]]:
    for inner in kind.__subclasses__():
        if not inner.__name__.startswith("_"):
            yield inner
        yield from _below(inner)


@cache
def result(name: str) -> Result:
    """Return a result of a class."""
    return MAKERS[name]()


@cache
def _small() -> Any:
    return subject("gpt2").model


@cache
def _ids() -> torch.Tensor:
    return subject("gpt2").inputs[0]


def _one_pass(analysis: Callable[..., Any], **options: Any) -> Callable[[], Any]:
    return lambda: analysis(_small(), _ids()[:1], **options)


def _weights(analysis: Callable[..., Any], **options: Any) -> Callable[[], Any]:
    return lambda: analysis(_small(), **options)


@cache
def _pair() -> Compared:
    return pair("gpt2")


def _pairs(analysis: Callable[..., Any], **options: Any) -> Callable[[], Any]:
    return lambda: analysis(*_pair().args, **options)


def _exchanges() -> Counterfactuals:
    return Counterfactuals(_ids(), (_ids() + 1) % 11, answer=1, before=2)


@cache
def _history() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        data = recipe().data.replace(length=24)  # long enough for an early and a late window
        config: Any = recipe(keep=(2, 4, 6), data=data, optim=OptimConfig(warmup=1))
        train(config, Path(folder) / "tiny")
        history = learning.read_history(Path(folder) / "tiny")
        rows = next_token_batch(torch.randint(1, 20, (6, 25), generator=torch.Generator().manual_seed(0)))
        return learning.trajectory(history, rows), learning.loss_trajectories([history], rows, draws=5)


def _meaning_shift() -> Any:
    rows = []
    for length in (7, 5):
        ids = _ids()[:1, :length]
        rows.append(Batch(ids, ids, ids > -1))
    return attribution.meaning_shift(_small(), rows[0], rows[1], (6, 3))


def _layers() -> Any:
    return subject("gpt2").model.config


def _dictionary() -> Any:
    made = dictionaries.Relu(16, 12).build().double()
    made.facts = {"site": "blocks.0.resid_post"}
    return made


def _lens_divergence() -> Any:
    batch = next_token_batch(_ids())
    return lens.lens_divergence(_small(), lens.fit_tuned_lens(_small(), [batch], steps=1), [batch, batch])


def _labels() -> Any:
    """Return three classes of positions."""
    return [torch.arange(64) // 2 % 3] * len(_ids())


def _halves() -> Any:
    return [torch.arange(64) % 3 // 2] * len(_ids())


def _answered() -> Any:
    found = [Pair("a b", "a c", "d", "e"), Pair("f (", "f )", "g", "h")]
    model = explanations.gpt()
    return causal.answered(model, Pairs(tuple(found)))


def _before_after() -> Any:
    after, before = induction_model(gamma=6.0), induction_model(gamma=6.0)
    with torch.no_grad():
        before.stack.blocks[1].attn.merge.matrix()[0].zero_()  # type: ignore[operator,union-attr]
    return causal.before_after(before, after, "L1H0", repeated(batch=2))


def _crossed() -> Any:
    cells = (["keep"], ["in", "at"], ["mind", "bay"])
    return vocabulary.crossed_trigrams(handmade.skip_trigram_model(), _RULES, *cells, context=[0])


_RULES = [[0, 1, 2, 3], [0, 1, 4, 5]]


def _sweep() -> Any:
    plan = sweep.grid(lambda layer: [Scale(f"blocks.{layer}.attn.out", 0.0)], layer=range(2))
    return sweep.sweep(_small(), _ids(), plan, sweep.logit_difference(1, 2))


def _adapter(seed: int = 0) -> Any:
    adapter = adaptation.Svf().build(_small(), "blocks.*.attn.*")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for scales in adapter.parameters():
            scales += 0.2 * torch.randn(scales.shape, generator=generator, dtype=scales.dtype)
    return adapter


def _expert_training() -> Any:
    """Return the record of an expert of brackets that was trained for two steps."""
    config = adaptation.ExpertConfig(_BRACKETS, steps=2, batch_size=2, evaluate_every=1, evaluate_prompts=2)
    return adaptation.train_expert(_answering(), config).training


@cache
def _answering() -> Any:
    """Return a decoder that reads brackets, and the question which task they are of."""
    model = DecoderConfig(len(_WHICH.symbols()), 8, (block(n_heads=2),), max_len=32).build()
    model.tokenizer = _WHICH.build().tokenizer
    return model


_BRACKETS = ClosingBrackets(n_min=1, n_max=3, n_kinds=1, heldout=0.3, tested=0.3)
_WHICH = WhichTask(parts=(_BRACKETS,))


MAKERS: dict[str, Callable[[], Any]] = {
    "Ablation": lambda: causal.ablate_each(induction_model(), repeated(batch=4)),
    "AblationTable": lambda: causal.ablation_table(_small(), _ids(), sweep.logit_difference(1, 2)),
    "Acdc": _pairs(circuits.acdc, threshold=0.001),
    "AcdcCurve": _pairs(circuits.acdc_curve, thresholds=[0.001, 0.1]),
    "ActivatingTexts": lambda: vocabulary.activating_texts(_small(), _ids(), layer=0),
    "Answered": _answered,
    "AttentionCosts": lambda: attention_costs(["linear"], lengths=[8, 16], n_heads=1, d_head=4, seconds=0.1),
    "AttentionFlow": _one_pass(token_flow.attention_flow),
    "AdapterComparison": lambda: adaptation.compare(_small(), {"one": _adapter(), "other": _adapter(1)}),
    "AdaptedAnswers": lambda: adaptation.adapted_answers(
        _answering(), {}, adaptation.AskedTask(_WHICH), ["( =", "( ( ="], max_new_tokens=2
    ),
    "AdapterEffect": lambda: adaptation.adapter_effect(_small(), _adapter()),
    "AlignmentSearch": lambda: causal.alignment_search(_small(), _exchanges(), "blocks.0.resid_post", steps=2, draws=2),
    "AttentionSinks": lambda: behaviour.attention_sinks(_small(), _ids(), window=4, first=2),
    "AverageRoutes": lambda: token_flow.average_routes(_small(), _ids()),
    "BackwardLens": lambda: gradients.backward_lens(_small(), _ids()[:1]),
    "Bandwidth": _weights(subspaces.bandwidth),
    "BeforeAfter": _before_after,
    "Bigrams": _weights(vocabulary.bigrams),
    # with this seed the noise takes something, of which there are shares
    "CausalTrace": lambda: causal.causal_trace(_small(), _ids()[:1], [1], samples=4, seed=9),
    "CircuitGraph": _weights(circuits.circuit_graph),
    "Circuits": lambda: reports.sample("hand"),
    "Composition": _weights(from_weights.composition),
    "Copying": _weights(from_weights.copying),
    "CopyingRates": _weights(from_weights.copying_rates),
    "CrossedCost": lambda: vocabulary.crossed_cost(handmade.skip_trigram_model(), _crossed(), torch.tensor(_RULES)),
    "CrossedTrigrams": _crossed,
    "DictionaryQuality": lambda: dictionaries.dictionary_quality(_dictionary(), torch.randn(20, 16)),
    "DirectLogitAttribution": _one_pass(attribution.direct_logit_attribution),
    "DoseCurve": lambda: causal.dose_curve(
        _small(),
        _ids(),
        sweep.logit_difference(1, 2),
        Add("blocks.0.resid_post", torch.ones(16, dtype=torch.float64)),
        [0.5, 1.0],
        _ids(),
        draws=2,
    ),
    "EdgeAttribution": _pairs(circuits.attribute_edges),
    "EdgeEffects": _pairs(circuits.edge_effects),
    "EffectiveMemory": lambda: behaviour.effective_memory(subject("linear").model),
    "EquivarianceTable": lambda: equivariance_table(_small(), length=4),
    "Erasers": _weights(subspaces.erasers),
    "Erasure": _one_pass(subspaces.erasure),
    "ErasureEffects": lambda: probes.erasure_effects(_small(), list(_ids()), _labels(), folds=2),
    "ExpertLoad": lambda: behaviour.expert_load(subject("experts").model, _ids(), capacity=1.0),
    "ExpertTraining": _expert_training,
    "Explanation": lambda: explanations.sample("short"),
    "FactEdit": lambda: gradients.edit_fact(_small(), _ids()[:1], 3, layer=0, size=0.5, neighbours=[[1, 2]]),
    "Faithfulness": lambda: circuits.faithfulness(*_pair().prompts, ["L0H0", "L1H0"], _pair().metric, knockouts=2),
    "FeatureEffects": lambda: dictionaries.feature_effects(_small(), _dictionary(), [next_token_batch(_ids())]),
    "FeatureExamples": lambda: dictionaries.feature_examples(_small(), _dictionary(), [_ids()]),
    "FeatureTokens": lambda: dictionaries.feature_tokens(_small(), _dictionary(), k=3),
    "FlowRoutes": _one_pass(token_flow.information_flow_routes),
    "HeadEvaluation": lambda: heads.evaluate_heads(induction_model(vocab=60, max_len=101), n_sequences=3),
    "HeadScores": _one_pass(heads.head_roles),
    "HeadsOverCorpus": lambda: heads.heads_over_corpus(induction_model(), repeated(batch=3)),
    "Importance": lambda: paths.importance(induction_model(), next_token_batch(repeated(batch=2))),
    "InContextLearning": lambda: learning.in_context_learning(
        induction_model(), next_token_batch(repeated(batch=4)), early=range(5, 10), late=30
    ),
    "InductionCircuits": _weights(from_weights.induction_circuits),
    "InputGradients": lambda: attribution.input_gradients(_small(), _ids()[:1], positions="all", steps=2),
    "JointPca": _weights(subspaces.joint_pca),
    "TokenPlane": _one_pass(subspaces.token_plane),
    "Kurtosis": _one_pass(subspaces.kurtosis),
    "Lens": _one_pass(lens.logit_lens),
    "LensDivergence": _lens_divergence,
    "LensGrid": _one_pass(lens.lens_grid),
    "LensMap": lambda: explanations.sample("short").lens_map,
    "LinearGradients": lambda: gradients.linear_gradients(_small(), _ids()[:1]),
    "Interchanged": lambda: causal.interchange(
        _small(), _exchanges(), "blocks.0.resid_post", torch.ones(16, dtype=torch.float64)
    ),
    "Linearity": lambda: frozen.linearity(_small(), _ids()[:1]),
    "LongContext": lambda: behaviour.long_context(_small(), _ids()[:1], sink=1, recent=2),
    "LossTrajectories": lambda: _history()[1],
    "MatchingTrace": _weights(from_weights.matching_trace),
    "MeaningShift": _meaning_shift,
    "MemoryInfluence": lambda: attribution.memory_influence(
        subject("memory").model, subject("memory").inputs[0][:1], positions="all"
    ),
    "NeuronEffects": _one_pass(attribution.neuron_effects),
    "NeuronShares": _one_pass(token_flow.neuron_shares, layer=0),
    "NeuronTokens": _weights(vocabulary.neuron_tokens),
    "NodeAttribution": _pairs(circuits.attribute_nodes),
    "Offsets": _one_pass(from_weights.offset_scores),
    "Overlaps": _weights(subspaces.overlaps),
    "Patched": lambda: next(iter(result("Patching").tables.values())),  # type: ignore[attr-defined]
    "Patching": lambda: causal.patch(
        _small(), (_ids(), (_ids() + 1) % 11), sweep.logit_difference(1, 2), ["z", "stream"]
    ),
    "PathExpansion": _one_pass(paths.expand_paths),
    "PathPatching": _pairs(circuits.path_patching),
    "Pattern": lambda: explanations.sample("short").patterns[0],
    "PhaseChange": lambda: learning.phase_change(_history()[0]),
    "PhraseClusters": lambda: right_call(probes.phrase_clusters, subject("gpt2"))(),
    "Plan": lambda: plan(_layers(), Mesh(dp=2), length=8),
    "PositionalHeads": _weights(from_weights.positional_heads),
    "RotationTest": lambda: subspaces.rotation_test(_small(), _ids()),
    "ScoreGeometry": _one_pass(behaviour.score_geometry, length=4),
    "QueryKeyPlane": _one_pass(behaviour.query_key_plane, head="L1H1"),
    "ScorePaths": _one_pass(paths.score_paths, head="L1H0"),
    "SenderEffects": _pairs(circuits.sender_effects),
    "ShortCircuit": memorisation,
    "SingularTokens": _weights(vocabulary.singular_tokens),
    "SkipTrigrams": _weights(vocabulary.skip_trigrams),
    "SourceEffects": _one_pass(attribution.source_effects),
    "SparseProbes": lambda: probes.sparse_probe(_small(), _ids(), _halves(), "blocks.1.resid_post", folds=2),
    "StreamDimensions": _one_pass(subspaces.stream_dimensions),
    "StreamRank": lambda: behaviour.rank_of_stream(_small(), _ids()),
    "SpliceLoss": lambda: dictionaries.splice_loss(_small(), _dictionary(), [next_token_batch(_ids())]),
    "Superposition": lambda: dictionaries.superposition(_dictionary()),
    "StructuralProbes": lambda: right_call(probes.structural_probe, subject("gpt2"))(),
    "Suppression": lambda: behaviour.suppression(_small(), next_token_batch(_ids())),
    "Sweep": _sweep,
    "TokenCircuits": _weights(vocabulary.token_circuits, token=5),
    "TokenFlow": _one_pass(token_flow.rollout),
    "TokenPairs": _weights(vocabulary.token_pairs),
    "TracesByRole": lambda: causal.average_traces([result("CausalTrace")]),  # type: ignore[list-item]
    "Trajectory": lambda: _history()[0],
    "ValueNorms": _one_pass(token_flow.value_norms),
    "Verified": lambda: result("NodeAttribution").verified(5),  # type: ignore[attr-defined]
    "VirtualCopying": lambda: paths.virtual_copying(_small(), 0, 1),
    "VirtualHeads": _one_pass(paths.virtual_heads),
    "VirtualWeights": _weights(from_weights.virtual_weights),
    "OutputGates": _one_pass(frozen.output_gates),
    "Probes": lambda: probes.probe(_small(), _ids(), _labels(), folds=2),
    "QueryKeyScales": _one_pass(frozen.query_key_scales),
    "WriteProjections": _one_pass(frozen.write_projections, directions=torch.ones(16, dtype=torch.float64)),
    "WriteShares": _one_pass(frozen.write_shares),
    "Writes": _one_pass(frozen.writes),
}
