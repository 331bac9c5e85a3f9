"""Adapters: a few numbers beside a model that change its matrices, attached and taken off without a trace.

`Svf().build(model, "blocks.*.mlp.*")` is one; `with adapter.attached(model):` every pass sees the changed matrices.
`train_expert` trains one on a task, and `adapted_answers` chooses among such experts for each prompt.
"""

from glassformer.adaptation._adapter import Adapter as Adapter, AdapterConfig as AdapterConfig
from glassformer.adaptation._batches import grouped_logits as grouped_logits
from glassformer.adaptation._change import Change as Change
from glassformer.adaptation._compare import AdapterComparison as AdapterComparison, compare as compare
from glassformer.adaptation._effect import AdapterEffect as AdapterEffect, adapter_effect as adapter_effect
from glassformer.adaptation._experts import (
    Expert as Expert,
    ExpertConfig as ExpertConfig,
    ExpertStep as ExpertStep,
    ExpertTraining as ExpertTraining,
    task_of as task_of,
    train_expert as train_expert,
)
from glassformer.adaptation._folders import load_adapter as load_adapter, save_adapter as save_adapter
from glassformer.adaptation._full import FullTuning as FullTuning, Whole as Whole
from glassformer.adaptation._low_rank import CorDA as CorDA, Lora as Lora, LowRank as LowRank, MiLora as MiLora
from glassformer.adaptation._mixed import mixed as mixed
from glassformer.adaptation._peft import load_peft as load_peft, save_peft as save_peft
from glassformer.adaptation._rewards import answer_rewards as answer_rewards
from glassformer.adaptation._strategies import (
    NONE as NONE,
    AskedTask as AskedTask,
    Decision as Decision,
    FewShot as FewShot,
    Strategy as Strategy,
)
from glassformer.adaptation._svf import SingularScales as SingularScales, Svf as Svf
from glassformer.adaptation._two_passes import AdaptedAnswers as AdaptedAnswers, adapted_answers as adapted_answers
