"""Training: recipes, the loop, the run folder."""

from glassformer.training.config import TrainConfig
from glassformer.training.log import read_metrics
from glassformer.training.loop import Progress, train
from glassformer.training.optim import OptimConfig
from glassformer.training.record import RunFolder

__all__ = ["OptimConfig", "Progress", "RunFolder", "TrainConfig", "read_metrics", "train"]
