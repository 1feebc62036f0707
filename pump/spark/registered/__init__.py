"""The package `pyspark_pump`: Spark imports it by its name, and so knows `format("pump")` without a registration.

Imports: the data source.
Begin with: `../data_source.py`.
"""

from contextlib import suppress

with suppress(ImportError):  # without the extra "spark" there is no such format, and other packages' are still found
    from pump.spark.data_source import PumpDataSource as DefaultSource

__all__ = ["DefaultSource"]
