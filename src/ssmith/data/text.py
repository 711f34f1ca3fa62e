"""Reads text from files, folders, jsonl and standard input into documents, byte for byte."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TEXT_SUFFIXES = (".txt", ".md")
JSONL_SUFFIX = ".jsonl"
STDIN = "-"
_STDIN_SOURCE = "<stdin>"
_UTF8_BOM = "\ufeff"
_UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True)
class Document:
    """One piece of text that a model reads on its own, and where it came from ("a.txt", "b.jsonl:12")."""

    text: str
    source: str


def as_documents(data: str | Path | Sequence[Document | str]) -> list[Document]:
    """Documents from a path (see `read_documents`), or from documents and texts as they are."""
    if isinstance(data, str | Path):
        return read_documents(data)
    if not isinstance(data, Sequence) or not all(isinstance(d, Document | str) for d in data):
        raise ValueError(f"data must be a path, or a list of texts or Documents, got {type(data).__name__}")
    return [d if isinstance(d, Document) else Document(d, f"text {i}") for i, d in enumerate(data)]


def read_documents(path: str | Path) -> list[Document]:
    """The documents at `path`: a UTF-8 text file, a `.jsonl` of {"text"}, a folder, or "-" (stdin).

    A text file is one document, whatever its suffix; a jsonl line is one document; a folder gives every
    *.txt, *.md and *.jsonl below it, sorted by path, hidden ones left out. Line ends stay as they are in the
    file; a leading UTF-8 byte order mark is dropped. Blank jsonl lines and texts of white space only are
    skipped, and so are empty files in a folder that holds text elsewhere.

    Raises FileNotFoundError for a missing path; ValueError for a folder with nothing to read, and for a file
    that is empty, binary, not UTF-8, or not jsonl of that shape. The message names the file and the place.
    """
    if path is None or path == "":
        raise ValueError(
            "no data path given: name a text file, a folder, a .jsonl file, or - for standard input"
        )
    if str(path) == STDIN:
        return _nonempty([_text_document(sys.stdin.buffer.read(), _STDIN_SOURCE)], _STDIN_SOURCE)
    path = Path(path)
    if not path.exists():
        hint = "check its spelling" if path.is_absolute() else f"the current folder is {os.getcwd()}"
        raise FileNotFoundError(f"{path}: no such file or folder; {hint}")
    if path.is_dir():
        return _read_folder(path)
    return _nonempty(_read_file(path), str(path))


def _read_folder(folder: Path) -> list[Document]:
    visible, readable = [], []
    for path in sorted(folder.rglob("*"), key=lambda p: p.relative_to(folder).as_posix()):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if hidden or not path.is_file():
            continue
        visible.append(path)
        if path.suffix.lower() in (*TEXT_SUFFIXES, JSONL_SUFFIX):
            readable.append(path)
    if not readable:
        raise ValueError(
            f"{folder}: nothing to read in this folder, {_found(folder, visible)}; "
            "it must hold .txt, .md or .jsonl files, or name one text file itself"
        )
    documents = [document for path in readable for document in _read_file(path)]
    documents = [document for document in documents if not _blank(document.text)]
    if not documents:
        names = ", ".join(path.relative_to(folder).as_posix() for path in readable[:5])
        raise ValueError(
            f"{folder}: no text in this folder, its files ({names}) are empty; put text into them"
        )
    return documents


def _found(folder: Path, files: list[Path]) -> str:
    """What a folder without readable files holds, in words short enough for one message."""
    if not files:
        return "it holds no files"
    names = ", ".join(path.relative_to(folder).as_posix() for path in files[:5])
    return f"found only {names}" + (f" and {len(files) - 5} more" if len(files) > 5 else "")


def _read_file(path: Path) -> list[Document]:
    data = path.read_bytes()
    if path.suffix.lower() == JSONL_SUFFIX:
        return _jsonl_documents(_decode(data, str(path)), str(path))
    return [_text_document(data, str(path))]


def _text_document(data: bytes, source: str) -> Document:
    return Document(_decode(data, source), source)


def _nonempty(documents: list[Document], source: str) -> list[Document]:
    """The documents with text in them; ValueError when none has any."""
    kept = [document for document in documents if not _blank(document.text)]
    if not kept:
        raise ValueError(
            f"{source}: no text here, it is empty or only white space; put text into it, or name another"
        )
    return kept


def _blank(text: str) -> bool:
    return not text or text.isspace()


def _decode(data: bytes, source: str) -> str:
    """The text of UTF-8 `data` without a byte order mark; ValueError names the offset of what is not text."""
    if data.startswith(_UTF16_BOMS):
        raise ValueError(
            f"{source}: not UTF-8 but UTF-16 (byte order mark at byte 0); "
            f"convert it first: {_iconv('utf-16', source)}"
        )
    nul = data.find(b"\0")
    if nul >= 0:
        raise ValueError(
            f"{source}: a binary file, not text (NUL byte at byte {nul}); give UTF-8 text or .jsonl, "
            "and take the text out of other formats first"
        )
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{source}: not UTF-8 (byte 0x{data[error.start]:02x} at byte {error.start}, line {line}); "
            f"if it is Latin-1, convert it first: {_iconv('latin1', source)}"
        ) from None
    return text.removeprefix(_UTF8_BOM)


def _iconv(encoding: str, source: str) -> str:
    if source == _STDIN_SOURCE:
        return f"iconv -f {encoding} -t utf-8 before the pipe"
    return f"iconv -f {encoding} -t utf-8 {shlex.quote(source)} > converted{Path(source).suffix}"


def _jsonl_documents(text: str, source: str) -> list[Document]:
    documents = []
    # Not splitlines(): JSON strings may hold U+2028 and its like as they are.
    for number, line in enumerate(text.split("\n"), start=1):
        if not _blank(line):
            place = f"{source}:{number}"
            documents.append(Document(_jsonl_text(line, place), place))
    return documents


def _jsonl_text(line: str, place: str) -> str:
    """The "text" of one jsonl line; ValueError when it is not an object with a string of that name."""
    wanted = 'each line must be an object {"text": "..."}'
    try:
        record = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{place}: not JSON ({error}); {wanted}") from None
    if not isinstance(record, dict):
        raise ValueError(f"{place}: a JSON {_json_type(record)}, not an object; {wanted}")
    if "text" not in record:
        keys = ", ".join(repr(key) for key in record) or "none"
        raise ValueError(f'{place}: keys found: {keys}; this version reads {{"text": "..."}} only')
    text = record["text"]
    if not isinstance(text, str):
        raise ValueError(f'{place}: "text" is a JSON {_json_type(text)}, not a string; {wanted}')
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f'{place}: "text" holds half a surrogate pair, {text[error.start]!a} at character {error.start}; '
            "UTF-8 cannot hold it, remove it"
        ) from None
    return text


def _json_type(value: object) -> str:
    names = {list: "array", dict: "object", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")
