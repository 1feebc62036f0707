"""What survives this process's death on its machine: which messages it had in hand, and how often they were run.

Imports: the top level of pump.
Begin with: `slots`, the file of one process; then `book`, what the next one reads.
"""
