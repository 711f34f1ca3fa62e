import hashlib
from itertools import groupby
from pathlib import Path

import ssmith.data.corpus
from ssmith.data import Document, shipped_corpus
from ssmith.data.corpus import CORPUS_FILES, split_chapters

FOLDER = Path(ssmith.data.corpus.__file__).with_name("corpus")


def novel(document: Document) -> str:
    return document.source.split(",")[0]


def test_the_documents_of_each_novel_are_its_file_to_the_byte():
    joined = {
        name: "".join(d.text for d in group).encode() for name, group in groupby(shipped_corpus(), key=novel)
    }
    assert joined == {name: (FOLDER / name).read_bytes() for name in CORPUS_FILES}
    assert {name: len(data) for name, data in joined.items()} == {
        "pride_and_prejudice.txt": 684768,
        "sense_and_sensibility.txt": 673688,
    }


def test_the_files_are_the_ones_the_figures_were_taken_on():
    digests = [hashlib.sha256((FOLDER / name).read_bytes()).hexdigest()[:16] for name in CORPUS_FILES]
    assert digests == ["dfc684d4f857fa93", "105e1651fe93bed7"]


def test_a_document_is_a_chapter():
    corpus = shipped_corpus()
    expected = [f"{CORPUS_FILES[0]}, chapter {i}" for i in range(1, 62)]
    expected += [f"{CORPUS_FILES[1]}, chapter {i}" for i in range(1, 51)]
    assert [d.source for d in corpus] == expected
    assert corpus[0].text.startswith(
        "PRIDE AND PREJUDICE\n\nBy Jane Austen\n\n\n\nChapter 1\n\n\nIt is a truth"
    )
    assert corpus[1].text.startswith("Chapter 2\n")
    assert corpus[61].text.startswith("SENSE AND SENSIBILITY")
    assert corpus[62].text.startswith("CHAPTER 2\n")


def test_chapters_are_cut_at_headings_on_a_line_of_their_own():
    text = "Title\nsee Chapter 9\nChapter 1\none\nChapter 2 is not here\nCHAPTER 2  \ntwo\n\nChapter 3"
    assert split_chapters(text, "b.txt") == [
        Document("Title\nsee Chapter 9\nChapter 1\none\nChapter 2 is not here\n", "b.txt, chapter 1"),
        Document("CHAPTER 2  \ntwo\n\n", "b.txt, chapter 2"),
        Document("Chapter 3", "b.txt, chapter 3"),
    ]
    assert split_chapters("no heading", "b.txt") == [Document("no heading", "b.txt")]
