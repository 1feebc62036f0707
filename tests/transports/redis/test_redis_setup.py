"""Before anything flows: what is wrong is told in a sentence, a cluster is served, and the page's examples run."""

import importlib.util
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from brokers.ports import Port
from brokers.redis import Redis
from pump.errors import SetupError
from pump.subscription import Publication
from pump.transports.redis import RedisListTransport, RedisTransport
from support.redis_bench import REJECTED, ListBench, RedisBench, Sample, StreamBench, bodies, left, receive
from support.refused import refusal
from support.tree import ROOT
from support.waiting import eventually

PAGE = (ROOT / "docs" / "redis.md").read_text("utf-8")


# -- what is wrong


def test_a_wrong_password_is_told_in_a_sentence(tmp_path: Path, scheme: str, key: str) -> None:
    with Redis(password="sesame-open") as guarded:
        line = refusal(tmp_path, f"{scheme}://:wrong-sesame@127.0.0.1:{guarded.port}/0", key)

    assert re.fullmatch(r"pump: Redis at 127\.0\.0\.1:\d+ refuses the connection: .*password.*", line)
    assert "sesame" not in line


def test_a_key_of_another_kind_is_told_in_a_sentence(
    redis_server: Redis, tmp_path: Path, scheme: str, key: str
) -> None:
    with redis_server.client() as client:
        client.set(key, "taken")

    line = refusal(tmp_path, f"{scheme}://127.0.0.1:{redis_server.port}/0", key)

    assert "a key is in use for something else" in line
    assert key in line


def test_a_missing_channel_is_told_in_a_sentence_and_not_made(
    redis_server: Redis, tmp_path: Path, scheme: str, key: str
) -> None:
    line = refusal(tmp_path, f"{scheme}://127.0.0.1:{redis_server.port}/0", key, missing="validate")

    assert f"there is no '{key}', and missing='validate' does not create it" in line
    with redis_server.client() as client:
        assert not client.keys(f"*{key}*")


def test_a_server_that_is_not_there_is_told_in_a_sentence(tmp_path: Path, scheme: str, key: str) -> None:
    port = Port()

    line = refusal(tmp_path, f"{scheme}://127.0.0.1:{port.number}/0", key)

    assert f"Redis at 127.0.0.1:{port.number} cannot be reached" in line
    port.release()


# -- a cluster


class ClusterRedis(Redis):
    """A whole cluster in one server; it refuses every command with keys in two slots."""

    def __init__(self) -> None:
        super().__init__()
        self._options |= {"cluster-enabled": "yes", "cluster-port": str(self._reserve())}

    def form(self) -> None:
        """Have all slots."""
        with self.client() as client:
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            eventually(lambda: "ok" in str(client.execute_command("CLUSTER INFO")).split("cluster_slots")[0])


@pytest.fixture(scope="module")
def formed() -> Iterator[ClusterRedis]:
    with ClusterRedis() as server:
        server.form()
        yield server


@pytest.fixture(params=[StreamBench, ListBench], ids=["streams", "lists"])
def clustered(request: pytest.FixtureRequest, formed: ClusterRedis) -> Iterator[RedisBench]:
    """Either kind in turn, on a cluster without any key."""
    with ExitStack() as stack:
        bench: RedisBench = request.param(formed, stack)
        bench.client.flushall()
        yield bench


def test_whatever_a_channel_does_is_done_in_one_slot_of_a_cluster(clustered: RedisBench) -> None:
    transport = clustered.transport(prefix="{shop}:")
    for missing in ("create", "validate"):
        publication = Publication(Sample, topic=clustered.topic, missing=missing)
        transport.prepare([clustered.rules(missing=missing)], [publication])
    consumer, other = clustered.consumer(transport), clustered.consumer(transport)
    producer = transport.producer()
    clustered.stack.callback(producer.close)
    producer.send([clustered.message(body) for body in "12345"])
    producer.send([clustered.message("later")], 0.01)

    done, again, late, dead, back = receive(consumer, 5)
    consumer.extend(done)
    consumer.acknowledge(done)
    consumer.requeue(again, 0.0, 1)
    consumer.requeue(late, 0.01, 1)
    consumer.reject(dead, REJECTED)
    consumer.hand_back([back])

    assert sorted(bodies(receive(other, 4))) == ["2", "3", "5", "later"]
    assert clustered.depth("{shop}:" + clustered.dead_letter) == 1
    assert consumer.purge() == 0
    client = clustered.client
    assert len({client.execute_command("CLUSTER", "KEYSLOT", key) for key in client.keys("*")}) == 1


def test_dead_letters_in_another_slot_of_a_cluster_are_to_be_mended(clustered: RedisBench) -> None:
    with pytest.raises(SetupError, match="different slots of a cluster"):
        clustered.prepare()


# -- the page


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def loaded(server: Redis, folder: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """All the Python that the page shows, run as one module that knows this server."""
    program = folder / "shop_of_the_docs.py"
    text = "\n".join(blocks("python")).replace("localhost:6379", f"127.0.0.1:{server.port}")
    program.write_text(text.replace('"localhost", port=6379', f'"127.0.0.1", port={server.port}'), "utf-8")
    spec = importlib.util.spec_from_file_location(program.stem, program)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, program.stem, module)
    spec.loader.exec_module(module)
    return module


def test_the_examples_of_the_page_do_what_they_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []

    def says(*lines: str) -> bool:
        said.extend(capsys.readouterr().out.splitlines())
        return sorted(said) == sorted(lines)

    with Redis() as server, server.client() as client:
        shop = loaded(server, tmp_path, monkeypatch)
        with shop.dispatcher:
            eventually(lambda: says("2 × tea", "6 × cups", "1 × tea"))
            eventually(lambda: left(server, "orders") == 1)  # the list's
        with shop.listing:
            eventually(lambda: says("2 × tea", "6 × cups", "1 × tea", "1 × tea"))
        with shop.careful:
            assert client.exists("{shop}:orders")
        client.xadd("orders.dead", {"body": '{"sku": "piano", "quantity": 1}', "pump-reason": "TooLarge"})
        with shop.reading:
            eventually(lambda: "TooLarge piano" in said or says())

        for line in "".join(blocks("sh")).splitlines():
            if line.startswith("redis-cli "):
                assert client.execute_command(*line.split()[1:]) is not None
        for line in blocks("conf")[0].splitlines():
            name, value = line.split()
            client.config_set(name, value)


def test_the_page_names_every_option_of_the_urls() -> None:
    named = set(re.findall(r"\w+", " ".join(re.findall(r"^\| (`.*?`) \|", PAGE, re.MULTILINE))))
    options: Any = {*RedisTransport.options, *RedisListTransport.options}

    assert options <= named
