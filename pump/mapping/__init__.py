"""Between the body of a message and the request that a handler receives.

Imports: `pump.errors`, `pump.message`, `pump.wire_name`; msgspec; pydantic only where the program has imported it.
Begin with: `mapper`.
"""
