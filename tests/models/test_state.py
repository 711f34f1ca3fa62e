import pytest
import torch

from ssmith import LMState
from tests.models.tiny import some_ids, state_tensors, tiny_model


@pytest.fixture
def state():
    with torch.no_grad():
        return tiny_model()(some_ids(3, 5)).state


def storages(state):
    return {x.untyped_storage().data_ptr() for x in state_tensors(state)}


@pytest.mark.parametrize("rows", [[0], [2, 0], [1, 1, 0, 2], torch.tensor([2, 1])])
def test_select_and_reorder_take_rows_in_order(state, rows):
    for chosen in (state.select(rows), state.reorder(rows)):
        assert chosen.rows == len(rows)
        assert [type(layer) for layer in chosen.layers] == [type(layer) for layer in state.layers]
        for a, b in zip(state_tensors(chosen), state_tensors(state), strict=True):
            assert torch.equal(a, torch.stack([b[int(r)] for r in rows]))


@pytest.mark.parametrize("rows", [[3], [-1], [0, 7]])
def test_rows_that_do_not_exist(state, rows):
    with pytest.raises(ValueError, match=r"^row indices must be in \[0, 3\), got \["):
        state.select(rows)


@pytest.mark.parametrize("rows", [[], [[0]], 0])
def test_rows_that_are_no_list(state, rows):
    with pytest.raises(ValueError, match=r"^rows must be a list of at least one index, got torch"):
        state.select(rows)


def test_a_mask_is_no_list_of_indices(state):
    """Read as 0 and 1 it would silently give other rows than those that were meant."""
    with pytest.raises(ValueError, match="rows"):
        state.select(torch.tensor([True, False, True]))


def test_stack_puts_sequences_in_order(state):
    stacked = LMState.stack([state.select([2]), state, state.select([1, 0])])
    assert stacked.rows == 6
    expected = state_tensors(state.select([2, 0, 1, 2, 1, 0]))
    assert all(map(torch.equal, state_tensors(stacked), expected))


def test_stack_of_nothing_or_of_different_models(state):
    with pytest.raises(ValueError, match="stack needs at least one state"):
        LMState.stack([])
    with pytest.raises(ValueError, match=r"states of different models: \[2, 1\] layers"):
        LMState.stack([state, LMState(state.layers[:1])])


@pytest.mark.parametrize(
    "copy",
    [
        lambda s: s.select([0, 1, 2]), lambda s: s.reorder([0, 1, 2]), lambda s: LMState.stack([s]),
        lambda s: s.to(), lambda s: s.to("cpu"), lambda s: s.to(dtype=torch.float64), lambda s: s.detach(),
    ],
)  # fmt: skip
def test_copies_never_share_memory(state, copy):
    before = [x.clone() for x in state_tensors(state)]
    copied = copy(state)
    assert all(map(torch.equal, state_tensors(copied), before))
    assert not storages(copied) & storages(state)
    assert len(storages(copied)) == 4
    for x in state_tensors(copied):
        x.fill_(9.0)
    assert all(map(torch.equal, state_tensors(state), before))


def test_another_dtype(state):
    assert {x.dtype for x in state_tensors(state.to(dtype=torch.float32))} == {torch.float32}
    assert {x.dtype for x in state_tensors(state)} == {torch.float64}


def test_detach_stops_gradients_and_select_does_not():
    model = tiny_model()
    state = model(some_ids(2, 3)).state
    assert all(x.requires_grad for x in state_tensors(state.select([1])))
    assert not any(x.requires_grad for x in state_tensors(state.detach()))


def test_the_size_does_not_grow_with_the_tokens_read():
    model = tiny_model()
    sizes = [[x.shape for x in state_tensors(model(some_ids(2, time)).state)] for time in (1, 2, 63)]
    assert sizes[0] == sizes[1] == sizes[2] == [(2, 12, 3), (2, 12, 3)] * 2


def test_the_initial_state_is_that_of_having_read_nothing():
    model, ids = tiny_model(), some_ids(2, 5)
    assert torch.equal(model(ids, state=model.initial_state(2)).logits, model(ids).logits)
    assert len(storages(model.initial_state(2))) == 4
