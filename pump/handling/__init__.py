"""From a message to its handlers: they are found, given their request, and run within their attributes.

Imports: the top level of pump, `mapping`, and the channels of `pumps` for handlers that settle themselves.
Begin with: `dispatch`, one message on its way; then `registry` and `pipeline`.
"""
