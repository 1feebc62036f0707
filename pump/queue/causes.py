"""Why a call on a database fails: one table from error codes to words that an operator can act on.

The codes are SQLSTATEs of PostgreSQL, result codes of SQLite and error numbers of the operating system. An error of
PostgreSQL while a connection is made has no code that clients can see: there the words of the message decide.
"""

import errno
import re
import sqlite3
from collections.abc import Sequence
from typing import Final, NamedTuple


class Fault(NamedTuple):
    """One kind of fault, and how to recognise it."""

    name: str
    """For counters and for programs."""
    words: str
    """For people: what is wrong, and what to do."""
    states: Sequence[str] = ()
    """SQLSTATEs; two characters stand for every SQLSTATE that begins with them."""
    says: str = ""
    """A regular expression for the error message when a connection cannot be made."""
    results: Sequence[int] = ()
    """Result codes of SQLite."""
    numbers: Sequence[int] = ()
    """Error numbers of the operating system."""
    lasts: bool = False
    """Whether it goes on until somebody mends it, though some requests may still be carried out."""


OTHER: Final = Fault("other", "the database does not answer as it should")
CLOSED: Final = Fault("closed", "the engine is closed")
NO_CONNECTION_FREE: Final = Fault("pool", "all connections are in use: give the queue more (pool_size), or ask less")
NO_ANSWER: Final = Fault(
    "no_answer", "the server does not answer in time: see whether it hangs, and the network",
    (), "timeout expired|timed out|timeout|No route to host|unreachable",
    numbers=(errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH),
)  # fmt: skip
GONE: Final = Fault("gone", "the file is gone: put it back, or begin with a new one")

CAUSES: Final = (
    Fault(
        "disk_full", "the disk is full: make room on it", ("53100",),
        results=(sqlite3.SQLITE_FULL,), numbers=(errno.ENOSPC, errno.EDQUOT), lasts=True,
    ),
    Fault(
        "read_only",
        "the database is read-only: after a failover the address leads to a standby server, so connect to the primary",
        ("25006",), "session is read-only|server is in hot standby mode",
    ),
    Fault(
        "read_only_file", "the file cannot be written: correct its permissions and those of its folder",
        results=(sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM), numbers=(errno.EROFS, errno.EACCES, errno.EPERM),
    ),
    Fault(
        "damaged", "pages of the database are damaged: stop writing to it, and restore a backup",
        ("XX001", "XX002"), results=(sqlite3.SQLITE_CORRUPT,), lasts=True,
    ),
    Fault(
        "foreign", "the file is no SQLite database: give the queue another file", results=(sqlite3.SQLITE_NOTADB,)
    ),
    Fault("unknown_database", "there is no database of that name: create it, or correct the URL", ("3D000",),
          r'database ".*" does not exist'),
    Fault("wrong_password", "the password is wrong, or there is none: correct the URL", ("28P01",),
          "password authentication failed|no password supplied|authentication failed"),
    Fault("unknown_user", "there is no such user: create it, or correct the URL", (), 'role ".*" does not exist'),
    Fault("not_allowed", "this machine or this user is not allowed to connect: see pg_hba.conf", ("28",),
          "pg_hba.conf|permission denied for database|not permitted to log in"),
    Fault("no_right", "the user lacks a right that the queue needs", ("42501",), lasts=True),
    Fault("no_tables", "the queue's tables are gone, or another version changed them: restore them, then start again",
          ("42P01", "42883", "42703", "3F000"), lasts=True),
    Fault("too_many_connections", "the server has no connection left: raise max_connections, or lower pool_size",
          ("53300",), "too many clients|too many connections|remaining connection slots"),
    Fault("starting", "the server is starting, stopping or recovering: wait for it", ("57P03",),
          "starting up|shutting down|recovery mode|not yet accepting"),
    Fault("unknown_host", "the host's name is unknown: correct the URL, or the name service", (),
          "could not translate host name|resolve host|Name or service not known|name resolution"),
    Fault("refused", "nobody listens at that address: start the server, or correct host and port", (),
          "Connection refused|No such file or directory", numbers=(errno.ECONNREFUSED,)),
    NO_ANSWER,
    Fault("no_tls", "the server and this client do not agree about TLS: see sslmode in the URL", (), "SSL|certificate"),
    Fault("stopped", "the server was stopped, or the connection broke", ("57P01", "57P02", "57P04", "08"),
          "closed the connection|connection is closed|connection is lost|terminating connection|reset by peer"),
    Fault("out_of_memory", "the server has no memory left", ("53200",), results=(sqlite3.SQLITE_NOMEM,)),
    Fault("locked", "another transaction holds a lock for too long: end it", ("55P03",)),
    Fault("too_slow", "a statement took too long and was ended", ("57014",)),
    Fault("in_use", "another process writes for too long", results=(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)),
    Fault("cannot_open", "the file cannot be opened: see its folder, its permissions and the limit of open files",
          results=(sqlite3.SQLITE_CANTOPEN,), numbers=(errno.EMFILE, errno.ENFILE)),
    Fault("input_output", "the disk fails: see the log of the system", ("58",), results=(sqlite3.SQLITE_IOERR,),
          numbers=(errno.EIO,), lasts=True),
)  # fmt: skip
"""Tried in this order: the first one that fits is the cause."""


def of_state(state: str, message: str = "") -> Fault:
    """The cause of an error of PostgreSQL: by its SQLSTATE, or by its message if there is none."""
    if state:
        for cause in CAUSES:
            if state in cause.states or state[:2] in cause.states:
                return cause
        return OTHER
    return next((each for each in CAUSES if each.says and re.search(each.says, message)), OTHER)


def of_result(result: int) -> Fault:
    """The cause of an error of SQLite."""
    return next((each for each in CAUSES if result & 0xFF in each.results), OTHER)


def of_number(number: int | None) -> Fault:
    """The cause of an error of the operating system."""
    return next((each for each in CAUSES if number in each.numbers), OTHER)
