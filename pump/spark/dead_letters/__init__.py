"""Dead letters by the million: grouped by the signature of their error, selected, rewritten, posted again.

Imports: the columns, the source's peek and the posting of rows.
Begin with: `signature.py`, then `redrive.py` and `settling.py`.
"""
