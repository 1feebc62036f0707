"""A queue's server on this machine, for tests that ask it over real connections."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from pump.queue.engine import Engine
from pump.queue.http.server import QueueServer
from support.waiting import eventually


@contextmanager
def serving(engine: Engine) -> Iterator[str]:
    """The server's URL, for as long as it is needed."""
    app = QueueServer(engine)
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning", timeout_graceful_shutdown=5)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, name="queue-server", daemon=True)
    thread.start()
    eventually(lambda: server.started)
    try:
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(10)
