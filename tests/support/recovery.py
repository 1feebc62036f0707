"""What must hold when a broker or a process has failed, and works again."""

from collections import Counter
from collections.abc import Callable

from support.waiting import eventually
from support.works import Works, names

RECOVERY = 60.0
"""The longest time that a recovery may take, also on a slow machine, in seconds."""


def everything_was_run(
    works: Works, count: int, at_most_twice: int, left: Callable[[], int] = lambda: 0, within: float = RECOVERY
) -> None:
    """Each of the jobs was run, nothing is left in the channel, and few runs were repetitions."""
    eventually(lambda: set(works.runs) >= set(names(count)), within)
    eventually(lambda: left() == 0, within)
    repeated = sum(times - 1 for times in Counter(works.runs).values())
    assert repeated <= at_most_twice, f"{repeated} runs were repetitions"
