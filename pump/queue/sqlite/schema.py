"""The tables of the queue in a SQLite file, and how they are created.

The state of a message for a group is computed from the rows, never stored. After `claimed`: pending, unless the group
has settled it ahead (`passed`). Up to `claimed`: a delivery row means leased or pending again, a dead row means
dead-lettered, neither means completed. So `claimed` only grows when a message gets its delivery row (or is settled in
that same transaction), and no counter can contradict the rows.
"""

import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from pump.errors import SetupError

# Ids of groups and partitions are never used twice: a dead letter outlives both. `ready_at` is when to look at the
# partition next (new messages, lease expiry, delays, fairness); null if nothing waits. `gap` has ranges of places, from
# `seq` to `last`, whose messages were removed from among others, so that a lag can be computed by subtraction. `passed`
# has messages that a group settled before they were handed out, by an operator's call; its `seq` is null while the
# message is scheduled. `swept` is how far retention has looked after the first unsettled message, `swept_at` when it
# last reached the end. A delivery's `visible_at` is the end of its lease if each message has its own, else the end of
# its delay. `budget` is the retry limit that its consumer gave: -1 means the queue's limit, null means no limit.
TABLES: Final = """
CREATE TABLE queue (
    id INTEGER PRIMARY KEY AUTOINCREMENT, uid TEXT NOT NULL, name TEXT NOT NULL UNIQUE, namespace TEXT NOT NULL,
    task TEXT NOT NULL, ordered INTEGER, options TEXT NOT NULL, partitions INTEGER NOT NULL DEFAULT 0,
    created_at REAL NOT NULL);
CREATE TABLE partition (
    id INTEGER PRIMARY KEY AUTOINCREMENT, uid TEXT NOT NULL UNIQUE, queue_id INTEGER NOT NULL, name TEXT NOT NULL,
    last_seq INTEGER NOT NULL DEFAULT 0, last_at REAL NOT NULL DEFAULT 0, created_at REAL NOT NULL,
    swept INTEGER NOT NULL DEFAULT 0, swept_at REAL NOT NULL DEFAULT 0, UNIQUE (queue_id, name));
CREATE TABLE consumer_group (
    id INTEGER PRIMARY KEY AUTOINCREMENT, queue_id INTEGER NOT NULL, name TEXT NOT NULL, subscription TEXT NOT NULL,
    subscription_from REAL, created_at REAL NOT NULL, UNIQUE (queue_id, name));
CREATE INDEX consumer_group_by_name ON consumer_group (name);
CREATE TABLE message (
    part_id INTEGER NOT NULL, seq INTEGER NOT NULL, id TEXT NOT NULL, transaction_id TEXT NOT NULL, trace_id TEXT,
    producer TEXT, at REAL NOT NULL, sealed INTEGER NOT NULL, payload BLOB NOT NULL,
    PRIMARY KEY (part_id, seq)) WITHOUT ROWID;
CREATE UNIQUE INDEX message_by_transaction_id ON message (part_id, transaction_id);
CREATE TABLE gap (part_id INTEGER NOT NULL, seq INTEGER NOT NULL, last INTEGER NOT NULL, PRIMARY KEY (part_id, last))
    WITHOUT ROWID;
CREATE TABLE passed (
    message_id TEXT NOT NULL, group_id INTEGER NOT NULL, part_id INTEGER NOT NULL, seq INTEGER, dead INTEGER NOT NULL,
    PRIMARY KEY (message_id, group_id)) WITHOUT ROWID;
CREATE INDEX passed_in_place ON passed (group_id, part_id, seq);
CREATE INDEX passed_without_place ON passed (message_id) WHERE seq IS NULL;
CREATE TABLE scheduled (
    part_id INTEGER NOT NULL, transaction_id TEXT NOT NULL, queue_id INTEGER NOT NULL, due_at REAL NOT NULL,
    id TEXT NOT NULL, trace_id TEXT, producer TEXT, at REAL NOT NULL, sealed INTEGER NOT NULL, payload BLOB NOT NULL,
    PRIMARY KEY (part_id, transaction_id)) WITHOUT ROWID;
CREATE INDEX scheduled_by_due ON scheduled (queue_id, due_at);
CREATE TABLE progress (
    group_id INTEGER NOT NULL, part_id INTEGER NOT NULL, claimed INTEGER NOT NULL, ready_at REAL, lease_id TEXT,
    lease_until REAL, total INTEGER NOT NULL DEFAULT 0, last_consumed_at REAL,
    PRIMARY KEY (group_id, part_id)) WITHOUT ROWID;
CREATE INDEX progress_by_ready ON progress (group_id, ready_at) WHERE ready_at IS NOT NULL;
CREATE INDEX progress_by_partition ON progress (part_id);
CREATE TABLE delivery (
    group_id INTEGER NOT NULL, part_id INTEGER NOT NULL, seq INTEGER NOT NULL, lease_id TEXT,
    deliveries INTEGER NOT NULL, retries INTEGER NOT NULL, crashes INTEGER NOT NULL, budget INTEGER, visible_at REAL,
    error TEXT, PRIMARY KEY (group_id, part_id, seq)) WITHOUT ROWID;
CREATE INDEX delivery_by_visible ON delivery (group_id, part_id, visible_at) WHERE visible_at IS NOT NULL;
CREATE TABLE lease (id TEXT PRIMARY KEY, group_id INTEGER NOT NULL, parts TEXT NOT NULL, until REAL NOT NULL)
    WITHOUT ROWID;
CREATE TABLE dead (
    id TEXT PRIMARY KEY, message_id TEXT NOT NULL, group_name TEXT NOT NULL, group_id INTEGER, part_id INTEGER,
    seq INTEGER, queue TEXT NOT NULL, partition TEXT NOT NULL, partition_uid TEXT NOT NULL,
    transaction_id TEXT NOT NULL, trace_id TEXT, producer TEXT, sealed INTEGER NOT NULL, payload BLOB NOT NULL,
    reason TEXT NOT NULL, error TEXT NOT NULL, retries INTEGER NOT NULL, crashes INTEGER NOT NULL,
    deliveries INTEGER NOT NULL, created_at REAL NOT NULL, moved_at REAL NOT NULL, redriven_at REAL,
    UNIQUE (message_id, group_name)) WITHOUT ROWID;
CREATE INDEX dead_in_place ON dead (part_id, seq, group_id) WHERE seq IS NOT NULL;
CREATE INDEX dead_by_time ON dead (moved_at);
CREATE INDEX dead_by_queue ON dead (queue, moved_at, id);
CREATE TABLE trace (
    id TEXT PRIMARY KEY, partition_uid TEXT NOT NULL, transaction_id TEXT NOT NULL, group_name TEXT,
    event TEXT NOT NULL, names TEXT NOT NULL, data BLOB NOT NULL, created_at REAL NOT NULL) WITHOUT ROWID;
CREATE INDEX trace_by_message ON trace (partition_uid, transaction_id);
CREATE TABLE trace_name (name TEXT NOT NULL, trace_id TEXT NOT NULL, PRIMARY KEY (name, trace_id)) WITHOUT ROWID;
"""


