"""Events of a dispatcher as spans of OpenTelemetry."""

from collections.abc import Mapping
from typing import Final

from opentelemetry import propagate, trace

from pump.message import Message

NOT_ACKNOWLEDGED: Final = "Not acknowledging message"


class OpenTelemetryListener:
    """A span for each message that is not acknowledged: `Dispatcher(listeners=[OpenTelemetryListener()])`.

    It is a child of the span that the message's headers name (`traceparent`). Bodies are never recorded.
    """

    def __init__(self, provider: trace.TracerProvider | None = None) -> None:
        self._tracer: Final = trace.get_tracer("message-pump", tracer_provider=provider)

    def __call__(self, event: str, fields: Mapping[str, object]) -> None:
        """Record the event, if it is one of a message that was not acknowledged."""
        message = fields.get("message")
        if event != "nack" or not isinstance(message, Message):
            return
        channel, error = str(fields["channel"]), fields.get("error")
        span = self._tracer.start_span(
            f"settle {channel}",
            propagate.extract(dict(message.header.headers)),
            trace.SpanKind.CLIENT,
            {
                "messaging.operation.type": "settle",
                "messaging.operation.name": event,
                "messaging.destination.name": channel,
                "messaging.message.id": message.id,
                **({"error.type": type(error).__qualname__} if error is not None else {}),
            },
        )
        span.set_status(trace.StatusCode.ERROR, NOT_ACKNOWLEDGED)
        span.end()
