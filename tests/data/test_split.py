import pytest

from ssmith.data import Document, shipped_corpus, split_documents


def numbered(n: int) -> list[Document]:
    return [Document(f"text {i}", f"{i}.txt") for i in range(n)]


def held_out(n: int, fraction: float) -> list[int]:
    documents = numbered(n)
    train, validation = split_documents(documents, fraction)
    picks = [documents.index(d) for d in validation]
    assert train == [d for i, d in enumerate(documents) if i not in picks]
    return picks


@pytest.mark.parametrize(
    ("n", "fraction", "expected"),
    [
        (2, 0.05, [1]),
        (3, 0.05, [1]),
        (20, 0.05, [10]),
        (40, 0.05, [10, 30]),
        (10, 0.3, [1, 5, 8]),
        (3, 0.5, [0, 2]),
        (7, 0.4, [1, 3, 5]),
        (111, 0.05, [9, 27, 46, 64, 83, 101]),
    ],
)
def test_validation_documents_are_evenly_spaced(n, fraction, expected):
    assert held_out(n, fraction) == expected


def test_the_shipped_corpus_holds_out_six_chapters_of_both_novels():
    train, validation = split_documents(shipped_corpus())
    assert len(train) == 105
    assert [d.source for d in validation] == [
        "pride_and_prejudice.txt, chapter 10",
        "pride_and_prejudice.txt, chapter 28",
        "pride_and_prejudice.txt, chapter 47",
        "sense_and_sensibility.txt, chapter 4",
        "sense_and_sensibility.txt, chapter 23",
        "sense_and_sensibility.txt, chapter 41",
    ]


def split_text(text: str, fraction: float = 0.05) -> tuple[str, str]:
    (train,), (validation,) = split_documents([Document(text, "a.txt")], fraction)
    assert train.text + validation.text == text
    assert (train.source, validation.source) == ("a.txt", "a.txt")
    return train.text, validation.text


def test_a_single_document_gives_its_last_bytes():
    assert split_text("x" * 1000) == ("x" * 950, "x" * 50)
    assert split_text("x" * 10, 0.3) == ("x" * 7, "x" * 3)
    assert split_text("ab") == ("a", "b")


@pytest.mark.parametrize("moved", [-12, -1, 0, 1, 12])
@pytest.mark.parametrize("separator", ["\n", " "])
def test_the_cut_moves_to_a_separator_that_is_near(separator, moved):
    text = "x" * (950 + moved - 1) + separator
    text += "y" * (1000 - len(text))
    assert split_text(text)[0] == "x" * (950 + moved - 1) + separator


@pytest.mark.parametrize("moved", [-13, 13])
def test_the_cut_does_not_move_far(moved):
    text = "x" * (950 + moved - 1) + "\n"
    text += "y" * (1000 - len(text))
    assert len(split_text(text)[0]) == 950


def test_a_line_break_is_preferred_to_a_space_and_the_nearer_one_wins():
    text = "x" * 939 + "\n" + "x" * 9 + " " + "x" * 4 + "\n" + "x" * 45
    assert len(text) == 1000
    assert len(split_text(text)[0]) == 955


@pytest.mark.parametrize(
    ("character", "n", "held_out"),
    [("é", 510, 26), ("€", 335, 17), ("🐍", 251, 13)],
)
def test_the_cut_falls_between_characters(character, n, held_out):
    assert split_text(character * n) == (character * (n - held_out), character * held_out)


@pytest.mark.parametrize("text", ["", "x", "é"])
def test_a_single_document_too_small_to_split(text):
    with pytest.raises(ValueError, match="too few") as caught:
        split_documents([Document(text, "a.txt")])
    assert str(caught.value) == (
        f"a.txt: {len(text.encode())} bytes are too few to split into training and validation; "
        "give more text, or name validation data of its own"
    )


def test_errors():
    with pytest.raises(ValueError, match=r"^there are no documents to split .*; give some text$"):
        split_documents([])
    with pytest.raises(
        ValueError, match=r"^a validation fraction of 0.9 of 3 documents leaves none to train on"
    ):
        split_documents(numbered(3), 0.9)
    for fraction in (0.0, 1.0, -0.1, float("nan")):
        with pytest.raises(
            ValueError, match=rf"^the validation fraction must be between 0 and 1, got {fraction}$"
        ):
            split_documents(numbered(3), fraction)
