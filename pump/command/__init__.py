"""The command `pump`: run, check, describe, demo, and the tables of the documentation.

Imports: everything in pump.
Begin with: `cli`.
"""
