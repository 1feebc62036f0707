"""Ten million events are summarised within a minute. `pytest -m long tests/spark/test_journal_speed.py` runs it."""

import pytest
from bench.alone import alone
from bench.bench_journal import summarised

from brokers import install


@pytest.mark.long
@pytest.mark.parametrize(("events", "files", "seconds"), [(1_000_000, 8, 15), (10_000_000, 40, 60)])
def test_a_large_journal_is_summarised_in_time(events: int, files: int, seconds: float) -> None:
    install.client("pyspark", wheel="pyspark")
    install.program(install.JAVA)

    took, _ = alone(summarised, events, files)

    assert took <= seconds
