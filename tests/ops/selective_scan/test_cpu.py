"""The CPU kernels of selective_scan against the float64 reference: values, gradients, options, same bits."""

import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
import torch

from ssmith.ops.selective_scan import cpu
from ssmith.ops.selective_scan.cpu import selective_scan_cpu
from ssmith.ops.selective_scan.reference import selective_scan_reference
from tests.tolerances import assert_close

TENSORS = ("u", "delta", "A", "B", "C", "D", "z", "delta_bias", "initial_state")
OPTIONAL = ("D", "z", "delta_bias", "initial_state")
EVERYTHING = {"delta_softplus": True, "cu_seqlens": None, "discretization": "euler"}


def make(batch, time, inner, state_size, *, without=(), documents=None, positive_delta=False):
    """Random inputs with decays from strong to weak; `without` names optional tensors to leave out."""
    sequences = batch if documents is None else len(documents) - 1
    x = {
        "u": torch.randn(batch, time, inner),
        "delta": torch.randn(batch, time, inner) * 0.5,
        "A": -torch.exp(torch.randn(inner, state_size)),
        "B": torch.randn(batch, time, state_size),
        "C": torch.randn(batch, time, state_size),
        "D": torch.randn(inner),
        "z": torch.randn(batch, time, inner),
        "delta_bias": torch.randn(inner) - 3.0,
        "initial_state": torch.randn(sequences, inner, state_size),
    }
    if positive_delta:
        x |= {"delta": torch.rand(batch, time, inner) * 0.1, "delta_bias": torch.rand(inner) * 0.1}
    return {name: None if name in without else value for name, value in x.items()}


def run(scan, x, options, dtype=torch.float32):
    y, state = scan(*(_cast(x[n], dtype) for n in TENSORS[:8]),
                    initial_state=_cast(x["initial_state"], dtype), **options)  # fmt: skip
    return {"y": y, "state": state}


def run_with_gradients(scan, x, options, dtype=torch.float32, *, weights=None):
    """Results, and the gradients of <y, weight> + <state, weight>; a weight of None leaves its term out."""
    x = {n: None if t is None else _cast(t, dtype).detach().requires_grad_() for n, t in x.items()}
    out = run(scan, x, options, dtype)
    weights = (
        {k: torch.randn_like(v, dtype=torch.float32) for k, v in out.items()} if weights is None else weights
    )
    loss = sum((out[k] * w.to(dtype)).sum() for k, w in weights.items() if w is not None)
    names = [n for n, t in x.items() if t is not None]
    gradients = torch.autograd.grad(loss, [x[n] for n in names], allow_unused=True)
    zeros = (torch.zeros_like(x[n]) if g is None else g for n, g in zip(names, gradients, strict=True))
    return {k: v.detach() for k, v in out.items()} | {f"d{n}": g for n, g in zip(names, zeros, strict=True)}


def check(x, options=None, **weights):
    """Kernel against reference, in the largest error and in the norm of the error."""
    options = EVERYTHING | (options or {})
    torch.manual_seed(1)
    actual = run_with_gradients(selective_scan_cpu, x, options, weights=weights or None)
    torch.manual_seed(1)
    expected = run_with_gradients(
        selective_scan_reference, x, options, torch.float64, weights=weights or None
    )
    for name, e in expected.items():
        assert_close(actual[name], e, "float32", name)
        error = (actual[name].double() - e).norm() / e.norm().clamp_min(1e-30)
        assert error < 1e-6, f"{name}: {error:.2g}"
    return actual


def _cast(tensor, dtype):
    return None if tensor is None else tensor.to(dtype)


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


def assert_same_bits(a, b):
    assert list(a) == list(b)
    for name in a:
        assert torch.equal(a[name], b[name]), name


