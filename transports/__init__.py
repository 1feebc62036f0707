"""Everything that knows one broker and its client: a file a transport, or a folder where one file is too little.

Imports: the top level of `pump` and `pump.transport_kit`; no other transport, and no handler.
Begin with: `memory`, the smallest one.
"""
