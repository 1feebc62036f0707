"""The journal: what became of every delivery, written by pumps as Parquet files that analyses read.

Imports: the telemetry and the clock; pyarrow only where a file is written.
Begin with: `events.py`, the columns of an event.
"""
