"""Mutation testing: small changes of the code, each of which a test must notice.

`python -m mutants` in `tests/`, or `tox -e mutants`. docs/mutants.md has the last result, and why some changes survive.
"""
