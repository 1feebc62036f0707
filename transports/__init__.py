"""The transports. Each knows one broker and its client library, and is one file, or one folder if a file is too small.

Imports: the top level of `pump` and `pump.transport_kit`; no other transport, and no handler.
Begin with: `memory`, the smallest one.
"""
