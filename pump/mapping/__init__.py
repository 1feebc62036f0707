"""Between the body of a message and the request that a handler receives.

Imports: `pump.errors` and `pump.message` alone.
Begin with: `mapper`.
"""
