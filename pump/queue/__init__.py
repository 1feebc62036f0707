"""The durable queue: one set of rules on two databases, SQLite for one machine and PostgreSQL for many."""
