"""The asyncio task in which a pump runs handlers: it can tell a stop from a handler that cancels its own task."""

import asyncio
from contextlib import suppress
from typing import Any, TypeVar

Result = TypeVar("Result")


class OwnTask(asyncio.Task[Result]):
    """A task that counts separately the cancellations that come from the code that runs in it."""

    own_cancellations = 0

    def cancel(self, msg: Any | None = None) -> bool:  # noqa: ANN401 - as asyncio has it
        """As any task's."""
        if asyncio.current_task(self.get_loop()) is self:  # by loop: asyncio.run also cancels when none runs
            self.own_cancellations += 1
        return super().cancel(msg)

    async def recover(self) -> None:
        """Undo a handler's cancellations of its own task: the task goes on with other messages."""
        while self.own_cancellations:
            self.own_cancellations -= 1
            self.uncancel()
        with suppress(asyncio.CancelledError):  # one not raised yet: the pump's next wait would raise it
            await asyncio.sleep(0)
        if self.cancelling():
            raise asyncio.CancelledError


def is_cancelled() -> bool:
    """Whether this task itself was cancelled. A CancelledError from something it awaits is an error like any other."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
