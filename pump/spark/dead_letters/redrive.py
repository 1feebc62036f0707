"""Redrive: selected dead letters are changed where that is needed, and posted again, each once.

Published and confirmed, then recorded; then, if that is wanted, `settling.py` takes them out of their channel. So a
crash costs at most some repeats, with the same ids, and a second run with the same record posts nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from pump.errors import ConfigurationError
from pump.spark.dead_letters.signature import with_signature
from pump.spark.posted import KEY, NEW_ID, PostingOrder, PostingReport, post_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PREFIX: Final = "rd-"
"""The id of a redriven message is this, and the id of its dead letter."""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which dead letters are meant: all conditions hold for each of them."""

    signatures: Sequence[str] = ()
    """Ids as triage prints them; none means any."""
    where: str = ""
    """A condition in Spark's SQL, on the columns of messages, `signature` and `signature_id`."""
    set: Mapping[str, str] = field(default_factory=dict)
    """New values of columns, as expressions in Spark's SQL: `text`, `key`, `type`, …"""


def select(letters: "DataFrame", selection: Selection) -> "DataFrame":
    """The selected dead letters, with the columns changed as SQL says. A new text replaces the body."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - only with a session

    found = _keyed(with_signature(letters))
    unknown = selection.set.keys() - set(letters.columns)
    if unknown:
        raise ConfigurationError(f"a message has no column {min(unknown)!r}; it has {', '.join(letters.columns)}")
    if selection.signatures:
        found = found.where(f.col("signature_id").isin(*selection.signatures))
    if selection.where:
        found = found.where(selection.where)
    changes = {name: f.expr(expression) for name, expression in selection.set.items()}
    if "text" in changes and "body" not in changes:
        changes["body"] = f.lit(None).cast("binary")
    if "id" in changes:
        changes[NEW_ID] = f.coalesce(f.concat(f.lit(PREFIX), changes["id"]), NEW_ID)
    return found.withColumns(changes) if changes else found


def redrive(selected: "DataFrame", order: PostingOrder) -> PostingReport:
    """Post the selected dead letters, unless the record says that they were posted."""
    named = selected if KEY in selected.columns else _keyed(selected)
    return post_rows(named.dropDuplicates([KEY]), replace(order, order=order.order or ("received", KEY)))


def _keyed(letters: "DataFrame") -> "DataFrame":
    """The letters with their names in the record, and their new ids, both made before anything is changed.

    A letter that has the id of another one, and failed at another time, is another one.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415

    nameless = f.sha2("body", 256)
    moment = f.unix_micros(f.coalesce("dead_letter.last_failure", "timestamp")).cast("string")
    key = f.concat_ws("\t", "channel", f.coalesce("identity", "id", nameless), moment)
    return letters.withColumns({KEY: key, NEW_ID: f.concat(f.lit(PREFIX), f.coalesce("id", "identity", nameless))})