KEYS: Final = """
CREATE TABLE key_check (id TEXT PRIMARY KEY, sealed BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE sealed_trace (trace_id TEXT PRIMARY KEY) WITHOUT ROWID;
"""
"""A check value for each key, to recognise the key; and which notes are sealed."""

MIGRATIONS: Final = (TABLES, KEYS)
"""What each version adds. A published version is never changed: a later version corrects it."""

NAMES: Final = re.compile(r"CREATE (?:UNIQUE )?(?:TABLE|INDEX) (\w+)")


def prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Create missing tables; SetupError if the tables are not the ones that this code would create."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    # SQLite keeps each statement as it was given.
    kept = dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))
    if version > len(MIGRATIONS) and any(name in kept for name in NAMES.findall(TABLES)):
        raise SetupError(
            f"the tables in {path} have version {version}; this code knows up to {len(MIGRATIONS)}: update it"
        )
    expected = [each for migration in MIGRATIONS[:version] for each in statements(migration)]
    found = [" ".join(kept[name].split()) for name in NAMES.findall("".join(MIGRATIONS)) if name in kept]
    if found != expected:
        raise SetupError(
            f"{path} was made by another build of message-pump or by another program, and its tables are others: use "
            "what made it, give the queue a file of its own, or remove this one if nothing in it is needed"
        )
    for migration in MIGRATIONS[version:]:
        for statement in statements(migration):
            connection.execute(statement)
    if version < len(MIGRATIONS):
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")


def statements(migration: str) -> list[str]:
    """The statements of a version, each in one line."""
    return [" ".join(each.split()) for each in migration.split(";\n") if each.strip()]


def refuse_others(path: Path) -> None:
    """SetupError if the file is a database of another program; nothing is written to it."""
    if not path.exists() or not path.stat().st_size:
        return
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if names and not names.issuperset(("queue", "message", "progress")):
        raise SetupError(f"{path} has the tables of another program: give the queue a file of its own")


def must_be_queue(path: Path) -> None:
    """SetupError if the file is missing, or holds no queue of this version; nothing is written to it."""
    if not path.is_file() or not path.stat().st_size:
        raise SetupError(f"there is no queue in {path}")
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    except sqlite3.DatabaseError as error:
        raise SetupError(f"there is no queue in {path}: {error}") from error
    if not names.issuperset(NAMES.findall(TABLES)):
        raise SetupError(f"there is no queue in {path}: its tables are those of another program")
    if version > len(MIGRATIONS):
        raise SetupError(
            f"the queue in {path} has version {version}; this code knows up to {len(MIGRATIONS)}: update it"
        )
