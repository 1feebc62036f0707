"""The examples of docs/mqtt.md run as they stand, one after the other, and do what they say."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from brokers.mosquitto import Mosquitto
from pump.transports.mqtt.transport import OPTIONS
from support.tree import ROOT
from support.waiting import eventually

PAGE = (ROOT / "docs" / "mqtt.md").read_text("utf-8")


def test_the_examples_of_the_page_do_what_they_say(
    own_mosquitto: Mosquitto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "shop.py"
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    here = "\n".join(blocks).replace("mqtt://localhost:1883", own_mosquitto.url)
    here = here.replace('hostname="localhost"', 'hostname="127.0.0.1"').replace(
        "port=1883", f"port={own_mosquitto.port}"
    )
    program.write_text(here, "utf-8")
    spec = importlib.util.spec_from_file_location("mqtt_shop_of_the_docs", program)
    assert spec is not None
    assert spec.loader is not None
    shop = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, shop)
    spec.loader.exec_module(shop)
    said: list[str] = []

    def says(*texts: str) -> bool:
        said.append(capsys.readouterr().out)
        return all(text in "".join(said) for text in texts)

    with shop.dispatcher:
        eventually(lambda: says("2 × tea"))


def test_the_page_names_every_option_of_the_url() -> None:
    first_cells = " ".join(re.findall(r"^\| (`.*?`) \|", PAGE, re.MULTILINE))

    assert set(OPTIONS) <= set(re.findall(r"\w+", first_cells))
