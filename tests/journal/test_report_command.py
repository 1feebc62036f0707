"""`pump report` and `pump spark compact`: commands that need no Spark."""

import subprocess
import sys
from pathlib import Path

import pytest

from pump.command.cli import main
from support.journals import event, write

WITHOUT_SPARK = """
import sys
from pump.command.cli import main
status = main(sys.argv[1:])
assert "pyspark" not in sys.modules, "Spark was loaded"
sys.exit(status)
"""


def without_spark(*arguments: str) -> str:
    """What `pump` prints, which must not load Spark."""
    command = [sys.executable, "-c", WITHOUT_SPARK, *arguments]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.requirement("S-15")
def test_a_small_journal_is_reported_without_spark(tmp_path: Path) -> None:
    rows = [event(after=60 * n, handling_seconds=0.1) for n in range(9)]
    write(tmp_path / "journal", [*rows, event(verdict="reject", cause="KeyError: order 7", reason="unknown")])
    page = tmp_path / "page.html"
    arguments = ["report", str(tmp_path / "journal"), "--out", str(page), "--title", "Shop & Co"]

    assert without_spark(*arguments) == f"{page}: 10 events, counted by this process, 0 alerts\n"
    html = page.read_text()
    assert "<title>Shop &amp; Co</title>" in html
    titles = (
        "Received a minute",
        "Acknowledged a minute",
        "Verdicts by handler",
        "orders: handling",
        "Dead letters by",
    )
    for title in (*titles, "Dead letters by signature"):  # each is followed by its plot
        assert "<svg viewBox" in html.partition(f"<figcaption>{title}")[2].partition("</figure>")[0]
    assert "KeyError: order &lt;n&gt;" in html


@pytest.mark.requirement("S-15")
def test_a_small_journal_is_summed_up_without_spark(tmp_path: Path) -> None:
    write(tmp_path, [*(event(after=60 * n) for n in range(9)), event(verdict="reject", cause="KeyError: order 7")])

    first, *_, last = without_spark("spark", "summary", str(tmp_path)).splitlines()

    assert first == "10 events, 0 not recorded, counted by this process"
    assert last == "1 × KeyError"


def test_the_compaction_says_what_it_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(5):
        write(tmp_path, [event()], process=f"p{number}")

    assert main(["spark", "compact-journal", str(tmp_path), "--older", "0"]) == 0

    assert capsys.readouterr().out == "5 files are 1 now; 0 that were merged before are removed\n"


@pytest.mark.parametrize("command", [["report"], ["spark", "summary"], ["spark", "compact-journal"]])
def test_a_journal_that_is_not_there_is_named(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, str(tmp_path / "nowhere")]) == 2

    assert "there is no journal in" in capsys.readouterr().err
