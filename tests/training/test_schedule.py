"""The learning rate, step by step."""

from __future__ import annotations

from itertools import pairwise

import pytest

from ssmith.config import OptimConfig
from ssmith.training.schedule import learning_rate

CONFIG = OptimConfig(lr=0.5, warmup_steps=4, min_lr_ratio=0.2)


def test_warms_up_in_a_straight_line_to_the_peak() -> None:
    assert [learning_rate(s, 20, CONFIG) for s in (1, 2, 3, 4)] == [0.125, 0.25, 0.375, 0.5]


def test_falls_on_a_cosine_to_the_minimum() -> None:
    assert learning_rate(12, 20, CONFIG) == pytest.approx(0.5 * 0.6, rel=1e-12)
    assert learning_rate(20, 20, CONFIG) == pytest.approx(0.1, rel=1e-12)
    rates = [learning_rate(s, 20, CONFIG) for s in range(4, 21)]
    assert all(a > b for a, b in pairwise(rates))


def test_a_run_shorter_than_the_warm_up_ends_at_the_peak() -> None:
    assert [learning_rate(s, 2, CONFIG) for s in (1, 2)] == [0.25, 0.5]


def test_without_warm_up_the_first_step_is_near_the_peak() -> None:
    assert 0.49 < learning_rate(1, 100, OptimConfig(lr=0.5, warmup_steps=0)) <= 0.5
