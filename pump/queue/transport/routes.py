"""Where the queue stores a pump's messages: the partition of a key, and the default place of dead letters."""

from typing import Final
from zlib import crc32

from pump.message import Header
from pump.queue.vocabulary import DEFAULT_PARTITION
from pump.transport_kit.destinations import CHANNEL

SHARDS: Final = 64
DEAD_ROWS: Final = f"the dead letters of {CHANNEL}"
"""Where rejected messages go by default: not to a queue, but to the dead letters that operators list and redrive."""


def partition_of(header: Header) -> str:
    """Messages of one key are in one partition, which keeps their order; those without a key in the default one.

    There are SHARDS partitions for keys, however many keys there are.
    """
    return DEFAULT_PARTITION if header.key is None else f"keys-{crc32(header.key.encode(errors='replace')) % SHARDS:02}"
