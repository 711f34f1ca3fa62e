import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ssmith.data import Document, read_documents


def write(path: Path, content: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def refusal(path, error=ValueError) -> str:
    with pytest.raises(error) as caught:
        read_documents(path)
    return str(caught.value)


def feed_stdin(monkeypatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


@pytest.mark.parametrize("name", ["a.txt", "a.py", "a"])
@pytest.mark.parametrize("as_string", [True, False])
def test_a_text_file_is_one_document_with_its_bytes_as_they_are(tmp_path, name, as_string):
    text = "one\r\ntwo\rthree\n\n né € 🐍\t \u2028\n"
    path = write(tmp_path / name, text)
    assert read_documents(str(path) if as_string else path) == [Document(text, str(path))]


def test_only_a_leading_byte_order_mark_is_dropped(tmp_path):
    path = write(tmp_path / "a.txt", b"\xef\xbb\xbfone \xef\xbb\xbf two")
    assert read_documents(path) == [Document("one \ufeff two", str(path))]


def test_a_folder_gives_its_text_files_sorted_and_leaves_hidden_ones_out(tmp_path):
    write(tmp_path / "b.md", "b")
    write(tmp_path / "a" / "z.TXT", "z")
    write(tmp_path / "a.jsonl", '{"text": "j1"}\n\n{"text": "j2"}')
    write(tmp_path / "c.csv", b"\0\xff")
    write(tmp_path / "empty.txt", "")
    write(tmp_path / ".hidden.txt", "h")
    write(tmp_path / ".git" / "d.txt", "h")
    assert read_documents(tmp_path) == [
        Document("j1", f"{tmp_path / 'a.jsonl'}:1"),
        Document("j2", f"{tmp_path / 'a.jsonl'}:3"),
        Document("z", str(tmp_path / "a" / "z.TXT")),
        Document("b", str(tmp_path / "b.md")),
    ]


def test_a_hidden_folder_named_by_the_user_is_read(tmp_path):
    path = write(tmp_path / ".notes" / "a.txt", "a")
    assert read_documents(path.parent) == [Document("a", str(path))]


def test_jsonl_lines_are_documents_and_blank_ones_are_skipped(tmp_path):
    lines = [
        '{"text": "one\\ntwo", "id": 7}',
        "",
        "   ",
        '{"text": "\u2028 raw"}\r',
        '{"text": " "}',
        '{"text": "é"}',
    ]
    path = write(tmp_path / "a.jsonl", "\ufeff" + "\n".join(lines))
    assert read_documents(path) == [
        Document("one\ntwo", f"{path}:1"),
        Document("\u2028 raw", f"{path}:4"),
        Document("é", f"{path}:6"),
    ]


def test_standard_input(monkeypatch):
    feed_stdin(monkeypatch, "\ufeffa\r\né".encode())
    assert read_documents("-") == [Document("a\r\né", "<stdin>")]


@pytest.mark.parametrize("nothing", [None, ""])
def test_no_path(nothing):
    assert refusal(nothing) == (
        "no data path given: name a text file, a folder, a .jsonl file, or - for standard input"
    )


def test_a_missing_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert refusal("x/a.txt", FileNotFoundError) == (
        f"{Path('x/a.txt')}: no such file or folder; the current folder is {os.getcwd()}"
    )
    missing = tmp_path / "a.txt"
    assert refusal(missing, FileNotFoundError) == f"{missing}: no such file or folder; check its spelling"


def test_a_folder_without_readable_files_names_what_is_there(tmp_path):
    advice = "; it must hold .txt, .md or .jsonl files, or name one text file itself"
    start = f"{tmp_path}: nothing to read in this folder, "
    write(tmp_path / ".hidden.txt", "h")
    assert refusal(tmp_path) == f"{start}it holds no files{advice}"
    for name in ("g.pdf", "f.pdf", "d/e.pdf"):
        write(tmp_path / name, "x")
    assert refusal(tmp_path) == f"{start}found only d/e.pdf, f.pdf, g.pdf{advice}"
    for i in range(4):
        write(tmp_path / f"h{i}.csv", "x")
    assert refusal(tmp_path) == f"{start}found only d/e.pdf, f.pdf, g.pdf, h0.csv, h1.csv and 2 more{advice}"


def test_a_folder_of_empty_files(tmp_path):
    write(tmp_path / "a.txt", "")
    write(tmp_path / "b.md", " \n")
    assert refusal(tmp_path) == (
        f"{tmp_path}: no text in this folder, its files (a.txt, b.md) are empty; put text into them"
    )


@pytest.mark.parametrize("content", ["", " \r\n\t\n", "\ufeff", "\ufeff \n"])
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_an_empty_file(tmp_path, name, content):
    path = write(tmp_path / name, content)
    assert refusal(path) == (
        f"{path}: no text here, it is empty or only white space; put text into it, or name another"
    )


def test_jsonl_without_any_text(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"text": ""}\n{"text": "\\n"}\n')
    assert refusal(path).startswith(f"{path}: no text here")


def test_a_binary_file_names_the_first_nul(tmp_path):
    path = write(tmp_path / "a.txt", b"text\0\xff\0")
    assert refusal(path) == (
        f"{path}: a binary file, not text (NUL byte at byte 4); give UTF-8 text or .jsonl, "
        "and take the text out of other formats first"
    )


def test_latin1_names_offset_and_line_and_the_command_that_converts(tmp_path):
    path = write(tmp_path / "my notes.txt", b"\xef\xbb\xbfone\ncaf\xe9 ")
    assert refusal(path) == (
        f"{path}: not UTF-8 (byte 0xe9 at byte 10, line 2); if it is Latin-1, convert it first: "
        f"iconv -f latin1 -t utf-8 '{path}' > converted.txt"
    )


def test_a_character_cut_off_at_the_end_is_not_utf8(tmp_path):
    path = write(tmp_path / "a.txt", "€".encode()[:2])
    assert f"{path}: not UTF-8 (byte 0xe2 at byte 0, line 1)" in refusal(path)


@pytest.mark.parametrize("codec", ["utf-16-le", "utf-16-be"])
def test_utf16(tmp_path, codec):
    path = write(tmp_path / "a.md", "\ufeffabc".encode(codec))
    assert refusal(path) == (
        f"{path}: not UTF-8 but UTF-16 (byte order mark at byte 0); convert it first: "
        f"iconv -f utf-16 -t utf-8 {path} > converted.md"
    )


def test_errors_of_standard_input_name_it(monkeypatch):
    feed_stdin(monkeypatch, b"caf\xe9")
    assert refusal("-") == (
        "<stdin>: not UTF-8 (byte 0xe9 at byte 3, line 1); if it is Latin-1, convert it first: "
        "iconv -f latin1 -t utf-8 before the pipe"
    )
    feed_stdin(monkeypatch, b"\n")
    assert refusal("-").startswith("<stdin>: no text here")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "{broken",
            "not JSON (Expecting property name enclosed in double quotes: line 1 column 2 (char 1)); ",
        ),
        ("[1, 2]", "a JSON array, not an object; "),
        ('"plain"', "a JSON string, not an object; "),
        ("null", "a JSON null, not an object; "),
        ("true", "a JSON boolean, not an object; "),
        ("1.5", "a JSON number, not an object; "),
        ('{"text": {"a": 1}}', '"text" is a JSON object, not a string; '),
    ],
)
def test_a_bad_jsonl_line_is_named(tmp_path, line, message):
    path = write(tmp_path / "a.jsonl", '{"text": "fine"}\n\n' + line)
    assert refusal(path) == f'{path}:3: {message}each line must be an object {{"text": "..."}}'


