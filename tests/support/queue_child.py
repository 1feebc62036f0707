"""A process made by fork from the test's own, as a worker is that inherits what its parent has open."""

import os
import signal
from collections.abc import Callable

LIMIT_SECONDS = 30


class Child:
    """A process made by fork, which does one thing when it is told to."""

    def __init__(self, act: Callable[[], object]) -> None:
        reading, self._start = os.pipe()
        self._said, saying = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            signal.alarm(LIMIT_SECONDS)
            os.close(self._start)
            os.read(reading, 1)
            code = 1
            try:
                act()
                code = 0
            except BaseException as error:
                os.write(saying, repr(error).encode())
            finally:
                os._exit(code)
        os.close(reading)
        os.close(saying)

    def go(self) -> "Child":
        os.close(self._start)
        return self

    def ended(self) -> str:
        """Wait for its end; what went wrong."""
        _, status = os.waitpid(self.pid, 0)
        with os.fdopen(self._said, "rb") as said:
            wrong = said.read().decode()
        return wrong or (f"it ended with status {status}" if status else "")
