import zlib

import numpy as np
import pytest
import tokenizers
import torch
from tokenizers import models

from ssmith.data import IGNORE_INDEX, Document, Tokenizer, TokenStream, byte_tokenizer, pack_documents


def documents(*texts: str) -> list[Document]:
    return [Document(text, f"{i}.txt") for i, text in enumerate(texts)]


def without_eos() -> Tokenizer:
    return Tokenizer(tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 1, "c": 2}, "a")))


def test_each_document_is_preceded_by_the_end_of_text():
    stream = pack_documents(documents("hé", "", "b"), byte_tokenizer(), 4)
    assert stream.tokens.tolist() == [256, 0x68, 0xC3, 0xA9, 256, 256, 0x62]
    assert stream.tokens.dtype == np.uint16
    assert (stream.pad_token_id, stream.num_targets, stream.num_rows) == (256, 6, 2)


def test_without_an_end_token_documents_are_joined_with_nothing_between():
    stream = pack_documents(documents("b", "c", "a"), without_eos(), 2)
    assert stream.tokens.tolist() == [1, 2, 0]
    assert stream.pad_token_id == 0


def test_rows_hold_the_inputs_and_the_tokens_that_follow():
    inputs, targets = TokenStream(np.arange(10, 18, dtype=np.uint16), 3, pad_token_id=9).rows([2, 0])
    assert inputs.dtype == targets.dtype == torch.int64
    assert inputs.tolist() == [[16, 17, 9], [10, 11, 12]]
    assert targets.tolist() == [[17, -100, -100], [11, 12, 13]]


def test_no_row_is_padded_when_the_length_divides_the_targets():
    stream = TokenStream(np.arange(7, dtype=np.int32), 3, pad_token_id=9)
    inputs, targets = stream.rows(range(stream.num_rows))
    assert inputs.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert targets.tolist() == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 9, 63, 64, 65])
@pytest.mark.parametrize("n", [2, 3, 8, 9, 64, 65, 66, 127, 128, 129])
def test_every_token_but_the_first_is_a_target_exactly_once(n, length):
    tokens = np.arange(1000, 1000 + n, dtype=np.uint16)
    stream = TokenStream(tokens, length, pad_token_id=7)
    inputs, targets = stream.rows(range(stream.num_rows))
    assert inputs.shape == targets.shape == (-(-(n - 1) // length), length)
    counted = targets != IGNORE_INDEX
    assert targets[counted].tolist() == tokens[1:].tolist()
    assert inputs[counted].tolist() == tokens[:-1].tolist()
    assert int(counted.sum()) == stream.num_targets
    assert counted.any(dim=1).all()  # no row is for nothing


def test_a_stream_keeps_the_compact_dtype():
    text = "x" * 1000
    assert pack_documents(documents(text), byte_tokenizer(), 64).tokens.nbytes == 2 * 1001


@pytest.mark.parametrize("index", [-1, 2])
def test_a_row_that_is_not_there(index):
    with pytest.raises(IndexError, match=rf"^row {index} of a stream of 2 rows$"):
        TokenStream(np.arange(7), 3).rows([index])


def test_errors():
    with pytest.raises(
        ValueError, match=r"^there are no documents to train on or to measure; give some text$"
    ):
        pack_documents([], byte_tokenizer(), 4)
    with pytest.raises(
        ValueError, match=r"^the text gives 1 token\(s\), and predicting takes at least 2; give more"
    ):
        pack_documents(documents(""), byte_tokenizer(), 4)
    with pytest.raises(ValueError, match=r"^the text gives 0 token\(s\)"):
        pack_documents(documents("", ""), without_eos(), 4)
    with pytest.raises(ValueError, match=r"^max_seq_len must be at least 1, got 0$"):
        pack_documents(documents("ab"), byte_tokenizer(), 0)
    with pytest.raises(ValueError, match=r"^tokens must be integers of shape \(n,\), got float32 \(3,\)$"):
        TokenStream(np.zeros(3, dtype=np.float32), 4)
    with pytest.raises(ValueError, match=r"^tokens must be integers of shape \(n,\), got int64 \(2, 2\)$"):
        TokenStream(np.zeros((2, 2), dtype=np.int64), 4)


def test_ids_outside_the_vocabulary_are_named_with_their_position():
    advice = (
        "of the data is outside the model's vocabulary of {} ids; use the tokenizer that belongs to the model"
    )
    cases = [
        (TokenStream(np.array([1, 2, 300, 400], dtype=np.uint16), 2), 300, "300 at position 2"),
        (TokenStream(np.array([1, -5, 2], dtype=np.int32), 2), 300, "-5 at position 1"),
        (TokenStream(np.array([1, 2], dtype=np.uint16), 2, pad_token_id=256), 256, "256 for padding"),
    ]
    for stream, vocab_size, what in cases:
        with pytest.raises(ValueError, match="vocabulary") as caught:
            stream.check_vocab_size(vocab_size)
        assert str(caught.value) == f"token id {what} {advice.format(vocab_size)}"
    for vocab_size in (401, 65_536, 100_000):
        cases[0][0].check_vocab_size(vocab_size)


def test_the_fingerprint_is_of_the_ids_whatever_their_dtype():
    ids = np.random.default_rng(0).integers(0, 257, (1 << 20) + 5)
    prints = {TokenStream(ids.astype(dtype), 8).fingerprint() for dtype in (np.uint16, np.int32, np.int64)}
    assert prints == {zlib.crc32(ids.astype("<i4").tobytes())}
    ids[-1] += 1
    assert TokenStream(ids, 8).fingerprint() not in prints
