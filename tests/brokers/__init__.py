"""Private brokers for the tests, and a proxy that misbehaves between them and their clients."""
