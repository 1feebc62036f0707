"""The asyncio task in which a pump runs handlers: it can tell a stop from a handler that cancels its own task."""

import asyncio
from contextlib import suppress
from typing import Any, TypeVar

Result = TypeVar("Result")


class OwnTask(asyncio.Task[Result]):
    """A task that counts the cancellations by the code that runs in it, apart from those by the pump."""

    own_cancellations = 0

    def cancel(self, msg: Any | None = None) -> bool:  # noqa: ANN401 - as asyncio has it
        """As any task's."""
        if asyncio.current_task(self.get_loop()) is self:  # asked of no running loop: asyncio.run cancels after its end
            self.own_cancellations += 1
        return super().cancel(msg)

    async def recover(self) -> None:
        """Take back a handler's cancellations of its own task, which runs other messages after this one."""
        while self.own_cancellations:
            self.own_cancellations -= 1
            self.uncancel()
        with suppress(asyncio.CancelledError):  # asked for, not raised yet: the pump's next wait would raise it
            await asyncio.sleep(0)
        if self.cancelling():
            raise asyncio.CancelledError


def is_cancelled() -> bool:
    """Whether this very task was cancelled. A CancelledError out of what it awaits is an error like any other."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