@pytest.fixture
def threads():
    """torch.set_num_threads, undone afterwards."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("discretization", ["euler", "zoh"])
@pytest.mark.parametrize(
    "shape",
    [
        (1, 1, 1, 1), (2, 2, 7, 4), (3, 3, 16, 16), (1, 15, 96, 4), (1, 16, 130, 1), (2, 17, 64, 3),
        (2, 63, 7, 16), (1, 64, 200, 4), (2, 65, 96, 16), (1, 33, 5, 64),
    ],
)  # fmt: skip
def test_values_and_gradients_against_float64(shape, discretization):
    torch.manual_seed(sum(shape))
    check(make(*shape), {"discretization": discretization})


def test_a_long_wide_scan_against_float64():
    check(make(1, 1000, 1536, 2))


@pytest.mark.parametrize("discretization", ["euler", "zoh"])
@pytest.mark.parametrize("without", [(), *((name,) for name in OPTIONAL), OPTIONAL])
def test_what_is_optional(without, discretization):
    check(make(2, 20, 21, 4, without=without), {"discretization": discretization})


@pytest.mark.parametrize("without", [(), OPTIONAL])
@pytest.mark.parametrize("discretization", ["euler", "zoh"])
def test_delta_without_softplus(without, discretization):
    options = {"delta_softplus": False, "discretization": discretization}
    check(make(2, 20, 21, 4, without=without, positive_delta=True), options)


def test_gradient_from_one_result_only():
    x = make(2, 20, 21, 4)
    check(x, y=torch.randn(2, 20, 21), state=None)
    check(x, y=None, state=torch.randn(2, 21, 4))


@pytest.mark.parametrize("size", [1e-4, 1e-2])
def test_gradient_of_A_with_zoh_and_tiny_steps(size):
    x = make(1, 8, 40, 16, without=("delta_bias",), positive_delta=True)
    x["delta"] = size * (1 + torch.rand(1, 8, 40))
    x["A"] = -size * (1 + torch.rand(40, 16))
    options = EVERYTHING | {"delta_softplus": False, "discretization": "zoh"}
    weights = {"y": torch.randn(1, 8, 40), "state": torch.randn(1, 40, 16)}
    actual = run_with_gradients(selective_scan_cpu, x, options, weights=weights)
    expected = run_with_gradients(selective_scan_reference, x, options, torch.float64, weights=weights)
    assert_close(actual, expected, "float32 gradient of A")


@pytest.mark.parametrize("discretization", ["euler", "zoh"])
def test_strong_decay_stays_finite_and_right(discretization):
    x = make(1, 40, 70, 4)
    x["delta"][:, 3:6] = 50.0
    x["delta"][:, 9] = -60.0
    x["A"][:, 1] = -4.0
    x["A"][:, 2] = -1e4
    x["z"][:, 7], x["z"][:, 8] = 200.0, -200.0
    check(x, {"discretization": discretization})


@pytest.mark.parametrize("discretization", ["euler", "zoh"])
def test_decays_that_grow_and_that_are_zero(discretization):
    x = make(1, 12, 20, 4, positive_delta=True)
    x["A"][:, 0], x["A"][:, 1] = 0.0, 1.5
    check(x, {"delta_softplus": False, "discretization": discretization})


@pytest.mark.parametrize("discretization", ["euler", "zoh"])
def test_documents_against_float64(discretization):
    borders = (0, 1, 3, 19, 35, 36, 90)
    check(
        make(1, 90, 70, 4, documents=borders),
        {"discretization": discretization, "cu_seqlens": int32(*borders)},
    )


def test_documents_are_exactly_what_they_are_alone():
    borders = (0, 1, 17, 33, 83)
    x = make(1, 83, 150, 4, documents=borders)
    weights = {"y": torch.randn(1, 83, 150), "state": torch.randn(4, 150, 4)}
    options = EVERYTHING | {"cu_seqlens": int32(*borders)}
    packed = run_with_gradients(selective_scan_cpu, x, options, weights=weights)
    for i, (a, b) in enumerate(pairwise(borders)):
        cut = {n: t[:, a:b] if n in ("u", "delta", "B", "C", "z") else t for n, t in x.items()}
        cut["initial_state"] = x["initial_state"][i : i + 1]
        own = {"y": weights["y"][:, a:b], "state": weights["state"][i : i + 1]}
        alone = run_with_gradients(selective_scan_cpu, cut, EVERYTHING, weights=own)
        for name in ("y", "du", "ddelta", "dB", "dC", "dz"):
            assert torch.equal(packed[name][:, a:b], alone[name]), name
        for name in ("state", "dinitial_state"):
            assert torch.equal(packed[name][i : i + 1], alone[name]), name


def test_carried_state_equals_the_whole():
    x = make(2, 50, 20, 4)
    whole = run(selective_scan_cpu, x, EVERYTHING)
    state, parts = x["initial_state"], []
    for piece in (slice(0, 1), slice(1, 20), slice(20, 50)):
        cut = {n: t[:, piece] if n in ("u", "delta", "B", "C", "z") else t for n, t in x.items()}
        out = run(selective_scan_cpu, cut | {"initial_state": state}, EVERYTHING)
        parts.append(out["y"])
        state = out["state"]
    assert_close({"y": torch.cat(parts, 1), "state": state}, whole, "float32")


def test_slices_of_wider_rows_are_not_copied():
    x = make(2, 20, 24, 4)
    wide = torch.cat([x["u"], x["z"]], -1)
    narrow = torch.cat([x["delta"][..., :5], x["B"], x["C"]], -1)
    sliced = x | {"u": wide[..., :24], "z": wide[..., 24:], "B": narrow[..., 5:9], "C": narrow[..., 9:]}
    for name in ("u", "z", "B", "C"):
        assert cpu.as_rows(sliced[name]) is sliced[name], name
    assert_same_bits(run(selective_scan_cpu, sliced, EVERYTHING), run(selective_scan_cpu, x, EVERYTHING))


@pytest.mark.parametrize("shape", [(2, 20, 24, 4), (2, 1, 24, 4), (1, 20, 1, 1)])
def test_any_memory_layout_gives_the_same_bits(shape):
    x = make(*shape)
    torch.manual_seed(1)
    expected = run_with_gradients(selective_scan_cpu, x, EVERYTHING)
    strided = {n: t.transpose(0, -1).contiguous().transpose(0, -1) for n, t in x.items()}
    torch.manual_seed(1)
    assert_same_bits(run_with_gradients(selective_scan_cpu, strided, EVERYTHING), expected)
    every_other = {n: torch.stack([t, t], 1).flatten(0, 1)[::2] for n, t in x.items()}
    torch.manual_seed(1)
    assert_same_bits(run_with_gradients(selective_scan_cpu, every_other, EVERYTHING), expected)


def test_incoming_gradients_in_any_layout():
    x = {n: t.requires_grad_() for n, t in make(2, 20, 24, 4).items()}
    out = run(selective_scan_cpu, x, EVERYTHING)
    dy, dstate = torch.randn(24, 20, 2).transpose(0, 2), torch.randn(1).expand(2, 24, 4)
    for a, b in zip(
        torch.autograd.grad(tuple(out.values()), tuple(x.values()), (dy, dstate), retain_graph=True),
        torch.autograd.grad(tuple(out.values()), tuple(x.values()), (dy.contiguous(), dstate.contiguous())),
        strict=True,
    ):
        assert torch.equal(a, b)


def test_gradients_that_nobody_needs_are_not_given():
    x = make(1, 5, 3, 2)
    x["A"].requires_grad_()
    y, _ = selective_scan_cpu(*(x[n] for n in TENSORS[:8]), initial_state=x["initial_state"], **EVERYTHING)
    y.sum().backward()
    assert x["A"].grad is not None
    assert all(t.grad is None for n, t in x.items() if n != "A")


@pytest.mark.parametrize("shape, borders", [((3, 70, 300, 4), None), ((1, 90, 300, 4), (0, 5, 60, 61, 90))])
def test_the_same_bits_for_any_number_of_threads(threads, shape, borders):
    options = EVERYTHING | {"cu_seqlens": None if borders is None else int32(*borders)}
    x = make(*shape, documents=borders)
    results = []
    for count in (1, 2, 5):
        threads(count)
        torch.manual_seed(1)
        results.append(run_with_gradients(selective_scan_cpu, x, options))
    assert_same_bits(results[0], results[1])
    assert_same_bits(results[0], results[2])


def test_several_python_threads_at_once(threads):
    threads(2)
    inputs = [make(2, 40, 200, 4) for _ in range(4)]
    ones = {"y": torch.ones(2, 40, 200), "state": torch.ones(2, 200, 4)}

    def call(x):
        return run_with_gradients(selective_scan_cpu, x, EVERYTHING, weights=ones)

    expected = [call(x) for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            for a, b in zip(pool.map(call, inputs), expected, strict=True):
                assert_same_bits(a, b)


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_computes_the_same(threads):
    threads(2)
    x = make(2, 40, 300, 4)
    expected = run(selective_scan_cpu, x, EVERYTHING)["y"]
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=lambda: queue.put(run(selective_scan_cpu, x, EVERYTHING)["y"].numpy()))
    child.start()
    actual = torch.from_numpy(queue.get())
    child.join(30)
    assert child.exitcode == 0
    assert torch.equal(actual, expected)


@pytest.mark.parametrize("discretization", ["euler", "zoh"])
@pytest.mark.parametrize("name", TENSORS)
def test_nan_goes_through(name, discretization):
    x = make(1, 20, 70, 4)
    x[name].view(-1)[0] = float("nan")
    out = run_with_gradients(selective_scan_cpu, x, EVERYTHING | {"discretization": discretization})
    assert out["y"][0, 0, 0].isnan()
    untouched = slice(1, None) if name not in ("B", "C") else slice(0)
    assert out["y"][..., untouched].isfinite().all()
    assert out["du"][0, 0, 0].isnan() or name in ("u", "D", "initial_state")


def test_nan_in_the_incoming_gradient_goes_through():
    x = make(1, 20, 70, 4)
    dy = torch.randn(1, 20, 70)
    dy[0, 5, 0] = float("nan")
    out = run_with_gradients(selective_scan_cpu, x, EVERYTHING, weights={"y": dy, "state": None})
    assert out["du"][0, :6, 0].isnan().all()
    assert out["dA"][0].isnan().all()
    assert out["dB"][0, :6].isnan().all()
    assert out["du"][0, 6:].isfinite().all()
    assert out["du"][..., 1:].isfinite().all()


def test_without_gradient_no_states_are_kept():
    x = make(1, 40, 8, 4)
    inputs = [x[n] for n in TENSORS]
    assert cpu._forward(*inputs, None, True, False, False)[2].numel() == 0
    kept = cpu._forward(*inputs, None, True, False, True)[2]
    assert kept.shape[0] <= 40 // 16 + 1


@pytest.mark.parametrize("documents", [None, (0, 1, 20)])
@pytest.mark.parametrize("without", [(), OPTIONAL])
def test_opcheck(without, documents):
    x = make(2 if documents is None else 1, 20, 12, 4, without=without, documents=documents)
    inputs = [None if x[n] is None else x[n].requires_grad_() for n in TENSORS]
    borders = None if documents is None else int32(*documents)
    torch.library.opcheck(cpu._forward, (*inputs, borders, True, False, True))
    y, state, kept = (t.detach() for t in cpu._forward(*inputs, borders, True, False, True))
    plain = [None if t is None else t.detach() for t in inputs[:8]]
    incoming = torch.randn_like(y), None if without else torch.randn_like(state)
    torch.library.opcheck(cpu._backward, (*incoming, *plain, borders, kept, True, False))


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_equals_eager(dynamic):
    x = make(2, 20, 12, 4)

    def scan(*args, **kwargs):
        y, state = selective_scan_cpu(*args, **kwargs)
        return y * 2.0, state

    compiled = torch.compile(scan, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for options in ({}, {"discretization": "zoh"}):
        torch.manual_seed(1)
        eager = run_with_gradients(scan, x, EVERYTHING | options)
        torch.manual_seed(1)
        assert_same_bits(run_with_gradients(compiled, x, EVERYTHING | options), eager)
    torch.compiler.reset()
