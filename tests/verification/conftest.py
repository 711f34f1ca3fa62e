"""The small models, as fixtures."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from ssmith.models import HybridLM
from tests.verification.proof_models import EVERYTHING, PLAIN, SMALLEST, build


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def everything() -> HybridLM:
    return build(EVERYTHING)


@pytest.fixture
def smallest() -> HybridLM:
    return build(SMALLEST)


@pytest.fixture
def plain() -> HybridLM:
    return build(PLAIN)
