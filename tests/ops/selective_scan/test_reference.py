"""The specification of the scan, against a recurrence in NumPy and against finite differences."""

from decimal import Decimal, localcontext
from itertools import pairwise

import numpy as np
import pytest
import torch

from ssmith.ops import selective_scan
from ssmith.ops.selective_scan.reference import phi1
from tests.tolerances import assert_close

ALL = ("u", "delta", "A", "B", "C", "D", "z", "delta_bias", "initial_state")
REQUIRED = ALL[:5]
DISCRETIZATIONS = ("euler", "zoh")


def arguments(batch, time, inner, state, names=ALL, dtype=torch.float64, documents=None):
    shapes = {
        "u": (batch, time, inner), "delta": (batch, time, inner), "A": (inner, state),
        "B": (batch, time, state), "C": (batch, time, state), "D": (inner,), "z": (batch, time, inner),
        "delta_bias": (inner,), "initial_state": (documents or batch, inner, state),
    }  # fmt: skip
    made = {name: torch.randn(shape, dtype=torch.float64) for name, shape in shapes.items()}
    made["A"] = -torch.exp(made["A"])
    return {name: made[name].to(dtype).requires_grad_() for name in names}


def numpy_scan(a, softplus=True, discretization="euler"):
    """One number at a time, from the formulas in the docstring of `selective_scan`."""
    a = {name: x.detach().double().numpy() for name, x in a.items()}
    batch, time, inner = a["u"].shape
    state = a["A"].shape[1]
    y = np.zeros((batch, time, inner))
    h = a["initial_state"].copy() if "initial_state" in a else np.zeros((batch, inner, state))
    for b, t, i in np.ndindex(batch, time, inner):
        dt = a["delta"][b, t, i] + (a["delta_bias"][i] if "delta_bias" in a else 0.0)
        dt = np.logaddexp(0.0, dt) if softplus else dt
        for n in range(state):
            x = dt * a["A"][i, n]
            weight = dt if discretization == "euler" else np.expm1(x) / a["A"][i, n]
            h[b, i, n] = np.exp(x) * h[b, i, n] + weight * a["B"][b, t, n] * a["u"][b, t, i]
            y[b, t, i] += a["C"][b, t, n] * h[b, i, n]
        y[b, t, i] += a["D"][i] * a["u"][b, t, i] if "D" in a else 0.0
        if "z" in a:
            y[b, t, i] *= a["z"][b, t, i] / (1 + np.exp(-a["z"][b, t, i]))
    return y, h


def cotangents(y, state):
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.dtype) for x in (y, state)]


def with_gradients(a, **options):
    """y, the final state and the gradient of every argument, from both results."""
    y, state = selective_scan(**a, **options)
    grads = torch.autograd.grad([y, state], list(a.values()), cotangents(y, state))
    return y, state, dict(zip(a, grads, strict=True))


@pytest.mark.parametrize("discretization", DISCRETIZATIONS)
@pytest.mark.parametrize("softplus", [True, False])
@pytest.mark.parametrize("names", [ALL, REQUIRED, (*REQUIRED, "z"), (*REQUIRED, "D", "delta_bias")])
@pytest.mark.parametrize("size", [(2, 7, 3, 5), (1, 1, 1, 1), (3, 3, 1, 16), (1, 63, 3, 1)])
def test_equals_the_recurrence_in_numpy(size, names, softplus, discretization):
    a = arguments(*size, names)
    y, state = selective_scan(**a, delta_softplus=softplus, discretization=discretization)
    assert_close((y, state), numpy_scan(a, softplus, discretization), "float64")
    assert y.dtype == state.dtype == torch.float64


@pytest.mark.parametrize("discretization", DISCRETIZATIONS)
@pytest.mark.parametrize("names, softplus", [(ALL, True), (ALL, False), (REQUIRED, True)])
def test_every_gradient_by_finite_differences(names, softplus, discretization):
    a = arguments(2, 3, 2, 2, names)
    if not softplus:  # a negative step would let the state explode, and finite differences with it
        for name in {"delta", "delta_bias"} & set(names):
            a[name] = a[name].detach().abs().requires_grad_()

    def run(*tensors):
        named = dict(zip(names, tensors, strict=True))
        return selective_scan(**named, delta_softplus=softplus, discretization=discretization)

    assert torch.autograd.gradcheck(run, tuple(a.values()), eps=1e-6, atol=1e-8, rtol=1e-6)


def test_gradients_of_documents_by_finite_differences():
    a = arguments(1, 5, 2, 2, documents=2)
    borders = torch.tensor([0, 1, 5], dtype=torch.int32)

    def run(*tensors):
        return selective_scan(**dict(zip(ALL, tensors, strict=True)), cu_seqlens=borders)

    assert torch.autograd.gradcheck(run, tuple(a.values()), eps=1e-6, atol=1e-8, rtol=1e-6)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-13), (torch.float32, 2e-6)])
