"""A measurement in a process of its own: not everybody lets go of what he holds in one."""

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import ParamSpec, TypeVar

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


def alone(measure: Callable[Arguments, Result], *args: Arguments.args, **options: Arguments.kwargs) -> Result:
    """What it returns, run in a new process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(measure, *args, **options).result()
