"""Traces which functions one message passes, and draws that as docs/walk.md: `python -m walk`, in the folder tests."""
