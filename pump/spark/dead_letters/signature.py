"""The signature of an error: its text without what differs from one message to the next.

Dead letters with one signature have, as a rule, one cause, and are mended in one way. The signature's id is the same in
every run and on every machine, so that it can be written down, and given to a later command.
"""

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from pump.journal.signature import LONGEST, PARTS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def error_text() -> "Column":
    """The error of a dead letter: its text, or else the description, the reason, or why it could not be read."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - only with a session

    given = [f.col(name) for name in ("dead_letter.error", "dead_letter.description", "dead_letter.reason", "fault")]
    return f.coalesce(*given, f.lit(""))


def with_text(letters: "DataFrame") -> "DataFrame":
    """The dead letters with the column `signature`: the error with everything replaced that differs."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - only with a session

    text = f.col("signature")
    found = letters.withColumn("signature", f.substring(error_text(), 1, LONGEST))
    for pattern, stands_for, needed in PARTS:  # a step for each: one expression of all would look eight times as often
        replaced = f.regexp_replace(text, pattern, stands_for)
        if needed:
            has_one = reduce(or_, (text.contains(character) for character in needed))
            replaced = f.when(has_one, replaced).otherwise(text)
        found = found.withColumn("signature", replaced)
    return found


def with_signature(letters: "DataFrame") -> "DataFrame":
    """The dead letters with the columns `signature`, the text, and `signature_id`, sixteen hexadecimal digits."""
    return with_text(letters).withColumn("signature_id", id_of("signature"))


def id_of(column: str) -> "Column":
    """The id of the signature in a column."""
    from pyspark.sql import functions as f  # noqa: PLC0415

    return f.lower(f.lpad(f.hex(f.xxhash64(column)), 16, "0"))
