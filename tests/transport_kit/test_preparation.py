"""In which order things are prepared."""

from pump import Command, Publication, Subscription
from pump.subscription import Missing
from pump.transport_kit.preparation import in_turn


class Order(Command):
    pass


def subscription(missing: Missing) -> Subscription:
    return Subscription(Order, missing=missing)


def publication(missing: Missing) -> Publication:
    return Publication(Order, missing=missing)


def test_all_that_may_be_created_comes_before_what_is_validated_and_nothing_is_assumed() -> None:
    validated, created, assumed = subscription("validate"), subscription("create"), subscription("assume")
    posted, checked, believed = publication("create"), publication("validate"), publication("assume")

    order = in_turn([validated, assumed, created], [checked, believed, posted])

    assert list(order) == [created, posted, validated, checked]
