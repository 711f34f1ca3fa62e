import json
from collections import Counter
from itertools import islice

import numpy as np
import pytest
import torch

from ssmith.data import IGNORE_INDEX, Batch, BatchLoader, TokenStream


def stream_of(n: int, length: int = 4) -> TokenStream:
    return TokenStream(np.arange(n, dtype=np.uint16), length)


def same(a: Batch, b: Batch) -> bool:
    return (
        torch.equal(a.ids, b.ids)
        and torch.equal(a.targets, b.targets)
        and (a.tokens, a.epoch) == (b.tokens, b.epoch)
    )


def first_tokens(batches) -> list[int]:
    return [token for batch in batches for token in batch.ids[:, 0].tolist()]


def test_figures_and_shapes_of_an_epoch():
    loader = BatchLoader(stream_of(43), batch_size=4, seed=0)
    assert (loader.rows_per_epoch, loader.batches_per_epoch, loader.tokens_per_epoch) == (11, 3, 42)
    batches = list(islice(loader, 3))
    assert [tuple(b.ids.shape) for b in batches] == [(4, 4), (4, 4), (3, 4)]
    assert [b.epoch for b in batches] == [4 / 11, 8 / 11, 1.0]
    assert next(loader).epoch == 1 + 4 / 11
    for batch in batches:
        assert batch.ids.dtype == batch.targets.dtype == torch.int64
        assert batch.ids.shape == batch.targets.shape
        assert batch.tokens == int((batch.targets != IGNORE_INDEX).sum())
    assert sum(b.tokens for b in batches) == 42


@pytest.mark.parametrize("batch_size", [1, 3, 11, 64])
@pytest.mark.parametrize("n", [2, 41, 42, 43, 45])
def test_every_token_but_the_first_is_a_target_once_in_each_epoch(n, batch_size):
    loader = BatchLoader(stream_of(n), batch_size, seed=3)
    for _ in range(3):
        seen = Counter(
            target
            for batch in islice(loader, loader.batches_per_epoch)
            for target in batch.targets.flatten().tolist()
            if target != IGNORE_INDEX
        )
        assert seen == Counter(range(1, n))


def test_epochs_have_orders_of_their_own_fixed_by_the_seed():
    def orders(seed, batch_size=5):
        loader = BatchLoader(stream_of(401), batch_size, seed)
        return [first_tokens(islice(loader, loader.batches_per_epoch)) for _ in range(2)]

    first, second = orders(1)
    assert sorted(first) == sorted(second) == list(range(0, 400, 4))
    assert len({tuple(order) for order in ([*range(0, 400, 4)], first, second, *orders(2))}) == 5
    assert orders(1) == [first, second]
    assert orders(1, batch_size=7) == [first, second]


@pytest.mark.parametrize("taken", [0, 1, 2, 3, 4, 7])
def test_a_resumed_loader_goes_on_with_the_same_batches(taken):
    loader = BatchLoader(stream_of(43), batch_size=4, seed=5)
    list(islice(loader, taken))
    state = json.loads(json.dumps(loader.state_dict()))
    assert (state["epoch"], state["position"]) == (taken // 3, 4 * (taken % 3))
    expected = list(islice(loader, 7))
    resumed = BatchLoader(stream_of(43), batch_size=4, seed=5)
    list(islice(resumed, 2))
    resumed.load_state_dict(state)
    assert all(same(a, b) for a, b in zip(islice(resumed, 7), expected, strict=True))
    assert resumed.state_dict() == loader.state_dict()


def test_a_resumed_loader_may_take_another_batch_size():
    loader = BatchLoader(stream_of(43), batch_size=4, seed=5)
    next(loader)
    resumed = BatchLoader(stream_of(43), batch_size=2, seed=5)
    resumed.load_state_dict(loader.state_dict())
    assert first_tokens(islice(resumed, 2)) == first_tokens([next(loader)])


@pytest.mark.parametrize(
    ("stream", "seed", "what"),
    [
        (stream_of(43), 6, "seed 5, this run has 6"),
        (stream_of(43, length=3), 5, "max_seq_len 4, this run has 3"),
        (TokenStream(np.arange(43)[::-1], 4), 5, "data_crc32 "),
    ],
)
def test_a_state_of_another_run_is_refused(stream, seed, what):
    state = BatchLoader(stream_of(43), batch_size=4, seed=5).state_dict()
    with pytest.raises(ValueError, match="was saved with") as caught:
        BatchLoader(stream, batch_size=4, seed=seed).load_state_dict(state)
    message = str(caught.value)
    assert message.startswith(f"the data loader's state was saved with {what}")
    assert message.endswith(
        "; resume with the same data, tokenizer, max_seq_len and seed, or start a new run"
    )


def test_a_broken_state_is_refused_and_changes_nothing():
    loader = BatchLoader(stream_of(43), batch_size=4, seed=5)
    next(loader)
    good = loader.state_dict()
    for change, message in [
        ({"position": 11}, "names epoch 0, row 11 of 11: no such place; use another checkpoint"),
        ({"position": -1}, "names epoch 0, row -1 of 11: no such place"),
        ({"epoch": -1}, "names epoch -1, row 4 of 11: no such place"),
        ({"position": 1.5, "seed": None}, "lacks a whole number for position, seed; got {"),
    ]:
        with pytest.raises(ValueError, match="state") as caught:
            loader.load_state_dict(good | change)
        assert str(caught.value).startswith(f"the data loader's state {message}")
        assert loader.state_dict() == good
    with pytest.raises(
        ValueError, match="lacks a whole number for epoch, position, seed, max_seq_len, data_crc32"
    ):
        loader.load_state_dict({})


def test_errors_come_at_once():
    stream = stream_of(43)
    with pytest.raises(ValueError, match=r"^batch_size must be at least 1, got 0$"):
        BatchLoader(stream, 0, 0)
    with pytest.raises(ValueError, match=r"^the seed must not be negative, got -1$"):
        BatchLoader(stream, 1, -1)
    with pytest.raises(ValueError, match=r"^token id 42 at position 42 of the data is outside the model's"):
        BatchLoader(stream, 1, 0, vocab_size=42)
    BatchLoader(stream, 1, 0, vocab_size=43)
