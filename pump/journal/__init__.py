"""The journal: what became of every delivery, written by pumps as Parquet files that analyses read.

Imports: verdicts, the telemetry and the clock; pyarrow in every module but `signature.py` and `rules.py`.
Begin with: `events.py`, the columns of an event; then `writer.py`.
"""
