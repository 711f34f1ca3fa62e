"""What a model refuses to read, with the place and the value."""

import pytest
import torch

from tests.models.tiny import V, some_ids, tiny_model


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


@pytest.fixture(scope="module")
def model():
    return tiny_model()


def with_value(value, row=1, time=3, of=None):
    ids = some_ids(2, 5) if of is None else of
    ids[row, time] = value
    return ids


@pytest.mark.parametrize("value", [-1, -100, V, 10**9])
def test_an_id_outside_the_vocabulary_is_named_with_its_place(model, value):
    place = rf"token id {value} at row 1, position 3 is outside the vocabulary \[0, {V}\)"
    for ids in (with_value(value), with_value(value).int()):
        with pytest.raises(ValueError, match=f"^{place}$"):
            model(ids)
    with pytest.raises(ValueError, match=place):
        model(with_value(value), attention_mask=torch.tensor([[1] * 5, [0, 1, 1, 1, 1]]))
    first = with_value(value, 0, 4, of=with_value(value))
    with pytest.raises(ValueError, match="row 0, position 4"):
        model(first)


@pytest.mark.parametrize("value", [-1, V])
def test_a_target_outside_the_vocabulary_is_named_with_its_place(model, value):
    message = rf"target {value} at row 1, position 3 is outside the vocabulary \[0, {V}\)"
    with pytest.raises(ValueError, match=f"^{message}$"):
        model(some_ids(2, 5), targets=with_value(value))
    mask = torch.tensor([[0, 1, 1, 1, 1], [0, 0, 1, 1, 1]])
    with pytest.raises(ValueError, match=message):
        model(some_ids(2, 5), targets=with_value(value), attention_mask=mask)


@pytest.mark.parametrize("mask", [None, torch.tensor([[0, 1, 1, 1, 1], [0, 0, 1, 1, 1]])])
def test_a_label_outside_the_vocabulary_is_named_where_the_caller_put_it(model, mask):
    with pytest.raises(ValueError, match=f"(label|target) {V} at row 1, position 3 is outside"):
        model(some_ids(2, 5), labels=with_value(V), attention_mask=mask)


@pytest.mark.parametrize(
    "ids, message",
    [
        (torch.ones(2, 5), r"ids must be a tensor of int64 or int32, got torch.float32"),
        (torch.ones(2, 5, dtype=torch.bool), r"ids must be a tensor of int64 or int32, got torch.bool"),
        (torch.ones(2, 5, dtype=torch.uint8), r"ids must be a tensor of int64 or int32, got torch.uint8"),
        ([[1, 2]], r"ids must be a tensor of int64 or int32, got list"),
        (torch.ones(5).long(), r"ids must be \(batch, time\) with at least one token, got shape \(5,\)"),
        (torch.ones(1, 2, 3).long(), r"ids must be \(batch, time\) .*, got shape \(1, 2, 3\)"),
        (torch.ones(2, 0).long(), r"ids must be \(batch, time\) with at least one token, got shape \(2, 0\)"),
        (torch.ones(0, 2).long(), r"ids must be \(batch, time\) with at least one token, got shape \(0, 2\)"),
    ],
)
def test_ids_that_are_none(model, ids, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        model(ids)


IGNORED = torch.full((2, 5), -100)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"targets": IGNORED}, "no target counts: every one is -100"),
        ({"labels": IGNORED}, "no target counts: every one is -100"),
        ({"targets": IGNORED, "labels": IGNORED}, "give targets .* or labels .*, not both"),
        ({"targets": torch.ones(2, 4).long()}, r"integers of ids' shape \(2, 5\), got torch.int64 \(2, 4\)"),
        ({"labels": torch.ones(2, 5)}, r"integers of ids' shape \(2, 5\), got torch.float32 \(2, 5\)"),
        ({"attention_mask": torch.ones(2, 4)}, r"attention_mask must have ids' shape \(2, 5\), got \(2, 4\)"),
        (
            {"attention_mask": torch.tensor([[1] * 5, [0] * 5])},
            "row 1 of attention_mask has no real token",
        ),
        ({"attention_mask": torch.ones(2, 5), "cu_seqlens": int32(0, 5)}, "attention_mask .*not both"),
        ({"cu_seqlens": int32(0, 5)}, "batch size must be 1"),
    ],
)  # fmt: skip
def test_what_goes_beside_ids(model, options, message):
    with pytest.raises(ValueError, match=message):
        model(some_ids(2, 5), **options)


def test_one_token_alone_predicts_nothing(model):
    with pytest.raises(ValueError, match="no target counts"):
        model(some_ids(1, 1), labels=some_ids(1, 1))
    with pytest.raises(ValueError, match="no target counts"):
        model(some_ids(1, 3), labels=some_ids(1, 3), cu_seqlens=int32(0, 1, 2, 3))


@pytest.mark.parametrize("with_labels", [False, True])
@pytest.mark.parametrize(
    "cu_seqlens, message",
    [
        (int32(0, 4), "cu_seqlens must go from 0 to T = 5"),
        (int32(1, 5), "cu_seqlens must go from 0 to T = 5"),
        (int32(0, 9), "cu_seqlens must go from 0 to T = 5"),
        (int32(0, 2, 2, 5), "cu_seqlens must rise strictly"),
        (torch.tensor([0, 5]), "cu_seqlens must be int32"),
        (int32(0, 5)[None], "cu_seqlens must be int32"),
        (int32(5)[0], "cu_seqlens must be int32"),
    ],
)
def test_borders_that_do_not_fit(model, cu_seqlens, message, with_labels):
    labels = some_ids(1, 5) if with_labels else None
    with pytest.raises(ValueError, match=message):
        model(some_ids(1, 5), labels=labels, cu_seqlens=cu_seqlens)


def test_a_state_of_another_model_or_of_other_rows(model):
    with pytest.raises(
        ValueError, match=r"state is of 2 layers and 3 sequences, the call of 2 .* 2 sequences"
    ):
        model(some_ids(2, 5), state=model.initial_state(3))
    other = tiny_model(repeats=1)
    with pytest.raises(ValueError, match=r"state is of 1 layers and 2 sequences, the call of 2 layers"):
        model(some_ids(2, 5), state=other.initial_state(2))
    with pytest.raises(ValueError, match=r"1 sequences, the call of 2 layers and 2 sequences"):
        model(some_ids(1, 5), state=model.initial_state(1), cu_seqlens=int32(0, 2, 5))
    wider = tiny_model(hidden_size=8)
    with pytest.raises(ValueError, match="state"):
        model(some_ids(2, 5), state=wider.initial_state(2))


def test_what_was_given_is_left_as_it_was(model):
    ids, labels, mask = some_ids(2, 5), some_ids(2, 5), torch.tensor([[0, 1, 1, 1, 1], [1] * 5])
    before = [x.clone() for x in (ids, labels, mask)]
    model(ids, labels=labels, attention_mask=mask)
    assert all(map(torch.equal, before, (ids, labels, mask)))
