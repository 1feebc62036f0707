"""Notes about messages."""

import json
from typing import Any

from pump.queue.ids import mint
from pump.queue.sqlite.work import SqliteWork
from pump.queue.vocabulary import Trace
from pump.queue.work import opened_data, sealed_data


def insert_trace(work: SqliteWork, trace: Trace) -> str:
    """Store a note; returns its id."""
    trace_id = mint()
    partition = work.partition_by_uid(trace.partition_id)
    data = trace.data
    if partition is not None and work.queue_of(partition.queue_id).options.encryption:
        data = sealed_data(work, trace)
        work.execute("INSERT INTO sealed_trace (trace_id) VALUES (?)", (trace_id,))
    work.execute(
        "INSERT INTO trace (transaction_id, partition_uid, data, group_name, event, names, id, created_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            trace.transaction_id, trace.partition_id, data, trace.group, trace.event,
            json.dumps(list(trace.names)), trace_id, work.now,
        ),
    )  # fmt: skip
    names = [(name, trace_id) for name in dict.fromkeys(trace.names)]
    work.executemany("INSERT INTO trace_name (name, trace_id) VALUES (?, ?)", names)
    return trace_id


def list_traces(
    work: SqliteWork,
    partition_uid: str | None,
    transaction_id: str | None,
    name: str | None,
    *,
    limit: int,
    offset: int,
) -> list[Trace]:
    """Notes about one message, or under one name, oldest first."""
    rows = work.execute(
        "SELECT t.transaction_id, t.partition_uid, t.data, t.group_name, t.event, t.names, t.id, t.created_at,"
        " EXISTS (SELECT 1 FROM sealed_trace AS s WHERE s.trace_id = t.id)"
        " FROM trace AS t WHERE (?1 IS NULL OR t.partition_uid = ?1) AND (?2 IS NULL OR t.transaction_id = ?2)"
        " AND (?3 IS NULL OR t.id IN (SELECT trace_id FROM trace_name WHERE name = ?3))"
        " ORDER BY t.id LIMIT ?4 OFFSET ?5",
        (partition_uid, transaction_id, name, limit, offset),
    )
    return [_trace(work, row) for row in rows.fetchall()]


def _trace(work: SqliteWork, row: tuple[Any, ...]) -> Trace:
    transaction_id, partition_uid, data, group, event, names, trace_id, created_at, sealed = row
    data = opened_data(work, data, partition_uid, transaction_id, sealed=bool(sealed))
    return Trace(
        transaction_id=transaction_id, partition_id=partition_uid, data=data, group=group, event=event,
        names=tuple(json.loads(names)), id=trace_id, created_at=created_at,
    )  # fmt: skip


def list_trace_names(work: SqliteWork) -> list[str]:
    """All names that notes were stored under."""
    return [name for (name,) in work.execute("SELECT DISTINCT name FROM trace_name ORDER BY name")]
