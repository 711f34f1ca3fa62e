"""The operators under torch.compile, in one graph."""

import pytest
import torch

from ssmith.ops import causal_conv1d, linear_cross_entropy, rms_norm, selective_scan
from tests.tolerances import assert_close

# Dynamo itself instantiates autograd functions and looks at .grad of what it traces.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*should not be instantiated.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]


@pytest.fixture(autouse=True)
def _no_graph_from_before():
    torch._dynamo.reset()


def scan(x):
    A = -torch.arange(1.0, 7.0, dtype=x.dtype).reshape(3, 2)
    y, state = selective_scan(x, x, A, x[..., :2], x[..., 1:], torch.ones(3, dtype=x.dtype), x)
    return y.sum() + state.square().sum()


def convolution(x):
    y, state = causal_conv1d(x, torch.arange(12.0, dtype=x.dtype).reshape(3, 4), activation="silu")
    return y.sum() + state.square().sum()


def norm(x):
    return rms_norm(x, torch.arange(3.0, dtype=x.dtype), z=x).sum()


def loss(x, reduction):
    weight = torch.arange(33.0, dtype=x.dtype).sin().reshape(11, 3)
    targets = torch.arange(6).reshape(2, 3)
    return linear_cross_entropy(x, weight, targets, reduction=reduction, label_smoothing=0.1).sum()


def mean_loss(x):
    return loss(x, "mean")


def token_losses(x):
    return loss(x, "none")


@pytest.mark.parametrize(
    "function, dtype",
    [
        *((f, torch.float32) for f in (scan, convolution, norm, mean_loss, token_losses)),
        (scan, torch.float64),  # the reference, which has no operator of its own to hide in
    ],
)
def test_compiled_in_one_graph_equals_eager(function, dtype):
    x = torch.randn(2, 3, 3, dtype=dtype, requires_grad=True)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    expected, found = function(x), compiled(x)
    kind = "float64" if dtype == torch.float64 else "float32"
    assert_close(found, expected, kind)
    assert_close(torch.autograd.grad(found, x)[0], torch.autograd.grad(expected, x)[0], kind)
