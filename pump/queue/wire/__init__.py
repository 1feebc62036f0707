"""What requests and replies of the HTTP API look like as JSON. The server and the client both use it.

Imports: the top level of `pump.queue`.
Begin with: `requests`.
"""
