"""The TypeScript engine's Mamba-1 model: its numbers are ours."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import ssmith
from ssmith.formats.engine import engine_names, turn_taps

FIXTURE = json.loads((Path(__file__).parents[1] / "fixtures/engine/mamba1.json").read_text())
DIMS, ARRAYS = FIXTURE["dims"], FIXTURE["weights"]
SHAPE = (FIXTURE["batch"], FIXTURE["seq_len"])


@pytest.mark.parametrize(
    "dtype, backend, limit",
    [(torch.float64, "auto", 1e-10), (torch.float32, "auto", 1e-6), (torch.float32, "reference", 1e-6)],
)
def test_logits_loss_and_all_gradients(dtype: torch.dtype, backend: str, limit: float) -> None:
    model = ssmith.from_engine_arrays(DIMS, ARRAYS).to(dtype)
    model.set_backend(backend)
    ids, targets = (torch.tensor(FIXTURE[k]).view(SHAPE) for k in ("tokens", "targets"))
    logits = torch.tensor(FIXTURE["logits"], dtype=torch.float64).view(*SHAPE, -1)
    assert float((model(ids).logits.detach() - logits).abs().max()) < limit
    loss, gradients = ssmith.gradients(model, ids, targets=targets)
    assert abs(float(loss) - FIXTURE["loss"]) < limit
    names = engine_names(DIMS["numLayers"])
    assert len(names) == 29
    assert set(names.values()) == gradients.keys()
    for theirs, ours in names.items():
        wanted = torch.tensor(FIXTURE["gradients"][theirs], dtype=torch.float64)
        error = turn_taps(theirs, gradients[ours]).reshape(-1) - wanted
        assert float(error.abs().max()) < limit, theirs


def test_weights_are_whole_in_float32() -> None:
    """Nothing is lost between the file's numbers and a float32 model, so that .double() is exact."""
    weights = dict(ssmith.from_engine_arrays(DIMS, ARRAYS).named_parameters())
    for theirs, ours in engine_names(DIMS["numLayers"]).items():
        data = torch.tensor(ARRAYS[theirs]["data"], dtype=torch.float64)
        assert torch.equal(turn_taps(theirs, weights[ours]).double().reshape(-1), data), theirs


def test_arrays_may_be_nested_lists_arrays_or_tensors() -> None:
    whole = ssmith.from_engine_arrays(DIMS, ARRAYS)
    shaped = {n: torch.tensor(a["data"]).reshape(a["shape"]) for n, a in ARRAYS.items()}
    for arrays in (
        shaped,
        {n: t.numpy() for n, t in shaped.items()},
        {n: t.tolist() for n, t in shaped.items()},
    ):
        model = ssmith.from_engine_arrays(DIMS, arrays)
        for a, b in zip(model.parameters(), whole.parameters(), strict=True):
            assert torch.equal(a, b)


def test_errors_use_the_engines_names() -> None:
    with pytest.raises(ValueError, match="dims lacks 'dtRank'"):
        ssmith.from_engine_arrays({k: v for k, v in DIMS.items() if k != "dtRank"}, ARRAYS)
    without = {k: v for k, v in ARRAYS.items() if k != "layer1.A_log"}
    with pytest.raises(ValueError, match=r"array 'layer1\.A_log' of shape \(24, 4\) is missing"):
        ssmith.from_engine_arrays(DIMS, without)
    with pytest.raises(ValueError, match=r"unknown array 'layer2\.A_log'"):
        ssmith.from_engine_arrays(DIMS, ARRAYS | {"layer2.A_log": [[0.0]]})
    with pytest.raises(ValueError, match=r"array 'final_norm' has shape \(3,\), expected \(12,\)"):
        ssmith.from_engine_arrays(DIMS, ARRAYS | {"final_norm": [0.0, 0.0, 0.0]})
    with pytest.raises(ValueError, match="array 'final_norm' has 3 numbers, its shape"):
        ssmith.from_engine_arrays(DIMS, ARRAYS | {"final_norm": {"shape": [12], "data": [0.0] * 3}})
    with pytest.raises(ValueError, match="array 'final_norm' must have 'shape' and 'data'"):
        ssmith.from_engine_arrays(DIMS, ARRAYS | {"final_norm": {"data": [0.0] * 3}})


@pytest.mark.parametrize(
    "array, message",
    [
        ([[1.0, 2.0], [3.0]], "is not an array of numbers"),
        ("abc", "is not an array of numbers"),
        ({"shape": [12], "data": [None] * 12}, "is not an array of numbers"),
        ({"shape": "12", "data": [0.0] * 12}, "a list of whole numbers as its shape, got '12'"),
        ({"shape": [-1], "data": [0.0] * 12}, r"has 12 numbers, its shape \[-1\] says otherwise"),
        ({"shape": [-3, -4], "data": [0.0] * 12}, r"has 12 numbers, its shape \[-3, -4\] says otherwise"),
        (torch.ones(12, dtype=torch.complex64), "must be of real numbers, got torch.complex64"),
    ],
)
def test_what_is_no_array_of_numbers(array: object, message: str) -> None:
    with pytest.raises(ValueError, match=f"array 'final_norm' .*{message}"):
        ssmith.from_engine_arrays(DIMS, ARRAYS | {"final_norm": array})


@pytest.mark.parametrize("value", ["12", 12.0, True, 0, None])
def test_sizes_are_whole_numbers(value: object) -> None:
    with pytest.raises(ValueError, match="size 'dModel' in dims must be a whole number of at least 1, got"):
        ssmith.from_engine_arrays(DIMS | {"dModel": value}, ARRAYS)


def test_an_unknown_size_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown size 'dFoo' in dims"):
        ssmith.from_engine_arrays(DIMS | {"dFoo": 1}, ARRAYS)
