"""`pump spark recover`: what a stream had staged when its checkpoint was lost."""

import argparse
from pathlib import Path

from pump.errors import ConfigurationError


def add_recover(parser: argparse.ArgumentParser) -> None:
    """Add what `recover` takes."""
    parser.add_argument("folder", metavar="STAGING", help="the folder that the stream had as its stagingDir")
    parser.add_argument("--epoch", help="which one; without it, all that have messages left are listed")
    parser.add_argument("--export", type=Path, metavar="FILE", help="write the messages to a Parquet file")
    parser.add_argument("--post", metavar="URL", help="post the messages to a broker, and remove them here")
    parser.add_argument("--topic", help="where to post them; all channels of the topic get them")
    parser.add_argument("--checkpoint", metavar="FOLDER", help="refuse if this checkpoint still knows the epoch")
    parser.set_defaults(act=_recover)


def _recover(options: argparse.Namespace) -> int:
    from pump.spark import recover  # noqa: PLC0415 - it needs an extra

    if not options.epoch and (options.export or options.post):
        raise ConfigurationError("say which epoch: --epoch; without --export and --post they are listed")
    if options.post and not options.topic:
        raise ConfigurationError("say where to post to: --topic")
    if not options.epoch:
        lines = list(recover.list_left(options.folder))
        print("\n".join(lines) if lines else "nothing is left")
        return 0
    if options.checkpoint:
        recover.must_be_lost(options.epoch, options.checkpoint)
    if options.export:
        print(f"{recover.export_left(options.folder, options.epoch, options.export)} messages are in {options.export}")
    if options.post:
        print(f"{recover.post_left(options.folder, options.epoch, options.post, options.topic)} messages are posted")
    return 0