def test_phi1_and_its_derivative_are_exact_for_every_magnitude(dtype, tolerance):
    magnitudes = [1e-12, 1e-8, 1e-6, 1e-4, 1e-2, 0.3, 0.4999, 0.5, 0.5001, 0.75, 1.0, 5.0, 30.0]
    x = torch.tensor([s * m for m in magnitudes for s in (-1, 1)], dtype=dtype, requires_grad=True)
    value = phi1(x)
    (derivative,) = torch.autograd.grad(value.sum(), x)
    with localcontext() as context:
        context.prec = 80
        exact = [Decimal(v) for v in x.tolist()]
        values = [float((v.exp() - 1) / v) for v in exact]
        derivatives = [float((v * v.exp() - v.exp() + 1) / v**2) for v in exact]
    np.testing.assert_allclose(value.detach().double().numpy(), values, rtol=tolerance, atol=0)
    np.testing.assert_allclose(derivative.double().numpy(), derivatives, rtol=tolerance, atol=0)


def test_phi1_at_zero_is_one_with_derivative_one_half():
    x = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    value = phi1(x)
    assert value.item() == 1.0
    assert torch.autograd.grad(value, x)[0].item() == 0.5


@pytest.mark.parametrize("backend", ["reference", "auto"])
@pytest.mark.parametrize("time", [1, 17])
@pytest.mark.parametrize("dt", [1e-4, 1e-2, 1.0])
@pytest.mark.parametrize("decay", [1e-4, 1e-2, 1.0])
def test_the_gradient_of_A_holds_in_float32_with_zoh(decay, dt, time, backend):
    """SPEC.md 1.1; all terms are positive, so that what is measured is not their cancellation."""
    found = {}
    u, B, C = torch.rand(1, time, 3) + 0.1, torch.rand(1, time, 2) + 0.1, torch.rand(1, time, 2) + 0.1
    for dtype, name in ((torch.float32, backend), (torch.float64, "reference")):
        A = torch.full((3, 2), -decay, dtype=dtype, requires_grad=True)
        delta = torch.full((1, time, 3), dt).to(dtype)
        y, _ = selective_scan(
            u.to(dtype), delta, A, B.to(dtype), C.to(dtype),
            delta_softplus=False, discretization="zoh", backend=name,
        )  # fmt: skip
        (found[dtype],) = torch.autograd.grad(y.sum(), A)
    ratio = found[torch.float32].double() / found[torch.float64]
    assert (ratio - 1).abs().max() < 1e-5


@pytest.mark.parametrize("discretization", DISCRETIZATIONS)
@pytest.mark.parametrize("cuts", [[1, 6], [3, 4], [1] * 7])
def test_the_whole_equals_its_parts_with_the_state_carried(cuts, discretization):
    a = arguments(2, 7, 3, 5)
    whole = with_gradients(a, discretization=discretization)
    state, outputs, start = a["initial_state"], [], 0
    for length in cuts:
        times = slice(start, start + length)
        part = {n: x[:, times] if n in ("u", "delta", "B", "C", "z") else x for n, x in a.items()}
        y, state = selective_scan(**{**part, "initial_state": state}, discretization=discretization)
        outputs.append(y)
        start += length
    y = torch.cat(outputs, 1)
    grads = torch.autograd.grad([y, state], list(a.values()), cotangents(y, state))
    assert_close((y, state, dict(zip(a, grads, strict=True))), whole, "float64")


@pytest.mark.parametrize("discretization", DISCRETIZATIONS)
@pytest.mark.parametrize("names", [ALL, ALL[:-1]])
def test_documents_packed_equal_documents_alone(names, discretization):
    borders = [0, 1, 4, 11]
    a = arguments(1, 11, 3, 2, names, documents=3)
    cu_seqlens = torch.tensor(borders, dtype=torch.int32)
    packed = with_gradients(a, cu_seqlens=cu_seqlens, discretization=discretization)
    outputs, states = [], []
    for i, (start, end) in enumerate(pairwise(borders)):
        alone = {n: x[:, start:end] if n in ("u", "delta", "B", "C", "z") else x for n, x in a.items()}
        if "initial_state" in a:
            alone["initial_state"] = a["initial_state"][i : i + 1]
        y, state = selective_scan(**alone, discretization=discretization)
        outputs.append(y)
        states.append(state)
    y, state = torch.cat(outputs, 1), torch.cat(states)
    grads = torch.autograd.grad([y, state], list(a.values()), cotangents(y, state))
    assert_close(packed, (y, state, dict(zip(a, grads, strict=True))), "float64")


