"""The pumps: the Reactor blocks, the Proactor awaits. Each takes messages from a channel and carries verdicts out.

Imports: the top level of pump and `transport_kit`.
Begin with: `reactor`, the shorter pump; then `channel`, and `intake` for which message may be handled next.
"""
