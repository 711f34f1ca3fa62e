from itertools import pairwise

import numpy as np
import pytest
import torch

from ssmith.ops import causal_conv1d
from tests.tolerances import assert_close

ALL = ("x", "weight", "bias", "initial_state")


def arguments(batch, time, channels, kernel, names=ALL, dtype=torch.float64, documents=None):
    shapes = {
        "x": (batch, time, channels), "weight": (channels, kernel), "bias": (channels,),
        "initial_state": (documents or batch, channels, kernel - 1),
    }  # fmt: skip
    return {n: torch.randn(shapes[n], dtype=torch.float64).to(dtype).requires_grad_() for n in names}


def numpy_conv(a, activation=None):
    """From the sum in the docstring, one number at a time."""
    a = {n: t.detach().double().numpy() for n, t in a.items()}
    batch, time, channels = a["x"].shape
    kernel = a["weight"].shape[1]
    past = a.get("initial_state", np.zeros((batch, channels, kernel - 1)))
    y = np.zeros((batch, time, channels))
    everything = np.concatenate([past, a["x"].transpose(0, 2, 1)], 2)
    for b, t, c in np.ndindex(y.shape):
        y[b, t, c] = sum(a["weight"][c, k] * everything[b, c, t + k] for k in range(kernel))
        y[b, t, c] += a["bias"][c] if "bias" in a else 0.0
    if activation == "silu":
        y = y / (1 + np.exp(-y))
    return y, everything[:, :, time:]


def cotangents(y, state):
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(t.shape, generator=generator, dtype=torch.float64) for t in (y, state)]


@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("names", [ALL, ("x", "weight"), ("x", "weight", "bias")])
@pytest.mark.parametrize("size", [(2, 7, 3, 4), (1, 1, 1, 1), (3, 1, 3, 4), (1, 63, 1, 2), (2, 3, 3, 7)])
def test_equals_the_sum_in_numpy(size, names, activation):
    a = arguments(*size, names)
    assert_close(causal_conv1d(**a, activation=activation), numpy_conv(a, activation), "float64")


def test_the_last_tap_is_the_current_token_as_in_pytorch():
    a = arguments(2, 9, 3, 4, ("x", "weight", "bias"))
    padded = torch.nn.functional.pad(a["x"].transpose(1, 2), (3, 0))
    expected = torch.nn.functional.conv1d(padded, a["weight"][:, None], a["bias"], groups=3)
    assert_close(causal_conv1d(**a)[0], expected.transpose(1, 2), "float64")


@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("names", [ALL, ("x", "weight")])
@pytest.mark.parametrize("borders", [None, (0, 1, 5)])
def test_every_gradient_by_finite_differences(names, activation, borders):
    batch = 2 if borders is None else 1
    a = arguments(batch, 5, 2, 3, names, documents=2)
    cu_seqlens = None if borders is None else torch.tensor(borders, dtype=torch.int32)

    def run(*tensors):
        named = dict(zip(names, tensors, strict=True))
        return causal_conv1d(**named, activation=activation, cu_seqlens=cu_seqlens)

    assert torch.autograd.gradcheck(run, tuple(a.values()), eps=1e-6, atol=1e-8, rtol=1e-6)


@pytest.mark.parametrize("cuts", [[1, 6], [5, 2], [1] * 7])
def test_the_whole_equals_its_parts_with_the_state_carried(cuts):
    a = arguments(2, 7, 3, 4)
    y, state = causal_conv1d(**a, activation="silu")
    expected = torch.autograd.grad([y, state], list(a.values()), cotangents(y, state))
    parts, carried = [], a["initial_state"]
    for x in a["x"].split(cuts, 1):
        part, carried = causal_conv1d(
            x, a["weight"], a["bias"], activation="silu", initial_state=carried
        )  # fmt: skip
        parts.append(part)
    found = torch.autograd.grad([torch.cat(parts, 1), carried], list(a.values()), cotangents(y, state))
    assert_close((torch.cat(parts, 1), carried, found), (y, state, expected), "float64")


@pytest.mark.parametrize("names", [ALL, ("x", "weight", "bias")])
def test_documents_packed_equal_documents_alone(names):
    borders = [0, 1, 3, 11]  # two are shorter than the kernel
    a = arguments(1, 11, 3, 4, names, documents=3)
    y, state = causal_conv1d(**a, cu_seqlens=torch.tensor(borders, dtype=torch.int32))
    grads = torch.autograd.grad([y, state], list(a.values()), cotangents(y, state))
    outputs, states = [], []
    for i, (start, end) in enumerate(pairwise(borders)):
        alone = {**a, "x": a["x"][:, start:end]}
        if "initial_state" in a:
            alone["initial_state"] = a["initial_state"][i : i + 1]
        part, after = causal_conv1d(**alone)
        outputs.append(part)
        states.append(after)
    expected = torch.cat(outputs, 1), torch.cat(states)
    expected_grads = torch.autograd.grad(expected, list(a.values()), cotangents(y, state))
    assert_close((y, state, grads), (*expected, expected_grads), "float64")


