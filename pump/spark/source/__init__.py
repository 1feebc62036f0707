"""`format("pump")` for reading: channels become streams of rows that lose nothing; a batch read only looks.

Imports: the transport kit, and the columns and the staging of this folder; Spark loads it in several processes.
Begin with: `reader.py`.
"""
