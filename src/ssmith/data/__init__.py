"""From text to batches: documents, tokenizer, split, packed rows, loader.

Names are imported when first used, so reading text needs neither torch nor numpy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ssmith.data.corpus import shipped_corpus
    from ssmith.data.decode_stream import DecodeStream
    from ssmith.data.loader import Batch, BatchLoader
    from ssmith.data.packing import IGNORE_INDEX, TokenStream, pack_documents
    from ssmith.data.split import split_documents
    from ssmith.data.text import Document, as_documents, read_documents
    from ssmith.data.tokenizer import Tokenizer, byte_tokenizer

__all__ = [
    "IGNORE_INDEX",
    "Batch",
    "BatchLoader",
    "DecodeStream",
    "Document",
    "TokenStream",
    "Tokenizer",
    "as_documents",
    "byte_tokenizer",
    "pack_documents",
    "read_documents",
    "shipped_corpus",
    "split_documents",
]

_FILES = {
    "corpus": ("shipped_corpus",),
    "decode_stream": ("DecodeStream",),
    "loader": ("Batch", "BatchLoader"),
    "packing": ("IGNORE_INDEX", "TokenStream", "pack_documents"),
    "split": ("split_documents",),
    "text": ("Document", "as_documents", "read_documents"),
    "tokenizer": ("Tokenizer", "byte_tokenizer"),
}
_FILE_OF = {name: file for file, names in _FILES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _FILE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_FILE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
