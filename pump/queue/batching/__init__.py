"""Many small calls on an engine made as few large ones, and who is woken when there is something to fetch.

Imports: `pump.clock`, `pump.errors`, and the top level of `pump.queue`.
Begin with: `batched_engine`.
"""
