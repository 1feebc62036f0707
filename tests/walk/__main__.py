"""`python -m walk` prints the counts beside those on the page; `--write` writes the page anew."""

import sys
from collections.abc import Sequence

from brokers.rabbitmq import RabbitMQ
from walk.page import PAGE, counts, page, written_counts
from walk.walks import all_walks


def main(arguments: Sequence[str]) -> None:
    """Trace every walk."""
    with RabbitMQ() as broker:
        walks = all_walks(broker)
    written = written_counts() if PAGE.exists() else {}
    for name, each in walks.items():
        print(f"{name:<20} {counts(each[0])} to {counts(each[-1])}, on the page: {written.get(name)}")
    if "--write" in arguments:
        PAGE.write_text(page(walks))
        print(f"{PAGE} is written")


if __name__ == "__main__":
    main(sys.argv[1:])
