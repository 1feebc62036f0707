"""The three kinds of request: bare markers, so that dataclasses, msgspec structs and pydantic models can inherit."""


class Request:
    """What a handler handles. Inherit from Command, Event or Document."""

    __slots__ = ()


class Command(Request):
    """Something to be done, by exactly one handler."""

    __slots__ = ()


class Event(Request):
    """Something that happened; any number of handlers may care."""

    __slots__ = ()


class Document(Request):
    """Data handed over, for one handler."""

    __slots__ = ()
