"""Merges many small calls on an engine into few large ones, and decides who is woken when a message is ready.

Imports: `pump.clock`, `pump.errors`, and the top level of `pump.queue`.
Begin with: `batched_engine`.
"""
