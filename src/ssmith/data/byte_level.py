"""The byte-level alphabet: one printable character for each byte, as GPT-2's tokenizer writes them."""

from __future__ import annotations

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

END_OF_TEXT = "<|endoftext|>"


def _alphabet() -> list[str]:
    """The character of byte b at place b: itself where it prints in Latin-1, else the next from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


ALPHABET = _alphabet()
_BYTES = {character: byte for byte, character in enumerate(ALPHABET)}
BYTE_VOCABULARY = {**{character: byte for byte, character in enumerate(ALPHABET)}, END_OF_TEXT: 256}


def token_bytes(token: str) -> bytes:
    """The bytes that a byte-level token stands for; an added token of other characters stands for itself."""
    try:
        return bytes([_BYTES[character] for character in token])
    except KeyError:
        return token.encode("utf-8")


def byte_backend() -> tokenizers.Tokenizer:
    """A byte-level BPE of 257 ids without merges: id b is byte b, 256 is <|endoftext|>."""
    backend = tokenizers.Tokenizer(models.BPE(vocab=BYTE_VOCABULARY, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(END_OF_TEXT, normalized=False, special=True)])
    return backend


def is_byte_backend(backend: tokenizers.Tokenizer) -> bool:
    """Whether `backend` gives every text its UTF-8 bytes as ids, so that encoding can do without it."""
    split = backend.pre_tokenizer
    return (
        backend.get_vocab_size() == 257
        and isinstance(backend.model, models.BPE)
        and backend.get_vocab() == BYTE_VOCABULARY
        and backend.normalizer is None
        and isinstance(split, pre_tokenizers.ByteLevel)
        and not split.add_prefix_space
        and isinstance(backend.decoder, decoders.ByteLevel)
        # A merge needs a token of two bytes or more, and the vocabulary has none.
    )
