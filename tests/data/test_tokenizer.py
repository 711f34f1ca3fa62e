import json
import os
import random

import numpy as np
import pytest
import tokenizers
import torch
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from ssmith.data import Tokenizer, byte_tokenizer, shipped_corpus

TEXTS = [
    "",
    "a",
    " leading and trailing ",
    "tabs\t, CR\r, CRLF\r\n, NUL\0, DEL\x7f",
    "naïve café — €5, 日本語, 🐍👩‍👩‍👧, e\u0301, \u2028\ufeff",
    "it's  two  spaces\n\n\n1234",
    "<|endoftext|> spelt out, <|endoftext|><|end",
    "Ġ Ċ Ā ÿ £ \xad \xa0",
]


def bpe_tokenizer(**config) -> Tokenizer:
    """A small byte-level BPE with merges, as GPT-2's."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|endoftext|>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([shipped_corpus()[0].text], trainer)
    return Tokenizer(backend, config)


def sentence_tokenizer() -> Tokenizer:
    """A small vocabulary in the manner of SentencePiece: spaces as U+2581, unknown characters as bytes."""
    pieces = ["<unk>", "<s>", "▁the", "▁cat", "s", "▁", "."] + [f"<0x{b:02X}>" for b in range(256)]
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab={p: i for i, p in enumerate(pieces)}, merges=[], byte_fallback=True, unk_token="<unk>"
        )
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    backend.add_special_tokens(["<s>"])
    return Tokenizer(backend)


@pytest.mark.parametrize("text", TEXTS)
def test_byte_ids_are_the_utf8_bytes(text):
    tokenizer = byte_tokenizer()
    assert tokenizer.encode(text) == list(text.encode())
    assert tokenizer.decode(tokenizer.encode(text)) == text
    array = tokenizer.encode_array(text)
    assert (array.dtype, array.shape, array.tolist()) == (
        np.uint16,
        (len(text.encode()),),
        list(text.encode()),
    )
    array[:] = 0  # its own memory, not a view of the text


def test_every_byte_and_the_end_of_text():
    tokenizer = byte_tokenizer()
    assert (tokenizer.vocab_size, tokenizer.eos_token_id, tokenizer.eos_token) == (257, 256, "<|endoftext|>")
    assert tokenizer.decode(range(128)) == bytes(range(128)).decode()
    assert tokenizer.decode([104, 256, 105]) == "hi"
    assert tokenizer.decode([104, 256, 105], skip_special_tokens=False) == "h<|endoftext|>i"


def test_decode_takes_arrays_and_tensors():
    tokenizer = byte_tokenizer()
    assert tokenizer.decode(tokenizer.encode_array("né")) == "né"
    assert tokenizer.decode(torch.tensor(tokenizer.encode("né"))) == "né"


@pytest.mark.parametrize(
    "data", [b"\xff", b"a\xc3", b"\xe2\x82b", b"\xf0\x9f\x90", b"\x80\xbf", b"\xed\xa0\x80", b"\xc0\xaf"]
)
def test_bytes_that_are_no_utf8_become_replacement_characters(data):
    assert byte_tokenizer().decode(data) == data.decode("utf-8", "replace")


@pytest.mark.parametrize("text", TEXTS)
def test_auto_tokenizer_opens_the_folder_and_agrees(text, auto_tokenizer):
    ids = auto_tokenizer(text)["input_ids"]
    assert auto_tokenizer.decode(ids) == text
    if "<|endoftext|>" not in text:  # which transformers reads as the token, and our own encode never does
        assert ids == list(text.encode())


@pytest.fixture(scope="module")
def auto_tokenizer(tmp_path_factory):
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("tokenizer")
    byte_tokenizer().save(folder)
    return AutoTokenizer.from_pretrained(folder)


def test_auto_tokenizer_knows_the_end_of_text_and_every_id(auto_tokenizer):
    assert (len(auto_tokenizer), auto_tokenizer.vocab_size) == (257, 257)
    assert auto_tokenizer.eos_token == auto_tokenizer.bos_token == "<|endoftext|>"
    assert auto_tokenizer.eos_token_id == 256
    assert auto_tokenizer.unk_token is None
    random.seed(0)
    ours = byte_tokenizer()
    for _ in range(50):
        ids = random.choices(range(257), k=40)
        assert auto_tokenizer.decode(ids, skip_special_tokens=True) == ours.decode(ids)


def test_a_byte_tokenizer_that_transformers_saved_is_still_one(auto_tokenizer, tmp_path):
    auto_tokenizer.save_pretrained(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert again.encode("<|endoftext|>é") == list("<|endoftext|>é".encode())
    assert again.eos_token_id == 256


def test_save_and_load(tmp_path):
    folder = tmp_path / "new" / "folder"
    byte_tokenizer().save(folder)
    assert sorted(os.listdir(folder)) == ["tokenizer.json", "tokenizer_config.json"]
    assert json.loads((folder / "tokenizer_config.json").read_text()) == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": int(1e30),  # transformers' own number for "no limit"
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|endoftext|>",
        "bos_token": "<|endoftext|>",
    }
    for path in (folder, str(folder), folder / "tokenizer.json"):
        loaded = Tokenizer.load(path)
        assert (loaded.vocab_size, loaded.eos_token_id) == (257, 256)
        assert loaded.encode("<|endoftext|>") == list(b"<|endoftext|>")


def test_saving_twice_gives_the_same_bytes(tmp_path):
    byte_tokenizer().save(tmp_path / "a")
    Tokenizer.load(tmp_path / "a").save(tmp_path / "b")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_a_write_that_fails_leaves_the_old_files_and_nothing_else(tmp_path, monkeypatch):
    byte_tokenizer().save(tmp_path)
    before = {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        bpe_tokenizer().save(tmp_path)
    assert {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)} == before


def test_other_tokenizers_encode_and_decode_as_their_library_does(tmp_path):
    tokenizer = bpe_tokenizer(eos_token="</s>", pad_token="<|endoftext|>", model_max_length=77)
    assert (tokenizer.vocab_size, tokenizer.eos_token_id) == (400, 1)
    text = "It is a truth universally acknowledged, né €"
    ids = tokenizer.encode(text)
    assert len(ids) < len(text)
    assert ids == tokenizer.backend.encode(text).ids
    assert tokenizer.decode(ids) == text
    assert tokenizer.encode_array(text).dtype == np.uint16
    assert tokenizer.encode_array(text).tolist() == ids
    assert tokenizer.encode("<|endoftext|>") == [0]
    tokenizer.save(tmp_path)
    loaded = Tokenizer.load(tmp_path)
    assert loaded.encode(text) == ids
    assert loaded.config == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 77,
        "clean_up_tokenization_spaces": False,
        "eos_token": "</s>",
        "pad_token": "<|endoftext|>",
    }


def test_vocabularies_past_65536_take_int32():
    vocab = {f"w{i}": i for i in range(65_535)} | {"last": 65_535}
    assert (
        Tokenizer(tokenizers.Tokenizer(models.WordLevel(vocab, "w0"))).encode_array("last").dtype == np.uint16
    )
    vocab["past"] = 65_540  # ids may have holes: the embedding still needs a row for the largest
    tokenizer = Tokenizer(tokenizers.Tokenizer(models.WordLevel(vocab, "w0")))
    array = tokenizer.encode_array("past")
    assert (tokenizer.vocab_size, array.dtype, array.tolist()) == (65_541, np.int32, [65_540])
    assert tokenizer.eos_token_id is None


def test_truncation_and_padding_saved_with_a_tokenizer_do_not_cut_texts(tmp_path):
    backend = bpe_tokenizer().backend
    backend.enable_truncation(3)
    backend.enable_padding(length=500)
    backend.save(str(tmp_path / "tokenizer.json"))
    assert Tokenizer.load(tmp_path).encode("some longer text") == bpe_tokenizer().encode("some longer text")


def test_the_end_token_comes_from_the_config_in_either_form(tmp_path):
    backend = bpe_tokenizer().backend
    backend.save(str(tmp_path / "tokenizer.json"))
    assert Tokenizer.load(tmp_path).eos_token_id == 0
    for config, eos in [
        ({"eos_token": "</s>"}, 1),
        ({"eos_token": {"content": "</s>"}}, 1),
        ({"eos_token": None}, 0),
    ]:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        assert Tokenizer.load(tmp_path).eos_token_id == eos
    backend.save(str(tmp_path / "other.json"))
    assert Tokenizer.load(tmp_path / "other.json").config == {}


def test_errors_of_loading(tmp_path):
    def refusal(path, error=ValueError):
        with pytest.raises(error) as caught:
            Tokenizer.load(path)
        return str(caught.value)

    assert refusal(tmp_path, FileNotFoundError) == (
        f"{tmp_path}: no tokenizer.json in this folder; name a model folder or a tokenizer.json"
    )
    missing = tmp_path / "x.json"
    assert refusal(missing, FileNotFoundError) == (
        f"{missing}: no such file or folder; name a model folder or a tokenizer.json"
    )
    file, config = tmp_path / "tokenizer.json", tmp_path / "tokenizer_config.json"
    for content in ("", "{", "{}", "[1]", '{"version": "1.0"}', "caf\xe9"):
        file.write_text(content, encoding="latin1")
        message = refusal(tmp_path)
        assert message.startswith(f"{file}: not a tokenizer.json (")
        assert message.endswith("; save the tokenizer again")
    byte_tokenizer().save(tmp_path)
    config.write_text("{")
    assert refusal(tmp_path).startswith(f"{config}: not JSON (")
    config.write_text("[]")
    assert refusal(tmp_path) == f"{config}: must hold a JSON object; save the tokenizer again"
    config.write_text('{"eos_token": "</s>"}')
    assert refusal(tmp_path) == (
        f"{config}: eos_token '</s>' is not in the vocabulary; name a token of tokenizer.json"
    )


@pytest.mark.parametrize("make", [byte_tokenizer, bpe_tokenizer])
def test_half_a_surrogate_pair_is_refused(make):
    with pytest.raises(ValueError, match="surrogate") as caught:
        make().encode("ab\udce9")
    assert str(caught.value) == (
        "the text holds half a surrogate pair ('\\udce9' at character 2), which UTF-8 cannot hold; "
        "was it typed or read in another encoding?"
    )
    with pytest.raises(ValueError, match="surrogate"):
        make().encode_array("\ud800")


def test_byte_vocabularies_that_change_the_text_are_left_to_their_library():
    lower = byte_tokenizer().backend
    lower.normalizer = normalizers.Lowercase()
    assert Tokenizer(lower).encode("AB") == list(b"ab")
    spaced = byte_tokenizer().backend
    spaced.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False)
    assert Tokenizer(spaced).encode("AB") == list(b" AB")


@pytest.mark.parametrize("id", [257, -1, 2**40])
def test_ids_outside_the_vocabulary_are_refused(id):
    advice = "is not in the tokenizer's vocabulary of 257 ids; use the tokenizer that belongs to the model"
    with pytest.raises(ValueError, match="vocabulary") as caught:
        byte_tokenizer().decode([65, id])
    assert str(caught.value) == f"token id {id} at position 1 {advice}"
    with pytest.raises(ValueError, match="vocabulary") as caught:
        byte_tokenizer().decode_stream().push(id)
    assert str(caught.value) == f"token id {id} {advice}"


def test_a_stream_holds_back_characters_until_they_are_complete():
    stream = byte_tokenizer().decode_stream()
    assert [stream.push(b) for b in "né€🐍!".encode()] == ["n", "", "é", "", "", "€", "", "", "", "🐍", "!"]
    assert stream.flush() == ""
    assert [stream.push(b) for b in b"\xe2\x82"] == ["", ""]
    assert stream.flush() == "\ufffd"
    assert stream.push(65) == "A"  # it starts anew
    assert [stream.push(b) for b in b"\xe2A\xff"] == ["", "\ufffdA", "\ufffd"]


def test_a_stream_skips_or_shows_special_tokens():
    tokenizer = byte_tokenizer()
    assert tokenizer.decode_stream().push(256) == ""
    assert tokenizer.decode_stream(skip_special_tokens=False).push(256) == "<|endoftext|>"
    stream = tokenizer.decode_stream()
    assert [stream.push(id) for id in (0xC3, 256, 0xA9)] == ["", "", "é"]


@pytest.mark.parametrize("make", [byte_tokenizer, bpe_tokenizer])
@pytest.mark.parametrize("skip", [True, False])
def test_a_stream_of_any_ids_joins_to_what_decode_gives(make, skip):
    tokenizer = make()
    rng = random.Random(1)
    for _ in range(100):
        ids = rng.choices(range(tokenizer.vocab_size), k=30)
        stream = tokenizer.decode_stream(skip)
        assert "".join([*map(stream.push, ids), stream.flush()]) == tokenizer.decode(ids, skip)


def test_a_stream_of_another_kind_of_tokenizer_keeps_spaces_and_characters_whole():
    tokenizer = sentence_tokenizer()
    the, cat, s, space, dot = 2, 3, 4, 5, 6
    euro = [7 + b for b in "€".encode()]
    ids = [the, cat, 1, s, cat, space, *euro, *euro, dot]
    stream = tokenizer.decode_stream()
    pieces = [stream.push(id) for id in ids]
    assert pieces == ["the", " cat", "", "s", " cat", " ", "", "", "€", "", "", "€", "."]
    assert "".join(pieces) + stream.flush() == tokenizer.decode(ids) == "the cats cat €€."
    assert [stream.push(id) for id in [the, *euro[:2]]] == ["the", "", ""]
    assert stream.flush() == "\ufffd\ufffd"
    assert stream.push(cat) == "cat"
    assert [stream.push(id) for id in [1, 1, 1, 1, *euro]] == ["", "", "", "", "", "", "€"]


def test_a_stream_does_not_hold_back_bytes_that_are_no_character_for_ever():
    stream = sentence_tokenizer().decode_stream()
    pieces = [stream.push(7 + 0xFF) for _ in range(8)]
    assert pieces == ["", "", "", "\ufffd" * 4, "", "", "", "\ufffd" * 4]
