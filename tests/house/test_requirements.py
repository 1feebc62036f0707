"""The requirements that only a long test proves are the ones that CONTRIBUTING.md names."""

from support.requirement_rows import proofs, table
from support.tree import ROOT

HEAD = "| requirement | the long tests that prove it |\n|---|---|\n"


def test_what_only_a_long_test_proves_is_listed() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    told = page.partition(HEAD)[2].partition("\n\n")[0]

    assert f"{told}\n" == table(), "print the rows by `python -m support.requirement_rows` in tests/"


def test_the_marks_are_found() -> None:
    found = proofs()

    assert len(found) > 150
    assert any(proof.long for each in found.values() for proof in each)
    assert all(row[1] == "-" or row[2] == "-" for row in found)
