"""nats-py's client, changed to read all values of a repeated header: nats-py itself keeps only the last one.

It overrides a private method, tried on nats-py 2.16. If nats-py does not call that method, only the last value is read.
"""

from nats.aio.client import Client

from pump.transports.nats.headers import RepeatedHeader

_AROUND = 2
"""The line ends that belong to no header: those of the first line and of the empty last line."""


class PumpClient(Client):
    """A client whose messages have a RepeatedHeader for each header that stands several times."""

    async def _process_headers(self, headers: bytes | None) -> dict[str, str] | None:
        if not headers:
            return None
        found = await super()._process_headers(headers)
        if found and headers.count(b"\r\n") - _AROUND > len(found):
            found.update(_repeated(headers))
        return found


def _repeated(headers: bytes) -> dict[str, str]:
    values: dict[str, list[str]] = {}
    for line in headers.split(b"\r\n")[1:]:
        name, separator, value = line.partition(b":")
        if separator:
            values.setdefault(name.strip().decode("ascii", "replace"), []).append(
                value.strip().decode("utf-8", "replace")
            )
    return {name: RepeatedHeader(each) for name, each in values.items() if len(each) > 1}
