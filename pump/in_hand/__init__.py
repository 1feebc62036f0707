"""What stays on the machine when this process dies: which messages it had in hand, and how often they were run.

Imports: the top level of pump.
Begin with: `slots`, the file of one process; then `book`, which the next process reads.
"""
