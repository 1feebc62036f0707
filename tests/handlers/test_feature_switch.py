import json
import logging
import os
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pump.attribute import declared_decisions
from pump.context import current_context
from pump.errors import DeferMessageAction, DontAckAction, RejectMessageAction
from pump.handlers import EnvironmentSwitches, FeatureSwitch, FileSwitches, Switches
from pump.subscription import Publication, Subscription
from support.pipelines import Failing, Harness
from support.pump_fixtures import Pumping
from support.pumps import Bench, Broker, Kind, Order, Outcomes, Placed, consuming_by, numbers
from support.waiting import eventually


@pytest.mark.requirement("B-12")
def test_off_and_dont_ack_leaves_the_message_until_the_switch_is_on_again(harness: Harness) -> None:
    switches = Switches({"orders.place": False})
    runs = Failing()
    run = harness.around(FeatureSwitch("orders.place", dont_ack=True), runs, switches=switches)

    with pytest.raises(DontAckAction, match=r"switch orders.place is off"):
        run("order")
    assert runs.runs == 0

    switches.set("orders.place", on=True)
    assert run("order") == "done"
    assert runs.runs == 1


@pytest.mark.requirement("B-13")
def test_off_by_default_answers_without_the_handler(harness: Harness) -> None:
    runs = Failing()
    run = harness.around(FeatureSwitch("orders.place"), runs, switches=Switches({"orders.place": False}))

    assert run() is None
    assert runs.runs == 0


def test_a_switch_that_nobody_set_is_on(harness: Harness) -> None:
    assert harness.around(FeatureSwitch("orders.place"), Failing())() == "done"
    assert harness.around(FeatureSwitch("orders.place"), Failing(), switches=Switches())() == "done"


def test_a_switch_may_be_off_unless_somebody_sets_it(harness: Harness) -> None:
    switches = Switches()
    run = harness.around(FeatureSwitch("orders.place", default=False), Failing(), switches=switches)

    assert run() is None
    switches.set("orders.place", on=True)
    assert run() == "done"
    switches.clear("orders.place")
    assert run() is None


def test_its_own_provider_comes_before_the_dispatchers(harness: Harness) -> None:
    attribute = FeatureSwitch("orders.place", provider={"orders.place": False})

    assert harness.around(attribute, Failing(), switches={"orders.place": True})() is None


def test_a_plain_function_is_a_provider(harness: Harness) -> None:
    asked: list[str] = []

    def off(name: str) -> bool:
        asked.append(name)
        return False

    attribute = FeatureSwitch("orders.place", provider=off)

    assert harness.around(attribute, Failing())() is None
    assert asked == ["orders.place"]


