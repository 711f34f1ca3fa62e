from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from ssmith.ops import linear_cross_entropy
from ssmith.ops.linear_cross_entropy import chunked
from tests.tolerances import assert_close

V, D, T = 7, 3, 63  # 63 tokens are four chunks of at most 16 when chunks are as small as they get


@pytest.fixture(params=["one chunk", "four chunks"])
def _chunks(request, monkeypatch):
    if request.param == "four chunks":
        monkeypatch.setattr(chunked, "LOGITS_PER_CHUNK", 1)


@pytest.fixture
def _four_chunks(monkeypatch):
    monkeypatch.setattr(chunked, "LOGITS_PER_CHUNK", 1)


def tensors(dtype=torch.float64, vocabulary=V):
    made = {
        "hidden": torch.randn(T, D, dtype=torch.float64),
        "weight": torch.randn(vocabulary, D, dtype=torch.float64),
        "bias": torch.randn(vocabulary, dtype=torch.float64),
    }
    return {name: x.to(dtype).requires_grad_() for name, x in made.items()}


def some_targets(ignored=-100):
    targets = torch.randint(0, V, (T,))
    targets[::5] = ignored
    return targets


def plain(a, targets, token_weights=None, reduction="mean", label_smoothing=0.0, z_loss=0.0, ignored=-100):
    """With torch.nn.functional.cross_entropy and all logits at once."""
    logits = F.linear(a["hidden"], a["weight"], a.get("bias"))
    losses = F.cross_entropy(
        logits, targets, reduction="none", label_smoothing=label_smoothing, ignore_index=ignored
    )
    counted = (targets != ignored).to(losses)
    losses = losses + counted * z_loss * logits.exp().sum(-1).log() ** 2
    weights = counted if token_weights is None else counted * token_weights
    if reduction == "none":
        return losses * weights
    return (losses * weights).sum() / (weights.sum() if reduction == "mean" else 1)


@pytest.mark.usefixtures("_chunks")
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("label_smoothing, z_loss", [(0.0, 0.0), (0.3, 0.0), (0.0, 0.2), (0.1, 0.05)])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_value_and_gradients_equal_torchs(reduction, label_smoothing, z_loss, with_bias, weighted):
    a = tensors()
    if not with_bias:
        del a["bias"]
    targets = some_targets()
    options = {"reduction": reduction, "label_smoothing": label_smoothing, "z_loss": z_loss}
    options["token_weights"] = torch.rand(T, dtype=torch.float64) if weighted else None
    found, expected = linear_cross_entropy(**a, targets=targets, **options), plain(a, targets, **options)
    upstream = torch.randn(found.shape, dtype=torch.float64)
    assert_close(found, expected, "float64")
    assert_close(
        torch.autograd.grad(found, list(a.values()), upstream),
        torch.autograd.grad(expected, list(a.values()), upstream),
        "float64",
    )