def test_nothing_leaks_between_documents():
    a = arguments(1, 6, 3, 4, documents=2)
    y, state = causal_conv1d(**a, cu_seqlens=torch.tensor([0, 2, 6], dtype=torch.int32))
    d_x, d_before = torch.autograd.grad(y[:, 2:].sum() + state[1].sum(), [a["x"], a["initial_state"]])
    assert d_x[:, :2].count_nonzero() == 0
    assert d_before[0].count_nonzero() == 0
    assert d_x[:, 2:].count_nonzero() == 12
    assert d_before[1].count_nonzero() == 9


def test_the_state_is_a_copy_of_the_last_inputs():
    a = arguments(2, 5, 3, 4)
    _, state = causal_conv1d(**a)
    assert torch.equal(state, a["x"][:, -3:].transpose(1, 2))
    with torch.no_grad():
        before = state.clone()
        a["x"].zero_()
    assert torch.equal(state, before)


def test_bfloat16_sums_in_float32():
    a = arguments(2, 33, 3, 4, dtype=torch.bfloat16)
    y, state = causal_conv1d(**a, activation="silu")
    assert y.dtype == state.dtype == torch.bfloat16
    expected, after = numpy_conv(a, "silu")
    correctly_rounded = torch.from_numpy(expected).float().bfloat16()
    assert torch.equal(y, correctly_rounded)
    assert_close(state, after, "float64")


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("names", [ALL, ("x", "weight")])
@pytest.mark.parametrize(
    "size, borders",
    [
        ((2, 7, 63, 4), None),
        ((1, 1, 1, 1), None),
        ((3, 1, 17, 4), None),
        ((2, 3, 3, 9), None),
        ((1, 33, 65, 2), (0, 1, 3, 33)),
    ],
)
def test_float32_against_float64(size, borders, names, activation, backend):
    """Values, states and every gradient; x is one half of wider rows, as in a block."""
    options = {"activation": activation}
    if borders is not None:
        options["cu_seqlens"] = torch.tensor(borders, dtype=torch.int32)
    wide = arguments(*size, names, documents=3 if borders else None)
    narrow = {n: x.detach().float().requires_grad_() for n, x in wide.items()}
    results = []
    for a, name in ((narrow, backend), (wide, "reference")):
        x = torch.cat([a["x"], a["x"]], -1).chunk(2, -1)[1]
        out = causal_conv1d(**{**a, "x": x}, **options, backend=name)
        upstream = [t.to(o) for t, o in zip(cotangents(*out), out, strict=True)]
        results.append((*out, torch.autograd.grad(out, list(a.values()), upstream)))
    assert results[0][0].dtype == results[0][1].dtype == torch.float32
    assert_close(results[0], results[1], "float32")


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"x": torch.ones(4, 3)}, r"x must be \(B, T, C\) and weight \(C, K\), got \(4, 3\) and \(3, 4\)"),
        ({"weight": torch.ones(3, 1, 4)}, r"x must be .* got \(2, 5, 3\) and \(3, 1, 4\)"),
        ({"x": torch.ones(2, 0, 3)}, r"x and weight must not be empty, got \(2, 0, 3\), \(3, 4\)"),
        ({"weight": torch.ones(4, 3)}, r"weight must be \(C, K\) = \(3, 3\), got \(4, 3\)"),
        ({"bias": torch.ones(1)}, r"bias must be \(C,\) = \(3,\), got \(1,\)"),
        ({"initial_state": torch.ones(2, 3, 4)}, r"initial_state must be .* = \(2, 3, 3\), got \(2, 3, 4\)"),
        ({"activation": "relu"}, r"unknown activation 'relu'; choose None or 'silu'"),
        ({"backend": "gpu"}, r"unknown backend 'gpu'"),
        ({"cu_seqlens": torch.tensor([0, 5], dtype=torch.int32)}, r"with cu_seqlens the batch size"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(changes, message):
    fits = {"x": torch.ones(2, 5, 3), "weight": torch.ones(3, 4)}
    with pytest.raises(ValueError, match=f"^causal_conv1d: {message}"):
        causal_conv1d(**{**fits, **changes})


def test_integers_are_refused():
    with pytest.raises(TypeError, match=r"^causal_conv1d: x must be floating point, got torch.int64"):
        causal_conv1d(torch.ones(2, 5, 3, dtype=torch.int64), torch.ones(3, 4))
