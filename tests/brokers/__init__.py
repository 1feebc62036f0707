"""Private brokers for the tests, and a proxy between them and their clients that injects network faults."""
