"""A million events are summarised in a quarter of a minute. test_journal_frames.py has ten million in its long form."""

import pytest
from bench.alone import alone
from bench.bench_journal import summarised

from brokers import install


@pytest.mark.long
def test_a_million_events_are_summarised_in_time() -> None:
    install.client("pyspark", wheel="pyspark")
    install.program(install.JAVA)

    took, _, _ = alone(summarised, 1_000_000, 8)

    assert took <= 15