def test_nothing_leaks_between_documents():
    a = arguments(1, 9, 3, 2, documents=3)
    cu_seqlens = torch.tensor([0, 3, 4, 9], dtype=torch.int32)
    y, state = selective_scan(**a, cu_seqlens=cu_seqlens)
    timed = ("u", "delta", "B", "C", "z")
    grads = torch.autograd.grad(y[:, 3:4].sum() + state[1].sum(), [a[n] for n in (*timed, "initial_state")])
    for grad in grads[:-1]:
        outside = torch.cat([grad[:, :3], grad[:, 4:]], 1)
        assert outside.count_nonzero() == 0
        assert grad[:, 3:4].count_nonzero() > 0
    assert grads[-1][[0, 2]].count_nonzero() == 0
    assert grads[-1][1].count_nonzero() == grads[-1][1].numel()
    with torch.no_grad():
        changed = {n: x.clone() for n, x in a.items()}
        for name in timed:
            changed[name][:, :3] += 1
        changed["initial_state"][0] += 1
        y2, state2 = selective_scan(**changed, cu_seqlens=cu_seqlens)
    assert torch.equal(y[:, 3:], y2[:, 3:])
    assert torch.equal(state[1:], state2[1:])
    assert not torch.equal(y[:, :3], y2[:, :3])


def test_rows_of_a_batch_are_independent():
    a = arguments(3, 5, 3, 2)
    y, state = selective_scan(**a)
    for row in range(3):
        alone = {
            n: x[row : row + 1] if n not in ("A", "D", "delta_bias") else x for n, x in a.items()
        }  # fmt: skip
        assert_close(selective_scan(**alone), (y[row : row + 1], state[row : row + 1]), "float64")


def test_inputs_are_not_changed_and_results_share_no_memory_with_them():
    a = arguments(2, 3, 3, 2)
    before = {n: x.detach().clone() for n, x in a.items()}
    y, state = selective_scan(**a)
    assert all(torch.equal(before[n], a[n]) for n in a)
    given = {x.untyped_storage().data_ptr() for x in a.values()}
    assert y.untyped_storage().data_ptr() not in given
    assert state.untyped_storage().data_ptr() not in given


def test_softplus_has_no_threshold_that_float64_can_see():
    a = arguments(1, 9, 1, 1, REQUIRED)
    delta = torch.tensor([-40.0, -20.1, -1.0, 0.0, 5.0, 19.9, 20.1, 36.0, 60.0], dtype=torch.float64)
    a["delta"] = delta.reshape(1, -1, 1)
    assert_close(selective_scan(**a), numpy_scan(a), "float64")
    one = {**a, "u": torch.ones_like(a["u"]), "A": torch.full_like(a["A"], -1e3)}
    one |= {"B": torch.ones_like(a["B"]), "C": torch.ones_like(a["C"])}
    y, _ = selective_scan(**one)  # the decay forgets all that went before: y is dt
    np.testing.assert_allclose(y[0, 6:, 0].detach().numpy(), np.logaddexp(0, delta[6:].numpy()), rtol=1e-15)


def test_strided_halves_need_no_copy():
    halves = torch.randn(2, 5, 6, dtype=torch.float64)
    u, z = halves.chunk(2, -1)
    a = {n: x for n, x in arguments(2, 5, 3, 2).items() if n not in ("u", "z")}
    strided = selective_scan(u=u, z=z, **a)
    assert_close(strided, selective_scan(u=u.contiguous(), z=z.contiguous(), **a), "float64")
    assert_close(strided, numpy_scan({"u": u, "z": z, **a}), "float64")


def test_bfloat16_inputs_give_bfloat16_outputs_and_a_float32_state():
    a = arguments(2, 33, 3, 5, dtype=torch.bfloat16)
    y, state = selective_scan(**a)
    assert (y.dtype, state.dtype) == (torch.bfloat16, torch.float32)
    expected_y, expected_state = numpy_scan(a)
    assert_close(y, expected_y, "bfloat16")
    assert_close(state, expected_state, "float32")  # nothing on the way is rounded to bfloat16


def test_activations_in_bfloat16_with_parameters_in_float32():
    half = arguments(2, 9, 3, 5, ("u", "delta", "B", "C", "z"), torch.bfloat16)
    single = arguments(2, 9, 3, 5, ("A", "D", "delta_bias"), torch.float32)
    y, state, grads = with_gradients({**half, **single})
    assert (y.dtype, state.dtype) == (torch.bfloat16, torch.float32)
    assert all(g.dtype == (half | single)[n].dtype for n, g in grads.items())
    assert_close(state, numpy_scan(half | single)[1], "float32")


def test_one_float64_argument_makes_the_state_float64():
    a = arguments(1, 3, 3, 2, REQUIRED, torch.float32)
    _, state = selective_scan(**{**a, "A": a["A"].double()})
    assert state.dtype == torch.float64
