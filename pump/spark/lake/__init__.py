"""An archive of channels by day, as Parquet or Delta tables, and its replay into a channel.

Imports: the columns, the source and the sink.
Begin with: `archive.py`.
"""
