"""`gradients`, `load_named`, `shapes`, and activation checkpointing."""

import copy
import math

import numpy as np
import pytest
import torch

from ssmith import HybridLM, gradients, load_named, shapes
from ssmith.models.gradients import _own
from tests.models.tiny import VARIANTS, parameter_gradients, some_ids, state_tensors, tiny_config, tiny_model
from tests.tolerances import assert_close

BACKENDS = ["reference", "auto"]


def by_backward(model, **call):
    """The loss and .grad of a copy after backward()."""
    copied = copy.deepcopy(model).requires_grad_(True)
    loss = copied(**call).loss
    loss.backward()
    return loss.detach(), {n: p.grad for n, p in copied.named_parameters()}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_equals_backward_to_the_bit_and_is_complete(variant, backend):
    model, ids = tiny_model(variant, torch.float32, backend), some_ids(2, 9)
    loss, grads = gradients(model, ids, labels=ids)
    expected_loss, expected = by_backward(model, ids=ids, labels=ids)
    assert list(grads) == [n for n, _ in model.named_parameters()]
    assert torch.equal(loss, expected_loss)
    for name, grad in grads.items():
        assert torch.equal(grad, expected[name]), name
        assert grad.shape == dict(model.named_parameters())[name].shape
        assert not grad.requires_grad
    assert loss.shape == ()
    assert not loss.requires_grad


@pytest.mark.parametrize("variant", ["untied", "zoh"])
def test_every_parameter_by_finite_differences(variant):
    """Along a random direction in each parameter, central differences in float64."""
    model, ids = tiny_model(variant), some_ids(2, 7)
    _, grads = gradients(model, ids, labels=ids)
    for name, p in model.named_parameters():
        direction = torch.randn_like(p)
        losses, h = [], 1e-5
        with torch.no_grad():
            for step in (h, -2 * h, h):
                p.add_(direction, alpha=step)
                losses.append(model(ids, labels=ids).loss)
        numerical = ((losses[0] - losses[1]) / (2 * h)).item()
        analytical = (grads[name] * direction).sum().item()
        assert math.isclose(numerical, analytical, rel_tol=1e-5, abs_tol=1e-8), name
        assert grads[name].count_nonzero() > 0, name


def test_targets_and_labels():
    model, ids = tiny_model(), some_ids(2, 7)
    targets = torch.full_like(ids, -100)
    targets[:, :-1] = ids[:, 1:]
    a, b = gradients(model, ids, targets), gradients(model, ids, labels=ids)
    assert torch.equal(a[0], b[0])
    assert all(torch.equal(a[1][n], b[1][n]) for n in a[1])
    with pytest.raises(ValueError, match=r"^gradients needs targets .* or labels"):
        gradients(model, ids)


