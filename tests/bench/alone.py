"""Measures in a process of its own: some libraries leave threads or connections behind."""

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import ParamSpec, TypeVar

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


def alone(measure: Callable[Arguments, Result], *args: Arguments.args, **options: Arguments.kwargs) -> Result:
    """Call the function in a new process; return its result."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(measure, *args, **options).result()
