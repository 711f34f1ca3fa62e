"""How good a model is."""

from ssmith.eval.perplexity import EvalReport, evaluate

__all__ = ["EvalReport", "evaluate"]
