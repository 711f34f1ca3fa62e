"""The gradient proof passes right gradients and catches wrong ones."""

from __future__ import annotations

import math
from importlib import import_module

import pytest
import torch

from ssmith.models import HybridLM
from ssmith.verification.finite_differences import derivative
from ssmith.verification.gradients import TOLERANCE, GradientProof
from ssmith.verification.report import VerifyRow
from ssmith.verification.subject import borrowed
from tests.verification.proof_models import EVERYTHING, PLAIN, build


def rows_of(model: HybridLM, names: list[str] | None = None, seed: int = 0) -> list[VerifyRow]:
    with borrowed(model, seed) as subject:
        proof = GradientProof(subject)
        return [r for name in names or subject.parameters for r in proof.rows(name)]


NAMES = [n for n, _ in build(EVERYTHING).named_parameters()]


@pytest.mark.parametrize("index", range(len(NAMES)), ids=NAMES)
def test_a_gradient_off_by_one_in_ten_thousand_is_named(index: int) -> None:
    model = build(EVERYTHING)
    name, neighbour = NAMES[index], NAMES[index - 1]
    model.get_parameter(name).register_hook(lambda g: g * (1 + 1e-4))
    rows = rows_of(model, [name, neighbour])
    assert {r.name for r in rows if not r.ok} == {name}
    whole = next(r for r in rows if (r.check, r.name) == ("gradient", name))
    assert whole.error == pytest.approx(1e-4, rel=0.01)
    assert whole.tolerance <= 1e-6


@pytest.mark.parametrize("config, seed", [(EVERYTHING, 1), (PLAIN, 2)], ids=["everything", "plain"])
def test_weights_far_from_the_start_pass(config: object, seed: int) -> None:
    model = build(config, seed)  # pyright: ignore
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn(p.shape, generator=torch.Generator().manual_seed(seed)))
    failed = [r for r in rows_of(model, seed=seed) if not r.ok]
    assert not failed


def replace_gradient(monkeypatch: pytest.MonkeyPatch, name: str, change: object) -> None:
    module = import_module("ssmith.models.gradients")
    right = module.gradients

    def wrong(*args: object, **kwargs: object) -> object:
        loss, found = right(*args, **kwargs)
        return loss, {**found, name: change(found[name])}  # pyright: ignore

    monkeypatch.setattr(module, "gradients", wrong)


def test_one_wrong_element_is_caught(plain: HybridLM, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "layers.1.mixer.in_proj.weight"

    def change(gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient.clone()
        gradient[17, 3] += 1e-3 * gradient.norm()
        return gradient

    replace_gradient(monkeypatch, name, change)
    assert {r.name for r in rows_of(plain, [name, "final_norm.weight"]) if not r.ok} == {name}


@pytest.mark.parametrize("value", [0.0, math.nan])
def test_a_lost_gradient_is_caught(plain: HybridLM, monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    name = "layers.0.mixer.D"
    replace_gradient(monkeypatch, name, lambda g: torch.full_like(g, value))
    assert {r.name for r in rows_of(plain, [name, "final_norm.weight"]) if not r.ok} == {name}


def test_a_gradient_that_is_zero_both_ways_holds_and_says_so(plain: HybridLM) -> None:
    with torch.no_grad():
        plain.layers[0].mixer.out_proj.weight.zero_()  # pyright: ignore
    rows = rows_of(plain, ["layers.0.mixer.x_proj.weight"])
    assert [(r.ok, r.error) for r in rows] == [(True, 0.0), (True, 0.0)]
    assert rows[0].detail == "the gradient is exactly zero"


def test_elements_at_the_clamp_are_not_moved(everything: HybridLM) -> None:
    name = "layers.0.mixer.A_log"
    with torch.no_grad():  # one a hair inside the clamp, one a hair past it, one far past it
        everything.get_parameter(name)[0] = torch.tensor([1.05 - 1e-9, 1.05 + 1e-9, 3.0])
    whole, elements = rows_of(everything, [name])
    assert whole.ok, whole
    assert elements.ok, elements
    assert whole.detail == "13 of 36 elements at the clamp not moved"


def test_a_gradient_at_the_clamp_that_should_be_zero_is_caught(
    everything: HybridLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "layers.0.mixer.A_log"
    replace_gradient(monkeypatch, name, lambda g: g + (everything.get_parameter(name) <= 0) * g.norm())
    whole, _ = rows_of(everything, [name])
    assert not whole.ok


@pytest.mark.parametrize("bend", [1.0, 1e-3])
def test_derivatives_find_their_step(bend: float) -> None:
    def f(s: float) -> float:
        return 5 + (s + bend / 3) / math.hypot(s + bend / 3, bend)

    right = bend**2 / math.hypot(bend / 3, bend) ** 3
    for claimed in (right, 1.01 * right):  # a wrong claim does not mislead
        found = derivative(f, 0.1, claimed, near=1e-8 * right)
        assert abs(found.value - right) < TOLERANCE / 10 * right
