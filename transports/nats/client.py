"""nats-py's client, except that it reads every value of a header that stands several times: nats-py keeps the last.

It overrides a private method, tried on nats-py 2.16. Where nats-py does not call that, the last value is all there is.
"""

from nats.aio.client import Client

from pump.transports.nats.headers import RepeatedHeader

_AROUND = 2
"""Ends of lines beside those of the headers: of the first line, and of the empty last one."""


class PumpClient(Client):
    """A client whose messages have a RepeatedHeader where a header stands several times."""

    async def _process_headers(self, headers: bytes | None) -> dict[str, str] | None:
        found = await super()._process_headers(headers)
        if headers and found and headers.count(b"\r\n") - _AROUND > len(found):
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
