"""Small models for tests, and what a call of one leaves to compare."""

import torch

from ssmith import HybridLM, Mamba1Config, ModelConfig

V = 11
VARIANTS = {
    "plain": {},
    "untied": {"tie_embeddings": False, "head_bias": True, "final_norm": False},
    "zoh": {"mamba1": {"discretization": "zoh", "dt_b_c_norm": "learned"}},
    "biases": {"mamba1": {"use_bias": True, "x_proj_bias": True, "dt_b_c_norm": "plain", "conv_kernel": 2}},
}


def tiny_config(variant="plain", repeats=2, **changes):
    options = {"vocab_size": V, "hidden_size": 6, "repeats": repeats, **VARIANTS[variant], **changes}
    mamba1 = {"state_size": 3, "time_step_rank": 2, "time_step_min": 0.1, "time_step_max": 1.0}
    mamba1 |= options.pop("mamba1", {})
    return ModelConfig(**options, mamba1=Mamba1Config(**mamba1))


def tiny_model(variant="plain", dtype=torch.float64, backend="auto", seed=0, **options):
    """With weights large enough that every part of the model can be seen in its outputs."""
    torch.manual_seed(seed)
    model = HybridLM(tiny_config(variant, **options)).to(dtype)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn(p.shape, dtype=torch.float64).to(p.dtype))
    model.set_backend(backend)
    return model


def some_ids(batch, time, seed=1):
    return torch.randint(0, V, (batch, time), generator=torch.Generator().manual_seed(seed))


def random_like(x, seed=7):
    """The same numbers whenever the shape is the same."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.dtype)


def state_tensors(state):
    return [x for layer in state.layers for x in layer]


def parameter_gradients(model, scalar):
    """By name; zeros where the scalar does not depend on a parameter."""
    named = dict(model.named_parameters())
    found = torch.autograd.grad(scalar, list(named.values()), retain_graph=True, allow_unused=True)
    return {
        n: torch.zeros_like(p) if g is None else g
        for (n, p), g in zip(named.items(), found, strict=True)
    }  # fmt: skip


def everything(model, logits, state):
    """Logits, final states and the gradients of all parameters from both."""
    scalar = (logits * random_like(logits)).sum()
    for i, x in enumerate(state_tensors(state)):
        scalar = scalar + (x * random_like(x, i)).sum()
    return logits, state_tensors(state), parameter_gradients(model, scalar)
