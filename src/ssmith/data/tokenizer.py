"""Text to token ids and back: the byte tokenizer, and any tokenizer.json, in Hugging Face's files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders

from ssmith.data.byte_level import END_OF_TEXT, byte_backend, is_byte_backend, token_bytes
from ssmith.data.decode_stream import ByteDecodeStream, DecodeStream, WindowDecodeStream

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
# The number transformers writes for "no limit": these models take any length.
_NO_LIMIT = int(1e30)


class Tokenizer:
    """A `tokenizers.Tokenizer` with what training and generating need of it.

    `vocab_size` is the largest id plus one, so an embedding of that many rows has a row for every id.
    `eos_token_id` is the id that ends a text and precedes each document in training: of the `eos_token` in
    `config` (the content of tokenizer_config.json), else of <|endoftext|>, or None where there is neither.
    No method adds special tokens. The byte tokenizer never reads "<|endoftext|>" in a text as the token;
    other tokenizers read their special tokens in a text as such, as their own library does.
    """

    vocab_size: int
    eos_token_id: int | None

    def __init__(self, backend: tokenizers.Tokenizer, config: dict[str, Any] | None = None) -> None:
        # A tokenizer.json may carry these from its last use, and would cut or pad every text in silence.
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend
        self.config = dict(config or {})
        self.vocab_size = max(backend.get_vocab().values(), default=-1) + 1
        self.eos_token = _eos_token(backend, self.config)
        self.eos_token_id = None if self.eos_token is None else backend.token_to_id(self.eos_token)
        self._is_bytes = is_byte_backend(backend)
        self._special_ids = {id for id, token in backend.get_added_tokens_decoder().items() if token.special}

    @property
    def dtype(self) -> type[np.uint16] | type[np.int32]:
        """The most compact dtype that `encode_array` can use: uint16 up to 65,536 ids, else int32."""
        return np.uint16 if self.vocab_size <= 1 << 16 else np.int32

    def encode(self, text: str) -> list[int]:
        """The ids of `text`; ValueError for a text that UTF-8 cannot hold (half a surrogate pair)."""
        data = _utf8(text)
        return list(data) if self._is_bytes else self.backend.encode(text, add_special_tokens=False).ids

    def encode_array(self, text: str) -> np.ndarray:
        """`encode` as an array of shape (ids,), uint16 where the vocabulary allows, else int32."""
        if self._is_bytes:
            return np.frombuffer(_utf8(text), dtype=np.uint8).astype(self.dtype)
        return np.array(self.encode(text), dtype=self.dtype)

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """The text of `ids` (a list, array or tensor of one dimension), bytes that are no UTF-8 as U+FFFD.

        Raises ValueError for an id that the vocabulary does not have.
        """
        checked = [self._check_id(int(id), position) for position, id in enumerate(ids)]
        return self.backend.decode(checked, skip_special_tokens=skip_special_tokens)

    def decode_stream(self, skip_special_tokens: bool = True) -> DecodeStream:
        """A stream for one sequence: `.push(id)` gives the text complete so far, `.flush()` the rest."""
        if isinstance(self.backend.decoder, decoders.ByteLevel):
            return ByteDecodeStream(
                lambda id: b"" if self._hides(id, skip_special_tokens) else self._id_bytes(id)
            )
        return WindowDecodeStream(
            lambda ids: self.decode(ids, skip_special_tokens), lambda id: self._hides(id, skip_special_tokens)
        )

    def save(self, folder: str | Path) -> None:
        """Writes tokenizer.json and tokenizer_config.json, each whole or not at all; makes the folder.

        `transformers.AutoTokenizer.from_pretrained(folder)` opens them.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        _write_whole(folder / TOKENIZER_FILE, self.backend.to_str(pretty=True) + "\n")
        config = json.dumps(self._saved_config(), indent=2, ensure_ascii=False)
        _write_whole(folder / CONFIG_FILE, config + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """The tokenizer of a folder (tokenizer.json, tokenizer_config.json if there) or of a tokenizer file.

        Raises FileNotFoundError when there is none, ValueError when a file is not what its name says.
        """
        path = Path(path)
        file = path / TOKENIZER_FILE if path.is_dir() else path
        if not file.is_file():
            wanted = f"no {TOKENIZER_FILE} in this folder" if path.is_dir() else "no such file or folder"
            raise FileNotFoundError(f"{path}: {wanted}; name a model folder or a {TOKENIZER_FILE}")
        try:
            backend = tokenizers.Tokenizer.from_buffer(file.read_bytes())
        except ValueError as error:
            raise ValueError(f"{file}: not a {TOKENIZER_FILE} ({error}); save the tokenizer again") from None
        config_file = file.with_name(CONFIG_FILE)
        config = _read_config(config_file) if file.name == TOKENIZER_FILE and config_file.is_file() else None
        try:
            return cls(backend, config)
        except ValueError as error:
            raise ValueError(f"{config_file}: {error}") from None

    def _saved_config(self) -> dict[str, Any]:
        """What a loaded tokenizer_config.json held, with what it left open filled in."""
        config: dict[str, Any] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": _NO_LIMIT,
            "clean_up_tokenization_spaces": False,
        }
        if self.eos_token is not None:
            config["eos_token"] = self.eos_token
        # <|endoftext|> stands before each document too. No unk_token: bytes leave nothing unknown.
        if self.eos_token == END_OF_TEXT:
            config["bos_token"] = END_OF_TEXT
        return config | self.config

    def _hides(self, id: int, skip_special_tokens: bool) -> bool:
        return skip_special_tokens and id in self._special_ids

    def _id_bytes(self, id: int) -> bytes:
        token = self.backend.id_to_token(self._check_id(id))
        return b"" if token is None else token_bytes(token)

    def _check_id(self, id: int, position: int | None = None) -> int:
        if not 0 <= id < self.vocab_size:
            where = "" if position is None else f" at position {position}"
            raise ValueError(
                f"token id {id}{where} is not in the tokenizer's vocabulary of {self.vocab_size} ids; "
                "use the tokenizer that belongs to the model"
            )
        return id


def byte_tokenizer() -> Tokenizer:
    """The tokenizer of 257 ids that needs no training: id b is byte b of the UTF-8 text, 256 the end."""
    return Tokenizer(byte_backend())


def _utf8(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"the text holds half a surrogate pair ({text[error.start]!a} at character {error.start}), "
            "which UTF-8 cannot hold; was it typed or read in another encoding?"
        ) from None


def _eos_token(backend: tokenizers.Tokenizer, config: dict[str, Any]) -> str | None:
    named = config.get("eos_token")
    # transformers writes a string, or an object with the string as its "content".
    named = named.get("content") if isinstance(named, dict) else named
    if named is None:
        return None if backend.token_to_id(END_OF_TEXT) is None else END_OF_TEXT
    if not isinstance(named, str) or backend.token_to_id(named) is None:
        raise ValueError(f"eos_token {named!r} is not in the vocabulary; name a token of {TOKENIZER_FILE}")
    return named


def _read_config(file: Path) -> dict[str, Any]:
    try:
        config = json.loads(file.read_bytes())
    except ValueError as error:
        raise ValueError(f"{file}: not JSON ({error}); save the tokenizer again") from None
    if not isinstance(config, dict):
        raise ValueError(f"{file}: must hold a JSON object; save the tokenizer again")
    return config


def _write_whole(path: Path, text: str) -> None:
    """Writes beside `path`, then renames: a reader sees the old file or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(text.encode("utf-8"))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
