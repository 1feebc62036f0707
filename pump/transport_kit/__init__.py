"""What a transport is, and the parts that transports are made of.

Imports: the top level of pump alone; no transport.
Begin with: `protocol`, the promises that a transport keeps; then docs/transports.md, which part is for what.
"""
