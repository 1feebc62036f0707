"""`pump spark archive`, `pump spark compact-archive` and `pump spark replay`."""

import argparse
from pathlib import Path
from typing import Final

from pump.clock import Signal
from pump.process_signals import asking
from pump.spark.commands import add_master, session_of, told

_ORDER: Final = ("timestamp", "received")


def add_archive(parser: argparse.ArgumentParser) -> None:
    """The options of `pump spark archive`."""
    parser.add_argument("url", metavar="URL", help="the transport to read from")
    parser.add_argument("channel", help="the channel: its messages are acknowledged once they are stored")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the archive, in a folder that all executors share")
    parser.add_argument("--topic", default="", help="what the channel reads (default: the topic of its name)")
    parser.add_argument("--format", choices=("parquet", "delta"), default="parquet", help="default: parquet")
    parser.add_argument("--partitions", type=int, default=2, metavar="N", help="how many tasks receive (default: 2)")
    parser.add_argument(
        "--follow", action="store_true", help="go on until a signal; by default it ends when all is read"
    )
    add_master(parser)
    parser.set_defaults(act=_archive)


def add_compact(parser: argparse.ArgumentParser) -> None:
    """The options of `pump spark compact-archive`."""
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the archive")
    add_master(parser)
    parser.set_defaults(act=_compact)


def add_replay(parser: argparse.ArgumentParser) -> None:
    """The options of `pump spark replay`."""
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the archive")
    parser.add_argument("--to", required=True, metavar="URL", help="the transport to post to")
    parser.add_argument("--topic", required=True, help="the topic to post to")
    parser.add_argument(
        "--record", required=True, type=Path, metavar="FOLDER", help="where it is noted what was posted"
    )
    parser.add_argument("--channel", default="", help="only messages of this channel")
    parser.add_argument("--since", default="", metavar="TIME", help="only messages received then or later")
    parser.add_argument("--until", default="", metavar="TIME", help="only messages received before")
    parser.add_argument("--where", default="", metavar="SQL", help="only messages for which this holds")
    parser.add_argument("--rate", type=float, metavar="N", help="post at most N messages per second")
    parser.add_argument("--prefix", default="rp-", help="what the ids begin with (default: rp-)")
    add_master(parser)
    parser.set_defaults(act=_replay)


def _archive(options: argparse.Namespace) -> int:
    from pump.spark.lake.archive import ArchiveOrder, archive  # noqa: PLC0415 - only here is Spark needed

    order = ArchiveOrder(
        url=options.url,
        channel=options.channel,
        folder=options.folder,
        topic=options.topic,
        table_format=options.format,
        partitions=options.partitions,
    )
    with session_of("pump spark archive", options.on) as session:
        until = Signal()
        with asking(until.set):
            count = archive(session, order, until if options.follow else None)
    print(f"{count:,} messages of {options.channel} archived in {options.folder}")
    return 0


def _compact(options: argparse.Namespace) -> int:
    from pump.spark.lake.archive import Archive  # noqa: PLC0415 - only here is Spark needed
    from pump.spark.lake.compaction import compact  # noqa: PLC0415

    with session_of("pump spark compact-archive", options.on) as session:
        done = compact(session, Archive(options.folder))
    print(f"{done.files_before:,} files became {done.files_after:,}")
    return 0


def _replay(options: argparse.Namespace) -> int:
    from pump.spark.lake.archive import Archive  # noqa: PLC0415 - only here is Spark needed
    from pump.spark.lake.replay import Period, chosen, replay, size_for  # noqa: PLC0415
    from pump.spark.posted import PostingOrder  # noqa: PLC0415

    period = Period(channel=options.channel, since=options.since, until=options.until, where=options.where)
    order = PostingOrder(
        url=options.to,
        topic=options.topic,
        record=options.record.resolve(),
        rate=options.rate,
        size=size_for(options.rate),
        tasks=2 if options.rate is None else 1,
        order=_ORDER,
    )
    with session_of("pump spark replay", options.on) as session:
        report = replay(chosen(session, Archive(options.folder), period), order, options.prefix)
    return told(report, options.record)
