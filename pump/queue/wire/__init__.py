"""The JSON form of requests and replies of the HTTP API, for the server and the client.

Imports: the top level of `pump.queue`.
Begin with: `requests`.
"""
