"""Models: blocks, the language model, its state, its gradients."""

from ssmith.models.gradients import gradients, load_named, shapes
from ssmith.models.lm import HybridLM, LMOutput
from ssmith.models.state import LMState

__all__ = ["HybridLM", "LMOutput", "LMState", "gradients", "load_named", "shapes"]