@pytest.mark.usefixtures("_four_chunks")
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_gradients_by_finite_differences(reduction):
    hidden = torch.randn(19, 2, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(3, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, 3, (19,))
    targets[4] = -100

    def run(hidden, weight, bias):
        return linear_cross_entropy(
            hidden, weight, targets, bias=bias, reduction=reduction, label_smoothing=0.1, z_loss=0.1
        )

    assert torch.autograd.gradcheck(run, (hidden, weight, bias), eps=1e-6, atol=1e-8, rtol=1e-6)


def test_another_ignore_index_and_int32_targets():
    a = tensors()
    targets = some_targets(ignored=2)
    found = linear_cross_entropy(**a, targets=targets.int(), ignore_index=2)
    assert_close(found, plain(a, targets, ignored=2), "float64")


def test_leading_dimensions_are_kept():
    a = tensors()
    targets = some_targets()
    expected = linear_cross_entropy(**a, targets=targets, reduction="none")
    shaped = {**a, "hidden": a["hidden"].reshape(3, 7, 3, D)}
    found = linear_cross_entropy(**shaped, targets=targets.reshape(3, 7, 3), reduction="none")
    assert found.shape == (3, 7, 3)
    assert torch.equal(found.flatten(), expected)


def test_ignored_tokens_have_zero_loss_and_no_gradient():
    a = tensors()
    targets = some_targets()
    losses = linear_cross_entropy(**a, targets=targets, reduction="none", z_loss=0.1)
    assert losses[::5].count_nonzero() == 0
    assert losses[targets != -100].count_nonzero() == (targets != -100).sum()
    loss = linear_cross_entropy(**a, targets=targets, label_smoothing=0.1)
    (grad,) = torch.autograd.grad(loss, a["hidden"])
    assert grad[::5].count_nonzero() == 0


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_a_loss_that_is_not_finite_at_an_ignored_token_does_not_count_as_in_torch(reduction):
    a = tensors()
    targets = some_targets()
    with torch.no_grad():
        a["hidden"][0] = float("inf")
        expected = F.cross_entropy(
            F.linear(a["hidden"], a["weight"], a["bias"]), targets, reduction=reduction
        )
        assert_close(linear_cross_entropy(**a, targets=targets, reduction=reduction), expected, "float64")


def test_a_mean_over_no_token_is_nan_as_in_torch():
    a = tensors()
    assert linear_cross_entropy(**a, targets=torch.full((T,), -100)).isnan()


def test_a_mean_over_an_empty_batch_is_nan_as_in_torch():
    a = tensors()
    a["hidden"] = a["hidden"][:0]
    assert linear_cross_entropy(**a, targets=torch.empty(0, dtype=torch.long)).isnan()


@pytest.mark.usefixtures("_chunks")
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("wanted", [("hidden",), ("weight",), ("bias",), ("hidden", "bias")])
def test_gradients_for_some_arguments_only(reduction, wanted):
    a = tensors()
    targets = some_targets()
    expected = torch.autograd.grad(plain(a, targets, reduction=reduction).sum(), [a[n] for n in wanted])
    for name in set(a) - set(wanted):
        a[name] = a[name].detach()
    loss = linear_cross_entropy(**a, targets=targets, reduction=reduction)
    assert_close(torch.autograd.grad(loss.sum(), [a[n] for n in wanted]), expected, "float64")


def test_the_upstream_gradient_scales_and_backward_can_run_twice():
    a = tensors()
    loss = linear_cross_entropy(**a, targets=some_targets())
    once = torch.autograd.grad(loss, list(a.values()), retain_graph=True)
    scaled = torch.autograd.grad(loss, list(a.values()), torch.tensor(-2.5).double(), retain_graph=True)
    again = torch.autograd.grad(loss, list(a.values()))
    assert_close(scaled, [-2.5 * g for g in once], "float64")
    assert all(torch.equal(g, h) for g, h in zip(once, again, strict=True))


def test_a_weight_used_twice_gathers_both_gradients():
    a = tensors()
    targets = torch.randint(0, V, (T,))
    found, expected = (
        torch.autograd.grad(loss(F.embedding(targets, a["weight"])), a["weight"])
        for loss in (
            lambda x: linear_cross_entropy(x, a["weight"], targets),
            lambda x: plain({"hidden": x, "weight": a["weight"]}, targets),
        )
    )
    assert_close(found, expected, "float64")


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_the_gradient_of_token_weights_is_right_or_refused(reduction):
    """A None where a gradient was asked for would be a silent zero."""
    a = tensors()
    targets = some_targets()
    weights = torch.rand(T, dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(plain(a, targets, weights, reduction).sum(), weights)
    loss = linear_cross_entropy(**a, targets=targets, token_weights=weights, reduction=reduction)
    (found,) = torch.autograd.grad(loss.sum(), weights)
    assert_close(found, expected, "float64")


@pytest.mark.usefixtures("_chunks")
def test_float32_against_float64():
    a = tensors()
    targets = some_targets()
    single = {n: x.detach().float().requires_grad_() for n, x in a.items()}
    found = linear_cross_entropy(**single, targets=targets, label_smoothing=0.1)
    expected = plain(a, targets, label_smoothing=0.1)
    assert found.dtype == torch.float32
    assert_close(found, expected, "float32")
    assert_close(
        torch.autograd.grad(found, list(single.values())),
        torch.autograd.grad(expected, list(a.values())),
        "float32",
    )


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_bfloat16_gives_a_float32_loss_and_bfloat16_gradients(reduction):
    a = tensors(torch.bfloat16)
    targets = some_targets()
    wide = {n: x.detach().double().requires_grad_() for n, x in a.items()}
    expected = plain(wide, targets, reduction=reduction)
    loss = linear_cross_entropy(**a, targets=targets, reduction=reduction)
    assert loss.dtype == torch.float32
    assert_close(loss, expected, "bfloat16")
    grads = torch.autograd.grad(loss.sum(), list(a.values()))
    assert [g.dtype for g in grads] == [torch.bfloat16] * 3
    assert_close(grads, torch.autograd.grad(expected.sum(), list(wide.values())), "bfloat16")


def test_large_logits_do_not_overflow():
    hidden = torch.full((1, 1), 1e4, requires_grad=True)
    weight = torch.tensor([[1.0], [-1.0]])
    loss = linear_cross_entropy(hidden, weight, torch.tensor([1]))
    assert loss.item() == 2e4
    assert torch.autograd.grad(loss, hidden)[0].item() == 2.0


class Recorder(TorchDispatchMode):
    """The largest tensor that any operation made, and how often each operation ran."""

    def __init__(self):
        super().__init__()
        self.largest, self.calls = 0, Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        self.calls[function.overloadpacket.__name__] += 1
        for x in out if isinstance(out, tuple | list) else [out]:
            if isinstance(x, torch.Tensor):
                self.largest = max(self.largest, x.numel())
        return out

    @property
    def products(self):
        return self.calls["mm"] + self.calls["addmm"]


@pytest.mark.usefixtures("_four_chunks")
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_logits_of_the_whole_batch_are_never_held(reduction):
    vocabulary = 100
    a, targets = tensors(vocabulary=vocabulary), some_targets()
    saved = []

    def keep(x):
        saved.append(x.numel())
        return x

    with Recorder() as recorder, torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        loss = linear_cross_entropy(
            **a, targets=targets, reduction=reduction, label_smoothing=0.1, z_loss=0.1
        )
        torch.autograd.grad(loss.sum(), list(a.values()))
    assert recorder.largest == 16 * vocabulary
    assert max(saved) <= max(x.numel() for x in a.values())


@pytest.mark.usefixtures("_four_chunks")
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_without_gradient_only_the_logits_are_computed(reduction):
    a, targets = tensors(), some_targets()
    with torch.no_grad(), Recorder() as quiet:
        loss = linear_cross_entropy(**a, targets=targets, reduction=reduction)
    assert quiet.products == 4
    assert not loss.requires_grad
    detached = {n: x.detach() for n, x in a.items()}
    with Recorder() as also_quiet:
        linear_cross_entropy(**detached, targets=targets, reduction=reduction)
    assert also_quiet.products == 4
    with Recorder() as busy:
        linear_cross_entropy(**{**detached, "hidden": a["hidden"]}, targets=targets)
    assert busy.products == 8


def test_where_the_chunk_ends_changes_nothing(monkeypatch):
    a, targets = tensors(), some_targets()
    results = []
    for length in (16, 17, 62, 63, 64):
        monkeypatch.setattr(chunked, "LOGITS_PER_CHUNK", length * V)
        assert chunked.chunk_length(V) == length
        loss = linear_cross_entropy(**a, targets=targets)
        results.append([loss, *torch.autograd.grad(loss, list(a.values()))])
    for result in results[1:]:
        assert_close(result, results[0], "float64")


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"weight": torch.ones(3)}, r"hidden must be \(\.\.\., D\).* weight \(V, D\), got \(4, 3\), \(3,\)"),
        ({"targets": torch.ones(4)}, r"targets must be int64 or int32, got torch.float32"),
        ({"targets": torch.ones(5).long()}, r"hidden must be \(\*targets.shape, D\) = \(5, 3\), got"),
        ({"hidden": torch.ones(4, 2)}, r"hidden must be \(\*targets.shape, D\) = \(4, 3\), got \(4, 2\)"),
        ({"bias": torch.ones(1)}, r"bias must be \(V,\) = \(6,\), got \(1,\)"),
        ({"token_weights": torch.ones(1)}, r"token_weights must be targets' shape = \(4,\), got \(1,\)"),
        ({"reduction": "max"}, r"unknown reduction 'max'; choose one of mean, sum, none"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(changes, message):
    fits = {"hidden": torch.ones(4, 3), "weight": torch.ones(6, 3), "targets": torch.ones(4).long()}
    with pytest.raises(ValueError, match=f"^linear_cross_entropy: {message}"):
        linear_cross_entropy(**{**fits, **changes})


def test_integer_hidden_is_refused():
    with pytest.raises(TypeError, match=r"^linear_cross_entropy: hidden must be floating point"):
        linear_cross_entropy(torch.ones(4, 3).long(), torch.ones(6, 3), torch.ones(4).long())


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("value", [-1, 7])
def test_a_target_outside_the_vocabulary_raises(value, reduction):
    targets = some_targets()
    targets[3] = value
    with pytest.raises((ValueError, IndexError, RuntimeError), match=str(value)):
        linear_cross_entropy(**tensors(), targets=targets, reduction=reduction)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_gradient_of_a_weight_of_zero_is_its_token_s_loss(reduction):
    """A token of weight 0 is not one that is ignored."""
    a = tensors()
    targets = some_targets().abs().clamp(max=a["weight"].shape[0] - 1)
    weights = torch.rand(len(targets), dtype=torch.float64)
    weights[2] = 0.0
    weights.requires_grad_()
    loss = linear_cross_entropy(**a, targets=targets, token_weights=weights, reduction=reduction)
    (gradient,) = torch.autograd.grad(loss, weights)
    with torch.no_grad():
        each = F.cross_entropy(F.linear(a["hidden"], a["weight"], a["bias"]), targets, reduction="none")
        expected = each if reduction == "sum" else (each - loss) / weights.sum()
    assert_close(gradient, expected, "float64")
