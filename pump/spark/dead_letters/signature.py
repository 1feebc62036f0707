"""The signature of an error: its text without what differs from one message to the next.

Dead letters with one signature have, as a rule, one cause, and are mended in one way. The signature's id is the same in
every run and on every machine, so that it can be written down, and given to a later command.
"""

from typing import TYPE_CHECKING

from pump.journal.signature import LONGEST, PARTS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def error_text() -> "Column":
    """The error of a dead letter: its text, or else the description, the reason, or why it could not be read."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - only with a session

    given = [f.col(name) for name in ("dead_letter.error", "dead_letter.description", "dead_letter.reason", "fault")]
    return f.coalesce(*given, f.lit(""))


def normalised(text: "Column") -> "Column":
    """The text with everything replaced that differs from message to message."""
    from pyspark.sql import functions as f  # noqa: PLC0415

    found = f.substring(text, 1, LONGEST)
    for pattern, stands_for in PARTS:
        found = f.regexp_replace(found, pattern, stands_for)
    return found


def with_signature(letters: "DataFrame") -> "DataFrame":
    """The dead letters with the columns `signature`, the text, and `signature_id`, sixteen hexadecimal digits."""
    return letters.withColumn("signature", normalised(error_text())).withColumn("signature_id", id_of("signature"))


def id_of(column: str) -> "Column":
    """The id of the signature in a column."""
    from pyspark.sql import functions as f  # noqa: PLC0415

    return f.lower(f.lpad(f.hex(f.xxhash64(column)), 16, "0"))
