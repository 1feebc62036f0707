"""The examples of docs/kafka.md run as they stand, one after the other, and do what they say."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from brokers.kafka import Kafka
from pump.transports.kafka.transport import OPTIONS
from support.tree import ROOT
from support.waiting import eventually

PAGE = (ROOT / "docs" / "kafka.md").read_text("utf-8")


def test_the_examples_of_the_page_do_what_they_say(
    kafka_broker: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "shop.py"
    text = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
    text = text.replace('"kafka://localhost:9092"', repr(kafka_broker.url)).replace(
        "localhost:9092", kafka_broker.server
    )
    program.write_text(text.replace("partitions=12", 'create="on-use"'), "utf-8")
    spec = importlib.util.spec_from_file_location("shop_of_the_docs", program)
    assert spec is not None
    assert spec.loader is not None
    shop = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, shop)
    spec.loader.exec_module(shop)

    said = ""

    def both_said() -> bool:
        nonlocal said
        said += capsys.readouterr().out
        return "2 × tea" in said and "1 × tea" in said

    with shop.careful:
        eventually(both_said, 30.0)


def test_the_page_names_every_option() -> None:
    for option in OPTIONS:
        assert f"`{option}`" in PAGE
