"""Subjects that overlap, names that NATS takes, and where dead letters go."""

import pytest

from pump.errors import ConfigurationError
from pump.subscription import Subscription
from pump.transport_kit.destinations import Destinations
from pump.transports.nats.subjects import (
    DEFAULT_DEAD_LETTER_SUBJECT,
    check_subject,
    covers,
    dead_letter_subjects,
    escape_name,
    overlap,
)
from support.pumps import Order


@pytest.mark.parametrize(
    ("first", "second", "both"),
    [
        ("orders", "orders", True),
        ("orders", "payments", False),
        ("orders.*", "orders.eu", True),
        ("orders.*", "orders.eu.dlq", False),
        ("orders.>", "orders.eu.dlq", True),
        ("orders.>", "orders", False),
        ("*.dlq", "orders.*", True),
        (">", "a.b", True),
        ("orders.*.dlq", "orders.>", True),
    ],
)
def test_two_subjects_overlap_where_some_message_is_meant_by_both(first: str, second: str, *, both: bool) -> None:
    assert overlap(first, second) is both
    assert overlap(second, first) is both


@pytest.mark.parametrize(
    ("wide", "subject", "all_of_it"),
    [
        ("orders.>", "orders.eu", True),
        ("orders.>", "orders.*", True),
        ("orders.>", "orders", False),
        ("orders.*", "orders.>", False),
        ("orders.*", "orders.eu", True),
        ("orders.eu", "orders.*", False),
        ("orders", "orders.eu", False),
    ],
)
def test_one_subject_covers_another(wide: str, subject: str, *, all_of_it: bool) -> None:
    assert covers(wide, subject) is all_of_it


@pytest.mark.parametrize("text", ["orders", "router-results", "A_b-9"])
def test_a_plain_name_stays_as_it_is(text: str) -> None:
    assert escape_name(text) == text


def test_names_differ_where_the_texts_do() -> None:
    texts = ["a.b", "a_b", "a b", "a*b", "a>b", "a/b", "a\\b", "a=2Eb", "a\tb", "ä"]

    names = [escape_name(text) for text in texts]

    assert len(set(names)) == len(texts)
    assert not set("".join(names)) & set(" .*>/\\\t\r\n")


@pytest.mark.parametrize("wrong", ["", "a..b", ".a", "a.", "a b", "a\tb", "a\r\nPUB x", "a.>.b"])
def test_what_is_no_subject_is_a_configuration_error(wrong: str) -> None:
    with pytest.raises(ConfigurationError, match="subject"):
        check_subject(wrong, wildcards=True)


def test_nothing_is_posted_to_a_wildcard() -> None:
    with pytest.raises(ConfigurationError, match="subject to post to"):
        check_subject("orders.*")


def test_a_dead_letter_goes_beneath_its_own_subject() -> None:
    assert dead_letter_subjects(["<subject>.dlq"], ["orders.*", "other"]) == ("orders.*.dlq", "other.dlq")
    assert dead_letter_subjects(["dead", "dead"], ["orders.>"]) == ("dead",)
    destinations = Destinations.of(Subscription(Order, topic="orders.*", channel="worker"), DEFAULT_DEAD_LETTER_SUBJECT)
    assert destinations.for_rejected("delivery error", "orders.eu") == "orders.eu.dlq"


def test_there_is_no_default_place_for_everything_beneath_a_subject() -> None:
    with pytest.raises(ConfigurationError, match="give dead_letter="):
        dead_letter_subjects(["<subject>.dlq"], ["orders.>"])
