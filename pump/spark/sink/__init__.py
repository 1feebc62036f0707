"""`format("pump")` for writing: rows become messages, confirmed by the broker, with ids that a repeat does not change.

Imports: the transport kit and the columns.
Begin with: `writer.py`.
"""
