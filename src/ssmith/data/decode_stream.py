"""Turns token ids into text one at a time, and gives out only text that later ids cannot change."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from typing import Protocol

_REPLACEMENT = "\ufffd"
# A UTF-8 character is at most 4 bytes: after that many tokens, a replacement character is there to stay.
_MAX_HELD = 4


class DecodeStream(Protocol):
    """What `Tokenizer.decode_stream` gives: push ids in, take complete text out."""

    def push(self, id: int) -> str:
        """The text that is complete now that `id` has come, often "" inside a character of several bytes."""
        ...

    def flush(self) -> str:
        """What was held back, bytes that are no character as U+FFFD; the stream then starts anew."""
        ...


class ByteDecodeStream:
    """For byte-level tokenizers: `id_bytes` gives each id's bytes, b"" for one that is not shown.

    What `push` and `flush` return, joined, is exactly `decode` of the same ids.
    """

    def __init__(self, id_bytes: Callable[[int], bytes]) -> None:
        self._id_bytes = id_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, id: int) -> str:
        return self._decoder.decode(self._id_bytes(id))

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class WindowDecodeStream:
    """For every other tokenizer: decodes a short window of ids again for each new one.

    The window opens with the ids last given out, because decoders treat the first token differently (many
    drop its space). A text that ends in U+FFFD may be half a character and is held back, up to four ids.
    """

    def __init__(self, decode: Callable[[list[int]], str], hidden: Callable[[int], bool]) -> None:
        self._decode = decode
        self._hidden = hidden
        self._shown: list[int] = []
        self._held: list[int] = []

    def push(self, id: int) -> str:
        # An id without text must not count among those held: four of them would let half a character out.
        if self._hidden(id):
            return ""
        self._held.append(id)
        text = self._new_text()
        if not text or (text.endswith(_REPLACEMENT) and len(self._held) < _MAX_HELD):
            return ""
        self._shown, self._held = self._held, []
        return text

    def flush(self) -> str:
        text = self._new_text()
        self._shown, self._held = [], []
        return text

    def _new_text(self) -> str:
        return self._decode(self._shown + self._held)[len(self._decode(self._shown)) :]
