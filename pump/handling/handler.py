"""What users inherit for their handlers."""

from typing import Generic, TypeVar

from pump.context import Context, current_context

T = TypeVar("T", contravariant=True)


class RequestHandler(Generic[T]):
    """Handles one type of request: by `def handle` in a blocking pump, `async def handle` in an awaiting one."""

    __slots__ = ()

    def handle(self, request: T, /) -> object:
        """Handle a request: return when it is done, raise a MessageAction to decide otherwise, or fail."""
        raise NotImplementedError(f"{type(self).__name__} has no handle method for {type(request).__name__}")

    @property
    def context(self) -> Context:
        """The context of this thread or task; a PumpError where no handler runs."""
        return current_context()
