"""The routes about the server itself: its health and its metrics."""

from importlib.metadata import version

from starlette.responses import PlainTextResponse, Response

from pump.errors import PumpError
from pump.queue.http.metrics import Gauges
from pump.queue.http.request import QueueRequest
from pump.queue.http.responses import reply


async def health(request: QueueRequest) -> Response:
    """Whether the database answers and can be written to, and warnings for operators."""
    answers = await request.state.answers()
    problem = await request.state.problem(answers=answers)
    healthy = bool(answers) and not problem
    return reply(
        {
            "status": "healthy" if healthy else "unhealthy",
            "database": "connected" if answers else "disconnected",
            "problem": problem or None,
            "server": "closing" if request.state.closing else "running",
            "version": version("message-pump"),
            "warnings": await _warnings(request) if healthy else [],
        },
        200 if healthy else 503,
    )


async def metrics(request: QueueRequest) -> object:
    """The counters since the server started."""
    return {"database": bool(await request.state.answers()), "counters": request.metrics.totals()}


async def prometheus(request: QueueRequest) -> Response:
    """All metrics in the text format of Prometheus; without the database, only the server's own numbers."""
    try:
        gauges = await _gauges(request)
    except PumpError:
        gauges = Gauges()
    return PlainTextResponse(request.metrics.text(gauges), headers={"content-type": "text/plain; version=0.0.4"})


async def _gauges(request: QueueRequest) -> Gauges:
    if not await request.state.answers():
        return Gauges()
    groups = await request.call(request.engine.groups)
    dead = {each.queue: 0 for each in groups} | dict(await request.call(request.engine.dead_letter_counts))
    return Gauges(up=True, groups=groups, dead_letters=dead, warnings=len(await _warnings(request)))


async def _warnings(request: QueueRequest) -> list[str]:
    try:
        return list(await request.call(request.engine.warnings))
    except PumpError:
        return []  # another check reports whether the database is healthy
