"""The examples of docs/nats.md run as they stand, one after the other, and do what they say."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from brokers.nats import Nats
from pump.transports.nats.transport import OPTIONS
from support.nats_wire import ACK, Wire
from support.tree import ROOT
from support.waiting import eventually

PAGE = (ROOT / "docs" / "nats.md").read_text("utf-8")


def loaded(server: Nats, folder: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """All examples of the page, as one module that uses this server."""
    program = folder / "shop.py"
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    program.write_text("\n".join(blocks).replace("nats://127.0.0.1:4222", server.url), "utf-8")
    spec = importlib.util.spec_from_file_location("shop_of_the_docs", program)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.requirement("E-17", "E-32", "E-39", "R-19")
def test_the_examples_of_the_page_do_what_they_say(
    own_nats_server: Nats,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    shop = loaded(own_nats_server, tmp_path, monkeypatch)
    said: list[str] = []

    def says(text: str) -> bool:
        said.append(capsys.readouterr().out)
        return text in "".join(said)

    with Wire(own_nats_server.url) as wire:
        assert wire.count("orders") == 1
        with shop.dispatcher:
            eventually(lambda: says("2 × tea"))
            eventually(lambda: wire.settled("orders", "orders"))
            shop.dispatcher.post(shop.PlaceOrder("piano", 1))
            shop.dispatcher.post(shop.PlaceOrder("coffee", 1))
        with shop.packing:
            eventually(lambda: len(wire.acknowledgements("packing")) == 3)

        assert wire.acknowledgements("packing") == [ACK, ACK, b'-NAK {"delay": 5000000000}']
        assert "order 2: does not fit a parcel" in caplog.text


def test_the_page_names_every_option_of_the_url() -> None:
    first_cells = " ".join(re.findall(r"^\| (`.*?`) \|", PAGE, re.MULTILINE))

    assert set(OPTIONS) <= set(re.findall(r"\w+", first_cells))
