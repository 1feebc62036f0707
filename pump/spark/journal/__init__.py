"""Analyses of the journal: rates in windows, percentiles, outcomes, alerts, and the report.

Imports: the journal's columns, and the session.
Begin with: `frames.py`; then `stream.py`.
"""
