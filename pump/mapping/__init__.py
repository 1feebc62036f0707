"""Between the body of a message and the request that a handler receives.

Imports: `pump.errors` and `pump.message`; msgspec, and pydantic only where the program has imported it.
Begin with: `mapper`.
"""
