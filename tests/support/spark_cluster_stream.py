"""A program that reads a channel on a cluster, and dies in the middle of a batch if it is told to.

Arguments: the master, the channel's options and what to do as JSON. Each batch is written to a file of its own, with
the number of the batch; a batch that was written before is written beside it.
"""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pump.spark.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def main(master: str, given: dict[str, Any]) -> None:
    out = Path(given["out"])
    session = open_session("stream", master, given.get("settings"))
    if given.get("register"):
        from pump.spark.data_source import register

        register(session)

    def write(rows: "DataFrame", batch: int) -> None:
        found = [[row.id, row.deliveries] for row in rows.collect()]
        attempt = len(list(out.glob(f"{batch:03d}-*")))
        (out / f".{batch}").write_text(json.dumps(found))
        (out / f".{batch}").rename(out / f"{batch:03d}-{attempt}")
        if batch == given.get("dies_in"):
            os._exit(9)

    query = (
        session.readStream.format("pump")
        .options(**given["options"])
        .load()
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", given["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    session.stop()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
