"""Before torch is imported: quiet threads, no network. Around each test: fixed seeds, NaN in empty memory."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ["HF_HUB_OFFLINE"] = "1"

import random

import numpy as np
import pytest
import torch


@pytest.fixture(autouse=True)
def _seeds():
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _empty_memory_is_nan():
    """`torch.empty` gives NaN (in integers the largest number): who reads it unwritten is found out."""
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    yield
    torch.use_deterministic_algorithms(False)
