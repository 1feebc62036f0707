"""The examples of docs/sqs.md run as they stand and do what they say."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from uuid import uuid4

import pytest

from brokers.sqs import Sqs, depth
from pump.transports.sqs.transport import OPTIONS
from support.tree import ROOT
from support.waiting import eventually

PAGE = (ROOT / "docs" / "sqs.md").read_text("utf-8")


@pytest.fixture
def shop(own_sqs_server: Sqs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """All that the page shows, as one module that knows this server, and queues of its own."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", own_sqs_server.endpoint)
    client = own_sqs_server.client()
    client.create_queue(QueueName="orders")
    own = uuid4().hex[:6]
    program = tmp_path / "shop.py"
    program.write_text("\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)), "utf-8")
    spec = importlib.util.spec_from_file_location(f"shop_of_the_sqs_docs_{own}", program)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def test_the_examples_of_the_page_do_what_they_say(
    shop: ModuleType, own_sqs_server: Sqs, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []

    def says(text: str) -> bool:
        said.append(capsys.readouterr().out)
        return text in "".join(said)

    with shop.dispatcher:
        eventually(lambda: says("2 × tea") and says("6 × cups") and says("1 × tea"))
    with shop.packing:
        shop.packing.post(shop.OrderPlaced("cups"))
        eventually(lambda: says("packing cups"))

    assert depth(own_sqs_server.client(), "orders") == 0
    assert depth(own_sqs_server.client(), "packing-order-placed") == 0


def test_the_page_names_every_option() -> None:
    for option in OPTIONS:
        assert f"| `{option}` |" in PAGE
