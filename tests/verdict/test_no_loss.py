"""Whatever goes wrong, every message is acknowledged after a run, still there, or a dead letter for a reason."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from support.fates import ERRORS, Fate, Outcome, Settings
from support.world import World

MAX = 3
"""The subscription's max_attempts, by default."""

ENDINGS = ["return"] * 6 + [each for each in ERRORS if each != "the set-up is wrong"] + ["error", "defer", "dont_ack"]
MEANWHILE = st.lists(
    st.builds(Outcome, ends=st.sampled_from(["return", "error", "defer", "dont_ack"])), max_size=2
).map(tuple)
OUTCOMES = st.lists(
    st.builds(
        Outcome,
        ends=st.sampled_from(ENDINGS),
        takes=st.sampled_from([0.0, 0.0, 1.0, 12.0, 40.0, 70.0]),
        gives_way=st.integers(0, 4),
        meanwhile=MEANWHILE,
    ),
    min_size=1,
    max_size=5,
)
CALLS = ["open", "receive", "nack", "hand_back", "extend", "close"] + ["acknowledge", "requeue", "reject"] * 3


@st.composite
def worlds(draw: Any) -> Settings:
    pump = draw(st.sampled_from(["reactor", "proactor", "concurrent"]))
    ordered = draw(st.booleans())
    return Settings(
        pump=pump,
        style=draw(st.sampled_from(["own", "counting", "copying", "uncounted"])),
        leases=draw(st.booleans()),
        holds=draw(st.booleans()),
        hands_back_all=draw(st.booleans()),
        performers=1 if ordered else draw(st.integers(1, 3)),
        in_flight=draw(st.integers(2, 4)) if pump == "concurrent" else 1,
        ordered=ordered,
        may_block=draw(st.booleans()),
        renew=draw(st.booleans()),
        on_unhandled=draw(st.sampled_from(["retry", "retry", "retry", "dont_ack", "reject", "acknowledge", "nak"])),
        buffer_size=draw(st.sampled_from([1, 3, 8])),
        remembers=draw(st.booleans()),
    )


