"""What is decayed, and what clipping refuses."""

from __future__ import annotations

import pytest
import torch

from ssmith import HybridLM, Mamba1Config, ModelConfig, OptimConfig
from ssmith.training.optim import NonFiniteGradientError, clip_gradients, make_optimizer

CONFIG = ModelConfig(
    vocab_size=11, hidden_size=8, head_bias=True, tie_embeddings=False,
    mamba1=Mamba1Config(state_size=4, use_bias=True, x_proj_bias=True, dt_b_c_norm="learned"),
)  # fmt: skip


def test_only_matrices_of_products_are_decayed() -> None:
    model = HybridLM(CONFIG)
    optimizer = make_optimizer(model, OptimConfig(weight_decay=0.1))
    decay = {id(p): g["weight_decay"] for g in optimizer.param_groups for p in g["params"]}
    decayed = {n.removeprefix("layers.0.mixer.") for n, p in model.named_parameters() if decay[id(p)] == 0.1}
    projections = {f"{name}.weight" for name in ("in_proj", "x_proj", "dt_proj", "out_proj")}
    assert decayed == projections | {"embedding.weight", "head.weight"}
    assert set(decay) == {id(p) for p in model.parameters()}


def test_frozen_parameters_are_left_out_and_all_frozen_is_refused() -> None:
    model = HybridLM(CONFIG)
    model.requires_grad_(False)
    with pytest.raises(ValueError, match="every parameter is frozen"):
        make_optimizer(model, OptimConfig())
    model.embedding.weight.requires_grad_(True)
    (group,) = make_optimizer(model, OptimConfig()).param_groups
    assert [p is model.embedding.weight for p in group["params"]] == [True]


def test_clipping_scales_all_gradients_together() -> None:
    a, b = (torch.nn.Parameter(torch.zeros(n)) for n in (2, 1))
    a.grad, b.grad = torch.tensor([3.0, 0.0]), torch.tensor([4.0])
    assert clip_gradients([("a", a), ("b", b)], limit=0.0) == 5.0
    assert a.grad.tolist() == [3.0, 0.0]
    assert clip_gradients([("a", a), ("b", b)], limit=1.0) == 5.0
    torch.testing.assert_close(a.grad, torch.tensor([0.6, 0.0]), rtol=1e-5, atol=0)
    torch.testing.assert_close(b.grad, torch.tensor([0.8]), rtol=1e-5, atol=0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_is_named(bad: float) -> None:
    a, b = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
    a.grad, b.grad = torch.ones(2), torch.tensor([1.0, bad])
    with pytest.raises(NonFiniteGradientError, match="the gradient of b is not finite"):
        clip_gradients([("a", a), ("b", b)], limit=1.0)
