"""Functions on tensors: the operators of the model family, each with a reference beside its kernels."""

from ssmith.ops.causal_conv1d import causal_conv1d
from ssmith.ops.linear_cross_entropy import linear_cross_entropy
from ssmith.ops.rms_norm import rms_norm
from ssmith.ops.selective_scan import selective_scan

__all__ = ["causal_conv1d", "linear_cross_entropy", "rms_norm", "selective_scan"]
