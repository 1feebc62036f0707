"""The data pipeline on Apache Spark: channels as sources and sinks, pumps on a cluster, analyses of the journal.

Imports: the program and all below; pyspark only inside functions and in modules that Spark itself loads.
Begin with: `session.py`, then `columns.py`.
"""
