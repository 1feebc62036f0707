"""An archive of channels by day, as Parquet or Delta tables, and its replay into a channel.

Imports: the columns, the source and the posting of rows.
Begin with: `archive.py`, then `compaction.py`.
"""
