"""The package `pyspark_pump`: Spark imports it by its name, and so knows `format("pump")` without a registration.

Imports: the data source.
Begin with: `../source/reader.py`.
"""
