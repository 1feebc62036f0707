"""Events of a dispatcher as counters of Prometheus."""

from collections.abc import Mapping
from typing import Final

from prometheus_client import REGISTRY, CollectorRegistry, Counter

_COUNTED: Final[Mapping[str, str]] = {
    "nack": "Messages that were not acknowledged and stay with the broker.",
    "not_acknowledged": "Messages that came again later or became dead letters, by verdict.",
    "settle_failed": "Verdicts that could not be carried out at once.",
    "disconnected": "Failures of a channel's connection.",
    "pump_stopped": "Pumps that stopped by themselves.",
    "performer_died": "Performers that died and were started again.",
}


class PrometheusListener:
    """Counts what goes wrong, by channel: `Dispatcher(listeners=[PrometheusListener()])`.

    The counters are `pump_nack_total{channel="orders"}` and so on. Several dispatchers may share one listener.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._counters: Final = {
            event: Counter(
                f"pump_{event}", text, ["channel", "verdict"] * (event == "not_acknowledged") or ["channel"],
                registry=registry,
            )
            for event, text in _COUNTED.items()
        }  # fmt: skip

    def __call__(self, event: str, fields: Mapping[str, object]) -> None:
        """Count the event, if it is one that is counted."""
        counter = self._counters.get(event)
        if counter is not None:
            labels = {"channel": str(fields["channel"])}
            if "verdict" in fields:
                labels["verdict"] = type(fields["verdict"]).__name__.lower()
            counter.labels(**labels).inc()
