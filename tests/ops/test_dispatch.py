import pytest

from ssmith.ops.dispatch import choose


def test_auto_takes_the_first_that_serves_and_says_why_the_others_do_not():
    assert choose("op", "auto", {"cpu": None, "reference": None}) == ("cpu", "the fastest here")
    assert choose("op", "auto", {"cpu": "no", "reference": None}) == ("reference", "cpu: no")


def test_a_backend_by_name_is_taken_or_refused_with_the_reason():
    assert choose("op", "reference", {"cpu": None, "reference": None}).backend == "reference"
    with pytest.raises(ValueError, match=r"^op: backend 'cpu' cannot serve this call: no$"):
        choose("op", "cpu", {"cpu": "no", "reference": None})
    with pytest.raises(ValueError, match=r"^op: there is no 'cpu' backend; it has reference$"):
        choose("op", "cpu", {"reference": None})
    with pytest.raises(ValueError, match=r"^op: unknown backend 'gpu'; choose one of auto, cpu, reference$"):
        choose("op", "gpu", {"reference": None})


def test_nobody_serves():
    with pytest.raises(ValueError, match=r"^op: no backend can serve this call \(cpu: a; reference: b\)$"):
        choose("op", "auto", {"cpu": "a", "reference": "b"})