def test_while_the_provider_fails_its_last_answer_stands(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    answers: list[Any] = [False, OSError("gone"), OSError("gone"), True]
    run = harness.around(FeatureSwitch("orders", provider=lambda _: _next(answers)), Failing())

    assert [run(), run(), run(), run()] == [None, None, None, "done"]
    assert [record.levelname for record in caplog.records if "could not be read" in record.message] == ["WARNING"]


def test_a_provider_that_has_never_answered_gives_the_default(harness: Harness) -> None:
    run = harness.around(FeatureSwitch("orders", provider=lambda _: _next([OSError()])), Failing())

    assert run() == "done"


def test_a_provider_may_decide(harness: Harness) -> None:
    run = harness.around(FeatureSwitch("orders", provider=lambda _: _next([DeferMessageAction()])), Failing())

    with pytest.raises(DeferMessageAction):
        run()


def test_a_change_is_told_once(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    switches = Switches()
    run = harness.around(FeatureSwitch("orders"), Failing(), switches=switches)

    for on in (True, False, False, True, True):
        switches.set("orders", on=on)
        run()

    assert [record.message for record in caplog.records if "Switch" in record.message] == [
        (
            "Switch orders is off: messages are acknowledged without being handled "
            "(message m-1, channel orders, handler Handler)"
        ),
        "Switch orders is on (message m-1, channel orders, handler Handler)",
    ]
    assert [(event, fields["on"]) for event, fields in harness.told] == [("switch", False), ("switch", True)]


def test_a_switch_that_is_off_from_the_start_is_told(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    with pytest.raises(DontAckAction):
        harness.around(FeatureSwitch("orders", dont_ack=True), Failing(), switches={"orders": False})()

    assert "off: messages are not acknowledged" in caplog.text


def test_of_several_threads_that_see_a_change_one_tells(caplog: pytest.LogCaptureFixture) -> None:
    together = threading.Barrier(8)

    def off(_: str) -> bool:
        together.wait(5)
        return False

    harness = Harness("blocking")
    run = harness.around(FeatureSwitch("orders", provider=off), Failing())
    threads = [threading.Thread(target=run, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)

    assert [record.levelname for record in caplog.records] == ["WARNING"]


# -- in a pump


def levels(bench: Bench, text: str) -> list[str]:
    return [record.levelname for record in bench.logs if text in record.getMessage()]


@pytest.mark.requirement("B-12")
def test_off_and_dont_ack_rests_the_channel_until_it_is_on_again(pumping: Pumping, kind: Kind) -> None:
    bench = pumping(Outcomes(None), FeatureSwitch("tea", dont_ack=True), switches={"tea": False})
    bench.post_orders(*range(1, 21))

    bench.run(seconds=600)

    nacks, receives = len(bench.nacked), len(bench.broker.named("receive"))
    assert nacks <= kind.options.get("in_flight", 1)
    assert receives <= 2
    assert len(bench.pending) == 20
    assert bench.broker.bus.locked("Order") == 0
    assert bench.unacceptable == 0
    assert levels(bench, "Switch tea is off: messages are not acknowledged") == ["WARNING"]
    assert set(levels(bench, "Not acknowledging")) <= {"DEBUG"}

    bench.switches.set("tea", on=True)
    bench.run()

    assert sorted(numbers(bench.acknowledged)) == list(range(1, 21))
    assert len(bench.nacked) == nacks
    assert levels(bench, "Switch tea is on") == ["INFO"]


@pytest.mark.parametrize(
    "capabilities", [{"nack": "holds"}, {"nack": "holds", "blocks": "nothing"}, {"blocks": "nothing"}], ids=str
)
@pytest.mark.parametrize("ordered", [False, True])
def test_it_comes_again_in_order_and_uncounted(
    kind: Kind, benches: ExitStack, capabilities: dict[str, Any], *, ordered: bool
) -> None:
    body, switched = Outcomes(*[ValueError()] * 2, None), FeatureSwitch("tea", dont_ack=True)
    options = {**kind.options, "ordered": ordered, "requeue_backoff": (0, 0)}
    bench = benches.enter_context(Bench(kind.handler(body, switched), capabilities=capabilities, **options))
    for number in range(1, 4):
        bench.post(Order(number), key="tea")

    for _ in range(5):  # more often than there are attempts
        bench.switches.set("tea", on=False)
        bench.run(seconds=30)
        bench.switches.set("tea", on=True)
        bench.run(turns=1)
    bench.run()

    assert sorted(numbers(bench.acknowledged)) == [1, 2, 3]
    assert not ordered or numbers(bench.acknowledged) == [1, 2, 3]
    assert bench.dead_letters == []


def test_it_may_be_turned_off_again_and_again(pumping: Pumping) -> None:
    bench = pumping(Outcomes(None), FeatureSwitch("tea", dont_ack=True))

    for number in range(1, 5):
        bench.switches.set("tea", on=False)
        bench.post_orders(number)
        bench.run(seconds=60)
        assert len(bench.acknowledged) == number - 1
        bench.switches.set("tea", on=True)
        bench.run()

    assert numbers(bench.acknowledged) == [1, 2, 3, 4]
    assert levels(bench, "Switch tea is") == ["WARNING", "INFO"] * 4


def test_a_channel_with_other_requests_does_not_rest(kind: Kind, benches: ExitStack) -> None:
    switched = kind.handler(Outcomes(None), FeatureSwitch("tea", dont_ack=True))
    other = kind.handler(Outcomes(None), takes=Placed)
    both = Subscription(
        lambda message: Order if message.header.type == "Order" else Placed,
        topic="both",
        channel="both",
        **kind.options,
    )
    posted = [Publication(each, topic="both") for each in (Order, Placed)]
    bench = benches.enter_context(
        Bench(
            switched,
            other,
            subscriptions=[both],
            publications=posted,
            switches={"tea": False},
        )
    )
    bench.post(Order(1))
    bench.run(seconds=10)
    bench.post(Placed(1))
    bench.run(seconds=10)

    assert len(bench.nacked) >= 10
    assert bench.unacceptable == 0
    assert levels(bench, "Switch tea is off") == ["WARNING"]
    assert set(levels(bench, "Not acknowledging")) == {"DEBUG"}


def test_a_channel_beside_it_goes_on(kind: Kind, benches: ExitStack) -> None:
    switched = kind.handler(Outcomes(None), FeatureSwitch("tea", dont_ack=True))
    other = kind.handler(Outcomes(None), takes=Placed)
    bench = benches.enter_context(Bench(switched, other, switches={"tea": False}, **kind.options))
    bench.post_orders(1, 2)
    for number in range(5):
        bench.post(Placed(number))

    bench.run()
    assert len(bench.acknowledged) == 5
    bench.run(seconds=10)
    assert len(bench.pending) == 2
    bench.switches.set("tea", on=True)
    bench.run()

    assert len(bench.acknowledged) == 7


def test_a_provider_that_decides_while_the_channel_rests_is_asked_by_the_next_message(pumping: Pumping) -> None:
    answers: list[Any] = [False, RejectMessageAction("closed"), RejectMessageAction("closed"), True]
    bench = pumping(Outcomes(None), FeatureSwitch("tea", dont_ack=True, provider=lambda _: _next(answers)))
    bench.post_orders(1)

    bench.run(seconds=60)

    assert [each.reason for each in bench.dead_letters] == ["closed"]


def test_a_provider_that_needs_the_message_rests_no_channel_for_ever(pumping: Pumping) -> None:
    off = {"acme"}
    bench = pumping(
        Outcomes(None),
        FeatureSwitch("tea", dont_ack=True, provider=lambda _: current_context().headers["tenant"] not in off),
    )
    bench.post(Order(1), headers={"tenant": "acme"})
    bench.run(seconds=10)
    assert len(bench.nacked) >= 5

    off.clear()
    bench.run(seconds=10)

    assert numbers(bench.acknowledged) == [1]


def test_a_stop_ends_the_rest_at_once(kind: Kind) -> None:
    switches = Switches({"tea": False})
    broker = Broker()
    handler = kind.handler(Outcomes(None), FeatureSwitch("tea", dont_ack=True, provider=switches))
    dispatcher = consuming_by(kind, handler, broker, performers=3, receive_timeout=60, dont_ack_delay=60)

    with dispatcher:
        dispatcher.post_many([Order(number) for number in range(10)])
        eventually(lambda: broker.named("nack"))

    assert broker.bus.pending("orders") == 10


def test_its_performers_rest_together(kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pump")
    switches = Switches({"tea": False})
    broker, handled = Broker(), Outcomes(None)
    handler = kind.handler(handled, FeatureSwitch("tea", dont_ack=True, provider=switches))
    dispatcher = consuming_by(kind, handler, broker, performers=3, receive_timeout=0.01, dont_ack_delay=0.01)

    with dispatcher:
        dispatcher.post_many([Order(number) for number in range(10)])
        eventually(lambda: len(broker.named("nack")) >= 3)
        nacks = len(broker.named("nack"))
        switches.set("tea", on=True)
        eventually(lambda: handled.runs == 10)

    assert nacks <= 3 * kind.options.get("in_flight", 1)
    told = [record.levelname for record in caplog.records if "Switch tea" in record.getMessage()]
    assert told == ["WARNING", "INFO"]


def test_it_declares_the_decision_that_it_may_raise() -> None:
    assert declared_decisions(FeatureSwitch("a", dont_ack=True)(lambda _: None)) == {DontAckAction}
    assert declared_decisions(FeatureSwitch("a")(lambda _: None)) == frozenset()


# -- providers


def test_switches_can_be_set_from_many_threads() -> None:
    switches = Switches({"first": True})

    threads = [threading.Thread(target=switches.set, args=(str(n),), kwargs={"on": True}) for n in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(switches) == 51
    assert set(switches) == {"first", *map(str, range(50))}
    assert switches["first"] is True
    assert switches.get("absent") is None


def test_environment_switches_are_read_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    switches = EnvironmentSwitches()
    monkeypatch.delenv("PUMP_SWITCH_ORDERS_PLACE", raising=False)
    assert switches("orders.place") is None

    for text, on in (("off", False), ("ON", True), (" 0 ", False), ("yes", True), ("", None)):
        monkeypatch.setenv("PUMP_SWITCH_ORDERS_PLACE", text)
        assert switches("orders.place") is on


def test_environment_switches_with_a_prefix_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_ORDERS_PLACE", "false")

    assert EnvironmentSwitches("SHOP_")("orders-place") is False


def test_an_environment_switch_that_makes_no_sense_is_not_set_and_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PUMP_SWITCH_ORDERS", "perhaps")
    switches = EnvironmentSwitches()

    assert [switches("orders"), switches("orders")] == [None, None]
    assert caplog.text.count("neither on nor off") == 1


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"orders": False, "stock": True, "mail": "off"}),
        "# switches\n\norders = off\nstock=true  # for now\nmail=0\n",
    ],
)
def test_file_switches_are_json_or_lines(tmp_path: Path, text: str) -> None:
    file = tmp_path / "switches"
    file.write_text(text)
    switches = FileSwitches(file)

    assert [switches(name) for name in ("orders", "stock", "mail", "absent")] == [False, True, False, None]


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "switches"
    switches = FileSwitches(str(file))

    assert switches("orders") is None
    _write(file, "orders=off", 1)
    assert switches("orders") is False
    _write(file, "orders=yes", 2)
    assert switches("orders") is True
    file.unlink()
    assert switches("orders") is None


def test_an_unchanged_file_is_not_read_again(tmp_path: Path) -> None:
    file = tmp_path / "switches"
    _write(file, "orders=off", 1)
    switches = FileSwitches(file)
    switches("orders")

    file.write_text("orders=yes")
    os.utime(file, (1, 1))

    assert switches("orders") is False


@pytest.mark.parametrize("broken", ["orders=perhaps", "{'orders': 1", "orders", '{"orders": null}', b"\xff\xfe\xfa"])
def test_a_broken_file_keeps_what_it_said_last_and_is_told_once(
    tmp_path: Path, broken: str | bytes, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "switches"
    _write(file, "orders=off", 1)
    switches = FileSwitches(file)
    assert switches("orders") is False

    _write(file, broken, 2)
    assert [switches("orders"), switches("orders")] == [False, False]
    assert caplog.text.count("its last content is used") == 1

    _write(file, "orders=on", 3)
    assert switches("orders") is True


def test_an_unreadable_file_keeps_what_it_said_last(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "switches"
    _write(file, "orders=off", 1)
    switches = FileSwitches(file)
    switches("orders")
    file.unlink()
    file.mkdir()

    assert switches("orders") is False
    assert "its last content is used" in caplog.text


def _write(file: Path, text: str | bytes, time: int) -> None:
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    os.utime(file, (time, time))


def _next(answers: list[Any]) -> bool:
    answer = answers.pop(0)
    if isinstance(answer, Exception):
        raise answer
    return bool(answer)
