"""The Mamba-1 mixer: initial weights as the paper says, and options that change what they should."""

import math

import numpy as np
import pytest
import torch

from ssmith import HybridLM, Mamba1Config, ModelConfig
from ssmith.models.blocks import Mamba1
from tests.models.tiny import parameter_gradients, some_ids, tiny_model


def wide_mixer(**options):
    torch.manual_seed(3)
    return Mamba1(512, Mamba1Config(state_size=16, **options))


def uniform_distance(x, low, high):
    """Kolmogorov-Smirnov: the largest gap between the numbers' distribution and the uniform one."""
    x = np.sort(np.asarray(x, dtype=np.float64).ravel())
    ranks = np.arange(1, len(x) + 1) / len(x)
    return np.abs(ranks - (x - low) / (high - low)).max()


@pytest.mark.parametrize("low, high", [(0.001, 0.1), (0.02, 0.5)])
def test_initial_steps_are_log_uniform(low, high):
    mixer = wide_mixer(time_step_min=low, time_step_max=high)
    dt = torch.nn.functional.softplus(mixer.dt_proj.bias.double()).detach().numpy()
    assert dt.min() >= low * (1 - 1e-5)
    assert dt.max() <= high * (1 + 1e-5)
    assert uniform_distance(np.log(dt), math.log(low), math.log(high)) < 1.95 / math.sqrt(dt.size)


def test_no_initial_step_is_below_the_floor():
    mixer = wide_mixer(time_step_min=0.001, time_step_max=0.1, time_step_floor=0.01)
    dt = torch.nn.functional.softplus(mixer.dt_proj.bias.double())
    assert abs(dt.min().item() / 0.01 - 1) < 1e-5
    assert 0.4 < (dt < 0.010001).double().mean() < 0.6  # half of the range in logarithms


def test_initial_decay_and_skip():
    mixer = wide_mixer()
    expected = torch.arange(1.0, 17.0).log().expand(1024, 16)
    assert torch.allclose(mixer.A_log, expected, rtol=1e-6, atol=0)
    assert torch.equal(mixer.D, torch.ones(1024))


def test_initial_projections_are_uniform_in_their_bounds():
    mixer = wide_mixer(use_bias=True, x_proj_bias=True)
    for weight, bound in (
        (mixer.dt_proj.weight, 32**-0.5),
        (mixer.conv.weight, 4**-0.5),
        (mixer.conv.bias, 4**-0.5),
        (mixer.in_proj.weight, 512**-0.5),
        (mixer.x_proj.weight, 1024**-0.5),
    ):
        x = weight.detach().numpy()
        assert np.abs(x).max() <= bound
        assert uniform_distance(x, -bound, bound) < 1.95 / math.sqrt(x.size)
    for projection in (mixer.in_proj, mixer.x_proj, mixer.out_proj):
        assert projection.bias.count_nonzero() == 0


def test_initial_output_projections_shrink_with_depth_and_embeddings_are_small():
    for layers in (1, 9):
        config = ModelConfig(vocab_size=500, hidden_size=64, repeats=layers, tie_embeddings=False)
        model = HybridLM(config)
        weight = model.layers[-1].mixer.out_proj.weight.detach().numpy()
        bound = 128**-0.5 / layers**0.5
        assert np.abs(weight).max() <= bound
        assert uniform_distance(weight, -bound, bound) < 1.95 / math.sqrt(weight.size)
        for normal in (model.embedding.weight, model.head.weight):
            assert abs(normal.std().item() / 0.02 - 1) < 0.02
        assert torch.equal(model.final_norm.weight, torch.ones(64))


def test_the_first_loss_is_that_of_guessing():
    torch.manual_seed(0)
    model = HybridLM(ModelConfig(vocab_size=257, hidden_size=64, blocks=["mamba1"], repeats=2))
    ids = torch.randint(0, 257, (2, 33))
    assert abs(model(ids, labels=ids).loss.item() - math.log(257)) < 0.1


def decay_gradients(values, clamp):
    model = tiny_model(repeats=1, mamba1={"A_log_clamp": clamp})
    with torch.no_grad():
        model.layers[0].mixer.A_log.copy_(torch.tensor(values).double().expand(12, 3))
    ids = some_ids(2, 9)
    out = model(ids, labels=ids)
    return out.loss, parameter_gradients(model, out.loss)["layers.0.mixer.A_log"]


def test_at_or_past_the_clamp_the_gradient_of_A_log_is_zero():
    loss, grad = decay_gradients([-1.5, 0.5, 1.0], (-1.0, 1.0))
    assert grad[:, [0, 2]].count_nonzero() == 0
    assert grad[:, 1].count_nonzero() == 12
    same, free = decay_gradients([-1.0, 0.5, 1.0], None)
    assert loss == same
    assert torch.equal(grad[:, 1], free[:, 1])
    assert free.count_nonzero() == 36


@pytest.mark.parametrize(
    "change", [{"discretization": "zoh"}, {"dt_b_c_norm": "plain"}, {"A_log_clamp": (0, 0.1)}]
)
def test_an_option_changes_the_outputs(change):
    ids = some_ids(1, 5)
    plain, changed = tiny_model(), tiny_model(mamba1=change)
    assert {n: p.shape for n, p in plain.named_parameters()} == {
        n: p.shape for n, p in changed.named_parameters()
    }
    changed.load_state_dict(plain.state_dict())
    assert (plain(ids).logits - changed(ids).logits).abs().max() > 1e-3


def test_an_adapter_on_any_projection_acts():
    """DESIGN.md rule 4: projections are called as modules, so that a hook on any of them is heard."""
    model, ids = tiny_model(), some_ids(1, 5)
    plain = model(ids).logits
    for name in ("in_proj", "conv", "x_proj", "dt_norm", "b_norm", "c_norm", "dt_proj", "out_proj"):
        module = getattr(model.layers[0].mixer, name)

        def double(module, inputs, output):
            return (output[0] * 2, output[1]) if isinstance(output, tuple) else output * 2

        handle = module.register_forward_hook(double)
        assert (model(ids).logits - plain).abs().max() > 1e-4, name
        handle.remove()
    assert torch.equal(model(ids).logits, plain)


def test_bfloat16_weights_keep_the_scan_state_in_float32():
    model = tiny_model(dtype=torch.bfloat16)
    out = model(some_ids(2, 5), state=model.initial_state(2))
    assert out.logits.dtype == torch.bfloat16
    assert {(layer.conv.dtype, layer.ssm.dtype) for layer in out.state.layers} == {
        (torch.bfloat16, torch.float32)
    }
    assert {layer.ssm.dtype for layer in model.initial_state(2).layers} == {torch.float32}
