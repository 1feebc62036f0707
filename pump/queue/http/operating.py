"""`pump queue status`, `dlq`, `backup` and `restore`: operators' commands on the database, without the server."""

import argparse
import json
import os
import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

from pump.errors import SetupError
from pump.queue.engine import Engine
from pump.queue.sqlite.connection import make_private, our_errors
from pump.queue.sqlite.schema import must_be_queue
from pump.queue.vocabulary import DeadLetter, Filter, Pushed
from pump.queue.wire.replies import stats
from pump.queue.wire.times import time_text

WELL: Final = 0
NOT_ALL: Final = 1
"""The exit status if the database has a problem, or a dead letter was not pushed again."""
_MOST_LISTED: Final = 1000


def status(engine: Engine, *, as_json: bool) -> int:
    """Print the number of messages of each queue and group by state, and what is wrong."""
    found = status_of(engine)
    if as_json:
        _print_json(found)
    else:
        print("\n".join(_status_lines(found)))
    return NOT_ALL if found["problem"] else WELL


def status_of(engine: Engine) -> dict[str, Any]:
    """The numbers of every queue and group, warnings, and why the database cannot be written to."""
    numbers, dead = engine.numbers(), engine.dead_letter_counts()
    groups: dict[str, list[dict[str, Any]]] = {}
    for each in engine.groups():
        about = {"name": each.name, "lag": each.lag, "lagSeconds": round(each.lag_seconds, 1)}
        groups.setdefault(each.queue, []).append(about)
    queues = [
        {
            "name": each.name,
            "ordered": each.ordered,
            "messages": stats(numbers.get(each.name, ())),
            "deadLetters": dead.get(each.name, 0),
            "groups": groups.get(each.name, []),
        }
        for each in engine.queues()
    ]
    return {"queues": queues, "warnings": list(engine.warnings()), "problem": engine.problem() or None}


def _status_lines(found: Mapping[str, Any]) -> Iterable[str]:
    yield f"{'QUEUE':30} {'MESSAGES':>10} {'PENDING':>10} {'LEASED':>10} {'DEAD':>10}"
    for queue in found["queues"]:
        numbers = queue["messages"]
        counts = (numbers["total"], numbers["pending"], numbers["processing"], queue["deadLetters"])
        yield f"{queue['name']:30} " + " ".join(f"{each:>10}" for each in counts)
        for group in queue["groups"]:
            yield f"  group {group['name']}: {group['lag']} not settled, the oldest for {group['lagSeconds']:g} s"
    yield from (f"warning: {each}" for each in found["warnings"])
    if found["problem"]:
        yield f"problem: {found['problem']}"


def dead_letters(engine: Engine, which: Filter, *, redrive: bool, as_json: bool) -> int:
    """Print a page of dead letters; with `redrive`, push each again and print the outcome."""
    page, total = engine.dead_letters(which)
    results = engine.redrive([each.id for each in page]) if redrive else [None] * len(page)
    outcomes = [_outcome(each, result, asked=redrive) for each, result in zip(page, results, strict=True)]
    if as_json:
        _print_json({"messages": outcomes, "total": total})
    else:
        for each in outcomes:
            said = f": {each['outcome']}" if redrive else ""
            where = f"{each['queue']} {each['consumerGroup']} {each['transactionId']}"
            print(f"{each['id']} {where} {each['reason']}: {each['error']}{said}")
        print(f"{len(outcomes)} of {total} dead letters")
    return NOT_ALL if redrive and any(each["outcome"] != "redriven" for each in outcomes) else WELL


def _outcome(letter: DeadLetter, pushed: Pushed | None, *, asked: bool) -> dict[str, Any]:
    about = {
        "id": letter.id,
        "queue": letter.queue,
        "partition": letter.partition,
        "consumerGroup": letter.group,
        "transactionId": letter.transaction_id,
        "reason": letter.reason,
        "error": letter.error,
        "failedAt": time_text(letter.moved_at),
        "redrivenAt": time_text(letter.redriven_at),
    }
    return {**about, "outcome": _said(pushed)} if asked else about


def _said(pushed: Pushed | None) -> str:
    """The outcome in words. If its queue refused the push, the dead letter may be redriven later."""
    if pushed is None:
        return "not redriven: it was redriven before"
    return f"not redriven: {pushed.refused}" if pushed.refused else "redriven"


# -- files


def backup(source: Path, target: Path) -> None:
    """Copy a queue's file, which may be in use, into a new file. A plain copy would lack the log of changes."""
    must_be_queue(source)
    if target.exists():
        raise SetupError(f"{target} is there already: name a new file, or remove it")
    _copy(source, target)


def restore(source: Path, target: Path, *, replace: bool) -> Path | None:
    """Put a backup in the place of a file that nobody uses; returns the path where the old file is kept, if any."""
    must_be_queue(source)
    _must_be_whole(source)
    kept = None
    if target.exists():
        if not replace:
            raise SetupError(f"{target} is there already: --replace puts the backup in its place, and keeps it beside")
        must_be_queue(target)  # do not replace the file of another program
        _must_be_unused(target)
        kept = target.with_name(f"{target.name}.replaced-{time.strftime('%Y%m%dT%H%M%S')}")
        if kept.exists():
            raise SetupError(f"{kept} is there already: try again in a second")
    beside = target.with_name(f".{target.name}.restoring-{os.getpid()}")
    _copy(source, beside)
    if kept is not None:
        target.rename(kept)
    beside.rename(target)
    _sync(target.parent)
    return kept


def _copy(source: Path, target: Path) -> None:
    """Make a copy, synced to the disk, which gets its name only when it is complete."""
    part = target.with_name(f".{target.name}.part-{os.getpid()}")
    try:
        with our_errors(target):
            make_private(part)
            with (
                closing(sqlite3.connect(f"{source.as_uri()}?mode=rw", uri=True, timeout=30)) as old,
                closing(sqlite3.connect(part)) as new,
            ):
                old.execute("PRAGMA wal_autocheckpoint = 0")  # only the elected process makes checkpoints
                old.backup(new)
                new.execute("PRAGMA journal_mode = DELETE").fetchone()
        _sync(part)
        part.rename(target)
        _sync(target.parent)
    except BaseException:
        for leftover in (part, part.with_name(f"{part.name}-journal")):
            with suppress(OSError):
                leftover.unlink()
        raise


def _must_be_whole(path: Path) -> None:
    with our_errors(path), closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        (found,) = connection.execute("PRAGMA integrity_check").fetchone()
    if found != "ok":
        raise SetupError(f"{path} is damaged, and not restored: {found}")


def _must_be_unused(path: Path) -> None:
    """SetupError if the file is in use: SQLite leaves WAL mode only for the last user of a file."""
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, timeout=0)) as connection:
            (mode,) = connection.execute("PRAGMA journal_mode = DELETE").fetchone()
    except sqlite3.OperationalError:
        mode = "in use"
    if mode != "delete":
        raise SetupError(f"{path} is in use: stop the server, and whatever else has it open")


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


# -- arguments


def filter_of(options: argparse.Namespace) -> Filter:
    """The filter for the dead letters that the command names."""
    return Filter(queue=options.queue, group=options.group, limit=min(options.limit, _MOST_LISTED))


def print_done(done: str, *, as_json: bool, **members: object) -> None:
    """Print what was done."""
    if as_json:
        _print_json(members)
    else:
        print(done)


def _print_json(found: Mapping[str, object] | Sequence[object]) -> None:
    print(json.dumps(found, indent=2, ensure_ascii=False))
