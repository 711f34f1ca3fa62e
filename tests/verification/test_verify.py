"""The whole proof: right models pass, nothing is left changed, errors are clear."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import ssmith
from ssmith.config import Mamba1Config, ModelConfig
from ssmith.models import HybridLM
from ssmith.verification import VerifyReport, verify
from tests.verification.proof_models import EVERYTHING, build

CONFIGS = {
    "everything": EVERYTHING,
    "plain norms, zoh": ModelConfig(
        vocab_size=7,
        hidden_size=10,
        final_norm=False,
        mamba1=Mamba1Config(state_size=2, expand=1, conv_kernel=2, dt_b_c_norm="plain", discretization="zoh"),
    ),
    "no biases": ModelConfig(
        vocab_size=5,
        hidden_size=4,
        tie_embeddings=False,
        mamba1=Mamba1Config(state_size=1, use_conv_bias=False, dt_proj_bias=False, conv_kernel=1),
    ),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_right_models_pass(name: str) -> None:
    config = CONFIGS[name]
    report = verify(config, seed=3)
    assert report.ok, report.to_text()
    parameters = [n for n, _ in build(config).named_parameters()]
    assert [r.name for r in report.rows if r.check == "gradient"] == parameters
    checks = {r.check for r in report.rows}
    assert checks >= {
        "gradient", "elements", "split = whole", "padded = unpadded", "packed = alone", "batch = rows alone",
        "checkpointed = whole", "train() = eval()", "backend cpu",
    }  # fmt: skip


def test_the_public_name_is_the_function_of_the_room() -> None:
    assert ssmith.verify is verify


def test_the_same_seed_proves_the_same_and_progress_counts_every_proof(smallest: HybridLM) -> None:
    seen: list[tuple[int, int, str]] = []
    first = verify(smallest, seed=5)
    second = verify(smallest, seed=5, progress=lambda *step: seen.append(step))
    assert first.rows == second.rows
    assert [done for done, _, _ in seen] == list(range(seen[0][1] + 1))
    assert seen[0][2] == "gradient embedding.weight"
    assert seen[-1][2] == ""


def snapshot(model: HybridLM) -> list[object]:
    state: list[object] = [torch.get_rng_state().tolist(), model.activation_checkpointing]
    for tensor in (*model.parameters(), *model.buffers()):
        state += [tensor.dtype, tensor.data_ptr(), tensor.requires_grad, tensor.tolist(), id(tensor.grad)]
    state += [m.training for m in model.modules()]
    state += [m.backend for m in model.modules() if hasattr(m, "backend")]
    return state


def unusual(model: HybridLM) -> HybridLM:
    """Frozen parts, a grad, a buffer, bfloat16, mixed modes: all of it must come back."""
    model.final_norm.register_buffer("shift", torch.ones(3))
    model.embedding.weight.requires_grad_(False)
    model.head.weight.data = model.head.weight.data.bfloat16()  # pyright: ignore
    model.layers[0].norm.weight.grad = torch.full((6,), 2.0)  # pyright: ignore
    model.train()
    model.final_norm.eval()
    model.layers[0].mixer.backend = "reference"  # pyright: ignore
    model.set_activation_checkpointing("full")
    return model


def test_the_model_is_given_back_untouched(everything: HybridLM) -> None:
    model = unusual(everything)
    grad = copy.deepcopy(model.layers[0].norm.weight.grad)  # pyright: ignore
    before = snapshot(model)
    report = verify(model)
    assert report.ok, report.to_text()
    assert snapshot(model) == before
    assert torch.equal(model.layers[0].norm.weight.grad, grad)  # pyright: ignore


def test_the_model_is_given_back_untouched_after_an_exception(everything: HybridLM) -> None:
    model = unusual(everything)
    before = snapshot(model)

    def fail(done: int, total: int, what: str) -> None:
        if done > 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        verify(model, progress=fail)
    assert snapshot(model) == before


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_named(plain: HybridLM, value: float) -> None:
    with torch.no_grad():
        plain.layers[1].mixer.conv.weight[2, 1] = value  # pyright: ignore
    with pytest.raises(ValueError, match=r"parameter 'layers.1.mixer.conv.weight' holds .* at \[2, 1\]"):
        verify(plain)


def test_anything_else_is_refused() -> None:
    with pytest.raises(ValueError, match="takes a HybridLM or a ModelConfig, got Linear"):
        verify(nn.Linear(2, 2))  # pyright: ignore


def test_the_table_names_what_fails(smallest: HybridLM) -> None:
    smallest.layers[0].mixer.A_log.register_hook(lambda g: g * (1 + 1e-4))  # pyright: ignore
    report = verify(smallest)
    assert isinstance(report, VerifyReport)
    assert not report.ok
    assert {(r.check, r.name) for r in report.failures} == {
        ("gradient", "layers.0.mixer.A_log"),
        ("elements", "layers.0.mixer.A_log"),
    }
    lines = report.to_text().splitlines()
    assert len(lines) == len(report.rows) + 3
    assert lines[0].split() == ["check", "of", "shape", "error", "tolerance"]
    assert sum("FAILED" in line and "layers.0.mixer.A_log" in line for line in lines[:-1]) == 2
    assert lines[-1].startswith(f"2 of {len(report.rows)} rows FAILED (gradient layers.0.mixer.A_log, ")
