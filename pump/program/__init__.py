"""A whole program: the dispatcher, what it plans and checks before it starts, and the performers it supervises.

Imports: everything but `command` and `testing`.
Begin with: `dispatcher`.
"""
