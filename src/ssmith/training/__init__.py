"""Training: the loop, the optimizer, the schedule, what is recorded and shown."""

from ssmith.training.loop import TrainReport, train

__all__ = ["TrainReport", "train"]