@pytest.mark.parametrize("variant", ["plain", "untied"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_no_two_gradients_share_memory_nor_do_they_with_the_model(variant, checkpointing):
    model, ids = tiny_model(variant), some_ids(1, 5)
    _, grads = gradients(model, ids, labels=ids, activation_checkpointing=checkpointing)
    storages = [x.untyped_storage() for x in [*grads.values(), *model.parameters()]]
    assert len({s.data_ptr() for s in storages}) == len(storages)
    for name, grad in grads.items():
        assert grad.untyped_storage().nbytes() == grad.nbytes, name
    before = {n: g.clone() for n, g in grads.items()}
    grads["embedding.weight"].fill_(9.0)
    assert all(torch.equal(g, before[n]) for n, g in grads.items() if n != "embedding.weight")


@pytest.mark.parametrize("kind", ["none", "full"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_model_is_left_untouched(kind, checkpointing):
    model, ids = tiny_model(), some_ids(2, 5)
    model.set_activation_checkpointing(kind)
    model.eval()
    p = dict(model.named_parameters())
    p["layers.0.mixer.D"].requires_grad_(False)
    p["layers.1.norm.weight"].grad = torch.full_like(p["layers.1.norm.weight"], 5.0)
    before = {n: x.detach().clone() for n, x in p.items()}
    random = torch.get_rng_state()
    with torch.no_grad():  # the caller's mode is neither used nor changed
        gradients(model, ids, labels=ids, activation_checkpointing=checkpointing)
        assert not torch.is_grad_enabled()
    for name, x in model.named_parameters():
        assert x is p[name]
        assert torch.equal(x, before[name])
        assert x.requires_grad == (name != "layers.0.mixer.D")
        assert (x.grad is not None) == (name == "layers.1.norm.weight")
    assert torch.equal(p["layers.1.norm.weight"].grad, torch.full((6,), 5.0, dtype=torch.float64))
    assert model.activation_checkpointing == kind
    assert not model.training
    assert torch.equal(torch.get_rng_state(), random)


def test_after_an_error_the_model_is_as_before():
    model, ids = tiny_model().requires_grad_(False), some_ids(2, 5)
    with pytest.raises(ValueError, match="outside the vocabulary"):
        gradients(model, ids + 100, labels=ids, activation_checkpointing=True)
    assert not any(p.requires_grad for p in model.parameters())
    assert model.activation_checkpointing == "none"


def test_frozen_parameters_get_their_gradients_too():
    model, ids = tiny_model(), some_ids(2, 5)
    expected = gradients(model, ids, labels=ids)
    model.requires_grad_(False)
    loss, grads = gradients(model, ids, labels=ids)
    assert torch.equal(loss, expected[0])
    assert all(torch.equal(grads[n], expected[1][n]) for n in expected[1])


def test_a_gradient_that_is_part_of_a_larger_tensor_or_of_another_is_copied():
    whole = torch.arange(6.0)
    seen = set()
    part, first, second = (_own(x, seen) for x in (whole[:2], whole, whole))
    assert first is whole
    assert torch.equal(part, whole[:2])
    assert torch.equal(second, whole)
    assert part.untyped_storage().nbytes() == part.nbytes
    assert len({x.untyped_storage().data_ptr() for x in (part, first, second)}) == 3


def test_a_parameter_without_influence_gets_zeros():
    model, ids = tiny_model(), some_ids(2, 5)
    model.unused = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    _, grads = gradients(model, ids, labels=ids)
    assert torch.equal(grads["unused"], torch.zeros(3, dtype=torch.float64))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_activation_checkpointing_changes_no_bit(variant, backend):
    model, ids = tiny_model(variant, torch.float32, backend), some_ids(2, 17)
    plain = gradients(model, ids, labels=ids)
    by_argument = gradients(model, ids, labels=ids, activation_checkpointing=True)
    model.set_activation_checkpointing("full")
    by_setting = gradients(model, ids, labels=ids)
    by_backward_ = by_backward(model, ids=ids, labels=ids)
    for other in (by_argument, by_setting, by_backward_):
        assert torch.equal(other[0], plain[0])
        assert all(torch.equal(other[1][n], plain[1][n]) for n in plain[1])


def test_activation_checkpointing_with_states_documents_and_padding():
    model = tiny_model()
    cu_seqlens = torch.tensor([0, 2, 9], dtype=torch.int32)
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1, 1], [1] * 9])
    before = model(some_ids(2, 3)).state
    calls = [
        {"ids": some_ids(1, 9), "cu_seqlens": cu_seqlens},
        {"ids": some_ids(2, 9), "attention_mask": mask},
    ]
    for call in calls:
        found = []
        for kind in ("none", "full"):
            model.set_activation_checkpointing(kind)
            out = model(**call, labels=call["ids"], state=before)
            scalar = out.loss + sum(x.sum() for x in state_tensors(out.state))
            found.append((out.logits, parameter_gradients(model, scalar)))
        assert torch.equal(found[0][0], found[1][0])
        assert all(torch.equal(found[0][1][n], found[1][1][n]) for n in found[0][1])


def numbers_kept(layers, kind, batch=2, time=33):
    """How many numbers autograd keeps for backward outside of what it can compute again."""
    model, ids = tiny_model(repeats=layers), some_ids(batch, time)
    model.set_activation_checkpointing(kind)
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept = {}

    def pack(x):
        if x.untyped_storage().data_ptr() not in own and x.is_floating_point():
            kept[x.untyped_storage().data_ptr()] = (x, x.untyped_storage().nbytes() // x.element_size())
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        loss = model(ids, labels=ids, logits=False).loss
    assert loss.isfinite()
    return sum(count for _, count in kept.values())


def test_with_activation_checkpointing_only_the_input_of_each_block_is_kept():
    per_block = {kind: (numbers_kept(4, kind) - numbers_kept(1, kind)) / 3 for kind in ("none", "full")}
    assert per_block["full"] == 2 * 33 * 6
    assert per_block["none"] > 10 * per_block["full"]


def test_an_unknown_kind_of_checkpointing():
    with pytest.raises(ValueError, match=r"^activation checkpointing must be 'none' or 'full', got 'some'$"):
        tiny_model().set_activation_checkpointing("some")


def test_shapes():
    model = tiny_model("untied")
    assert shapes(model) == {n: tuple(p.shape) for n, p in model.named_parameters()}
    assert all(type(s) is tuple for s in shapes(model).values())


@pytest.mark.parametrize(
    "convert",
    [
        lambda x: x, lambda x: x.numpy(), lambda x: x.tolist(), lambda x: x.double(),
        lambda x: np.frombuffer(x.numpy().tobytes(), np.float32).reshape(x.shape),
        lambda x: np.asfortranarray(x.numpy()),
    ],
    ids=["tensor", "numpy", "list", "float64", "read-only", "fortran order"],
)  # fmt: skip
def test_load_named_copies_every_form_of_array(convert):
    source, model = tiny_model(dtype=torch.float32), tiny_model(dtype=torch.float32, seed=9)
    arrays = {n: convert(p.detach().clone()) for n, p in source.named_parameters()}
    parameters = dict(model.named_parameters())
    load_named(model, arrays)
    for name, p in model.named_parameters():
        assert p is parameters[name]
        assert torch.equal(p, dict(source.named_parameters())[name])
        assert p.requires_grad
    if isinstance(arrays["embedding.weight"], torch.Tensor):
        arrays["embedding.weight"].zero_()
        assert torch.equal(model.embedding.weight, source.embedding.weight)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda a: a.pop("layers.1.mixer.D"), r"tensor 'layers.1.mixer.D' of shape \(12,\) is missing"),
        (
            lambda a: a.update({"layers.1.mixer.E": torch.ones(2, 3)}),
            r"unknown tensor 'layers.1.mixer.E' of shape \(2, 3\)",
        ),
        (
            lambda a: a.update({"layers.1.mixer.D": torch.ones(12, 1)}),
            r"tensor 'layers.1.mixer.D' has shape \(12, 1\), expected \(12,\)",
        ),
        (
            lambda a: a.update({"final_norm.weight": torch.ones(())}),
            r"tensor 'final_norm.weight' has shape \(\), expected \(6,\)",
        ),
        (lambda a: a.clear(), r"tensor 'embedding.weight' of shape \(11, 6\) is missing"),
    ],
)
def test_load_named_refuses_by_name_and_copies_nothing(change, message):
    model = tiny_model()
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    arrays = {n: torch.zeros_like(p) for n, p in before.items()}
    change(arrays)
    with pytest.raises(ValueError, match=f"^{message}"):
        load_named(model, arrays)
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())


def test_a_model_loaded_by_name_computes_the_same():
    source, model = tiny_model("untied"), HybridLM(tiny_config("untied")).double()
    load_named(model, dict(source.named_parameters()))
    ids = some_ids(2, 5)
    assert_close(model(ids).logits, source(ids).logits, "float64 model")