@pytest.mark.parametrize(
    ("line", "keys"),
    [
        ('{"prompt": "a", "completion": "b"}', "'prompt', 'completion'"),
        ('{"messages": []}', "'messages'"),
        ("{}", "none"),
    ],
)
def test_other_jsonl_shapes_name_their_keys(tmp_path, line, keys):
    path = write(tmp_path / "a.jsonl", line)
    assert refusal(path) == f'{path}:1: keys found: {keys}; this version reads {{"text": "..."}} only'


def test_half_a_surrogate_pair_in_jsonl(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"text": "ab\\ud83d"}')
    assert refusal(path) == (
        f"{path}:1: \"text\" holds half a surrogate pair, '\\ud83d' at character 2; "
        "UTF-8 cannot hold it, remove it"
    )
    whole = write(tmp_path / "b.jsonl", '{"text": "ab\\ud83d\\udc0d"}')
    assert read_documents(whole) == [Document("ab🐍", f"{whole}:1")]


def test_an_error_in_a_folder_names_the_file(tmp_path):
    write(tmp_path / "a.txt", "fine")
    bad = write(tmp_path / "b.txt", b"a\0")
    assert refusal(tmp_path).startswith(f"{bad}: a binary file")


def test_reading_text_imports_neither_torch_nor_numpy_nor_tokenizers():
    code = (
        "import sys, ssmith.data as d; d.split_documents(d.shipped_corpus()); d.read_documents\n"
        "print([m for m in ('torch', 'numpy', 'tokenizers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_is_there():
    import ssmith.data

    assert {name: hasattr(ssmith.data, name) for name in ssmith.data.__all__} == dict.fromkeys(
        ssmith.data.__all__, True
    )
    assert dir(ssmith.data) == sorted(ssmith.data.__all__)
    with pytest.raises(AttributeError, match=r"'ssmith\.data' has no attribute 'nothing'"):
        _ = ssmith.data.nothing
