"""What the server says of itself: whether it can work, what it has counted, and what may be asked of it."""

from importlib.metadata import version

from starlette.responses import PlainTextResponse, Response

from pump.errors import PumpError
from pump.queue.http.call import Call, reply
from pump.queue.http.metrics import Gauges
from pump.queue.vocabulary import Filter


async def health(call: Call) -> Response:
    """Whether the database answers, and what should be seen to before it does not."""
    healthy = await _is_healthy(call)
    return reply(
        {
            "status": "healthy" if healthy else "unhealthy",
            "database": "connected" if healthy else "disconnected",
            "server": "closing" if call.house.closing else "running",
            "version": version("message-pump"),
            "warnings": await _warnings(call) if healthy else [],
        },
        200 if healthy else 503,
    )


async def metrics(call: Call) -> Response:
    """What was counted since the server began."""
    return reply({"database": await _is_healthy(call), "counters": call.metrics.totals()})


async def prometheus(call: Call) -> Response:
    """The same and more as Prometheus reads it; without the database, what the server knows by itself."""
    try:
        gauges = await _gauges(call)
    except PumpError:
        gauges = Gauges()
    return PlainTextResponse(call.metrics.text(gauges), headers={"content-type": "text/plain; version=0.0.4"})


async def _gauges(call: Call) -> Gauges:
    if not await _is_healthy(call):
        return Gauges()
    groups = await call.desk.call(call.engine.groups)
    queues = await call.desk.call(call.engine.queues)
    pages = [await call.desk.call(call.engine.dead_letters, Filter(queue=each.name, limit=1)) for each in queues]
    dead = {queue.name: total for queue, (_, total) in zip(queues, pages, strict=True)}
    return Gauges(up=True, groups=groups, dead_letters=dead, warnings=len(await _warnings(call)))


async def _warnings(call: Call) -> list[str]:
    try:
        return list(await call.desk.call(call.engine.warnings))
    except PumpError:
        return []  # it is healthy all the same, or the next look says that it is not


async def _is_healthy(call: Call) -> bool:
    try:
        return await call.desk.call(call.engine.healthy)
    except PumpError:
        return False