class NoLoss(RuleBasedStateMachine):
    """Posts messages, lets pumps run, and breaks what can break."""

    world: World

    @initialize(chosen=worlds(), count=st.integers(1, 6), grown=st.booleans(), killer=st.booleans())
    def open(self, chosen: Settings, count: int, *, grown: bool, killer: bool) -> None:
        if chosen.on_unhandled == "dont_ack":
            chosen.may_block = True
        self.world = World(chosen)
        self.posted = 0
        if grown:
            self.post(4)
            for which in range(chosen.performers):
                self.world.process.step(which, [Outcome()] * 4)
        self.post(count)
        by_count = chosen.style != "uncounted" and not chosen.may_block and chosen.performers == 1
        if killer and (chosen.remembers or by_count):
            self.world.post("killer")

    @rule(count=st.integers(1, 4))
    def post(self, count: int) -> None:
        for _ in range(count):
            self.posted += 1
            self.world.post(f"m{self.posted}")

    @rule(poisoned=st.booleans())
    def post_one_that_always_fails(self, *, poisoned: bool) -> None:
        self.posted += 1
        self.world.post(f"{'p' if poisoned else 'm'}{self.posted}")

    @rule(which=st.integers(0, 2), outcomes=OUTCOMES)
    def a_pump_runs(self, which: int, outcomes: list[Outcome]) -> None:
        if not self.world.settings.may_block:  # an undeclared refusal is told, and costs what it costs
            outcomes = [each for each in outcomes if "dont_ack" not in each.ends] or [Outcome()]
        self.world.process.step(which, outcomes)

    @rule(which=st.integers(0, 2), outcomes=OUTCOMES)
    def a_pump_runs_again(self, which: int, outcomes: list[Outcome]) -> None:
        self.a_pump_runs(which, outcomes)

    @rule(delay=st.sampled_from([0.5, 2.0, 20.0, 31.0, 100.0]))
    def time_passes(self, delay: float) -> None:
        self.world.clock.advance(delay)

    @rule(which=st.integers(0, 2))
    def the_process_is_killed_in_a_run(self, which: int) -> None:
        if self.world.settings.performers == 1 or self.world.settings.remembers:
            self.world.process.step(which, [Outcome(), Outcome(ends="crash")])

    @rule()
    def the_process_is_killed_between_two_runs(self) -> None:
        self.world.calm = False
        self.world.process.die()
        self.world.crashed()

    @rule()
    def the_process_is_restarted_in_good_order(self) -> None:
        self.world.calm = False
        self.world.restart()

    @rule(which=st.integers(0, 2), back=st.booleans())
    def a_pump_is_paused_or_goes_on(self, which: int, *, back: bool) -> None:
        performers = self.world.process.performers
        channel = performers[which % len(performers)].channel
        if back:
            channel.resume()
        else:
            channel.pause()

    @rule(which=st.integers(0, 2))
    def the_set_up_is_found_to_be_wrong(self, which: int) -> None:
        self.world.process.step(which, [Outcome(ends="the set-up is wrong")])

    @rule(call=st.sampled_from(CALLS), how=st.lists(st.sampled_from(["before", "after"]), min_size=1, max_size=4))
    def a_call_is_going_to_fail(self, call: str, how: list[str]) -> None:
        self.world.failures.setdefault(call, []).extend(how)

    @rule(which=st.integers(0, 2), how=st.sampled_from(["before", "after"]))
    def what_waits_cannot_go_back_before_a_refused_message(self, which: int, how: str) -> None:
        self.post(2)
        self.world.failures["hand_back"] = [how]
        self.a_pump_runs(which, [Outcome(), Outcome(ends="dont_ack"), Outcome()])

    @rule(lasts=st.sampled_from([5.0, 50.0, 500.0]))
    def dead_letters_cannot_be_stored(self, lasts: float) -> None:
        self.world.dead_letters_down_until = self.world.clock.monotonic() + lasts

    @precondition(lambda self: self.world.settings.leases)
    @rule(lasts=st.sampled_from([10.0, 60.0]))
    def leases_cannot_be_renewed(self, lasts: float) -> None:
        self.world.renewal_down_until = self.world.clock.monotonic() + lasts

    # -- what always holds

    @invariant()
    def nothing_was_done_that_must_not_be(self) -> None:
        assert not hasattr(self, "world") or self.world.wrong == []

    @invariant()
    def every_message_is_in_one_place(self) -> None:
        if not hasattr(self, "world"):
            return
        dead, acknowledged = self.world.dead, self.world.acknowledged
        assert sorted(dead) == sorted(name for name, fate in self.world.fates.items() if fate.rejection is not None)
        assert not set(dead) & set(acknowledged)
        assert self.world.left + len(dead) + len(acknowledged) == len(self.world.fates)

    @invariant()
    def every_end_has_its_reason(self) -> None:
        if not hasattr(self, "world"):
            return
        for name, fate in self.world.fates.items():
            if fate.rejection is not None:
                self.was_rightly_given_up(name, fate)

    def was_rightly_given_up(self, name: str, fate: Fate) -> None:
        chosen, rejection = self.world.settings, fate.rejection
        assert rejection is not None
        match rejection.reason:
            case "refused":
                assert "reject" in fate.decisions
            case "odd":
                assert "invalid" in fate.decisions
            case "attempts exhausted":
                counted = fate.failed + len(fate.stood)
                known = counted if chosen.may_block else counted + fate.unexplained
                known += fate.crashes if chosen.remembers else 0
                assert counted
                assert rejection.attempts >= MAX
                assert known >= MAX or fate.forgotten
            case "process died":
                assert chosen.remembers or not chosen.may_block
                assert chosen.performers > 1 or fate.crashes or fate.forgotten, f"{name} is innocent"
            case reason:
                assert chosen.on_unhandled == "reject", reason
                assert fate.failed

    @invariant()
    def where_nothing_else_goes_wrong_nothing_fails_too_often_or_out_of_order(self) -> None:
        if not hasattr(self, "world") or not self.world.calm:
            return
        if self.world.settings.on_unhandled == "retry":
            assert all(fate.failed <= MAX for fate in self.world.fates.values())
        if self.world.settings.ordered:
            order = list(dict.fromkeys(self.world.starts))
            assert order == [name for name in self.world.fates if name in order]

    @invariant()
    def where_only_processes_die_nothing_fails_too_often(self) -> None:
        """Where the broker keeps the attempts, that is: what is held here is forgotten with its process."""
        if not hasattr(self, "world") or not self.world.steady:
            return
        chosen = self.world.settings
        keeps = chosen.style in {"own", "copying"} and not chosen.holds and not chosen.ordered
        if keeps and chosen.on_unhandled == "retry":
            assert all(fate.failed <= MAX for fate in self.world.fates.values())

    # -- the end

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            self.everything_comes_to_its_end()
            self.every_message_is_in_one_place()
            self.every_end_has_its_reason()
        finally:
            self.world.close()

    def everything_comes_to_its_end(self) -> None:
        world = self.world
        world.healed = True
        world.failures.clear()
        world.dead_letters_down_until = world.renewal_down_until = 0.0
        for performer in world.process.performers:
            performer.channel.resume()
        for turn in range(300):
            if not world.left:
                break
            world.process.step(turn, [Outcome()] * 4)
            world.clock.advance(3.0)
        assert world.left == 0, f"{world.left} messages are stuck"
        for name, fate in world.fates.items():
            if name.startswith("k"):
                assert fate.rejection is not None
                assert fate.rejection.reason == "process died"
                assert fate.crashes <= (2 * MAX if world.settings.remembers else 3 * MAX + 1)
            assert fate.acknowledged != (fate.rejection is not None)


OPTIONS = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Nobody reads the log of a thousand worlds."""
    logs = [logging.getLogger(name) for name in ("pump", "asyncio")]
    for log in logs:
        log.disabled = True
    yield
    for log in logs:
        log.disabled = False


@pytest.mark.requirement("P-04", "Z-12", "Z-13")
def test_no_message_is_ever_lost_or_given_up_without_a_reason() -> None:
    run_state_machine_as_test(NoLoss, settings=settings(OPTIONS, max_examples=700, stateful_step_count=30))


@pytest.mark.long
@pytest.mark.requirement("P-04", "Z-12", "Z-13")
def test_no_message_is_ever_lost_in_very_many_worlds() -> None:
    run_state_machine_as_test(NoLoss, settings=settings(OPTIONS, max_examples=6_000, stateful_step_count=50))
