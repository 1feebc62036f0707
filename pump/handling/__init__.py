"""From a message's header to its handlers: found, given their request, run through their attributes.

Imports: the top level of pump, `mapping`, and the channels of `pumps` for handlers that settle themselves.
Begin with: `dispatch`, one message on its way; then `registry` and `pipeline`.
"""
