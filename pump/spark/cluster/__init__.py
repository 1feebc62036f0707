"""Pumps on a Spark cluster: performers are placed as tasks, in supervised shifts.

Imports: the program, and the session.
Begin with: `shifts.py`, then `task.py`.
"""
