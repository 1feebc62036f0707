"""When an alert's rule holds, minute by minute; and what texts have one signature."""

from collections.abc import Sequence

import pytest

from pump.journal.rules import Alert, MinuteCount, alerts
from pump.journal.signature import error_group, signature

NOON = 29_540_160
"""Minutes since the epoch, a multiple of five."""


def counted(
    rule: str, counts: Sequence[int], channel: str = "orders", kind: str = "", first: int = NOON
) -> list[Alert]:
    return list(
        alerts(MinuteCount(rule, channel, kind, first + place, each) for place, each in enumerate(counts) if each)
    )


def test_eleven_retries_a_minute_for_five_minutes_are_an_alert_and_nine_are_not() -> None:
    assert [each.value for each in counted("retry rate", [11] * 5)] == [55]
    assert counted("retry rate", [9] * 60) == []


def test_retries_are_counted_by_the_minute_and_not_by_the_second() -> None:
    assert counted("retry rate", [10] * 60) == []
    assert counted("retry rate", [50]) == []


def test_five_minutes_need_not_begin_with_a_window() -> None:
    (alert,) = counted("retry rate", [11] * 5, first=NOON + 3)

    assert alert.window_start.minute % 5 == 0
    assert (alert.since - alert.window_start).total_seconds() == 180


@pytest.mark.parametrize(("rule", "few", "enough"), [("exhausted", 0, 1), ("dead letters", 100, 101)])
def test_the_other_limits(rule: str, few: int, enough: int) -> None:
    assert counted(rule, [few]) == []
    assert [each.value for each in counted(rule, [enough])] == [enough]


def test_dead_letters_of_a_whole_day_are_counted_together_and_those_of_two_are_not() -> None:
    assert [each.value for each in counted("dead letters", [1] * 101)] == [101]
    spread = [MinuteCount("dead letters", "orders", "", NOON + 100 * place, 1) for place in range(500)]
    assert alerts(spread) == []


def test_failed_posts_are_counted_by_kind_and_subject() -> None:
    def failing(*kinds: str) -> list[MinuteCount]:
        return [
            MinuteCount("publish failures", "orders", kind, NOON + minute, 6) for kind in kinds for minute in range(5)
        ]

    assert [(each.channel, each.kind, each.value) for each in alerts(failing("timeout", "denied"))] == [
        ("orders", "denied", 30),
        ("orders", "timeout", 30),
    ]
    assert alerts([each._replace(number=5) for each in failing("timeout")]) == []


def test_an_alert_has_one_id_for_its_window_however_often_it_is_looked_at() -> None:
    early = counted("exhausted", [1])
    later = counted("exhausted", [1, 0, 7])

    assert [each.id for each in early] == [each.id for each in later]
    assert (early[0].value, later[0].value) == (1, 7)
    assert early[0].since == later[0].since


def test_each_window_in_which_a_rule_holds_is_an_alert() -> None:
    found = counted("exhausted", [1, 0, 0, 0, 0, 0, 1])

    assert len({each.id for each in found}) == len(found) == 2


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("order 12 failed", "order 7 failed"),
        ("id 8b7e9f36-1d2c-4c6e-9f0a-0123456789ab", "id 00000000-0000-4000-8000-000000000000"),
        ("host 10.0.0.1:5672 is away", "host 192.168.7.12:80 is away"),
        ("no 'tea'", 'no "coffee"'),
        ("hash deadbeef01", "hash 0xfe"),
    ],
)
def test_texts_that_differ_in_values_only_have_one_signature(one: str, other: str) -> None:
    assert signature(one) == signature(other)


def test_other_texts_keep_theirs() -> None:
    assert signature("accessed feedback facade") == "accessed feedback facade"
    assert signature("KeyError: sku") != signature("ValueError: sku")


@pytest.mark.parametrize(("text", "group"), [("ValueError: a: b", "ValueError"), ("plain", "plain"), (" x : y", "x")])
def test_an_error_is_of_the_group_before_its_first_colon(text: str, group: str) -> None:
    assert error_group(text) == group
