"""The three kinds of request: empty base classes for dataclasses, msgspec structs and pydantic models."""


class Request:
    """What a handler handles. Inherit from Command, Event or Document."""

    __slots__ = ()


class Command(Request):
    """Something to be done, by exactly one handler."""

    __slots__ = ()


class Event(Request):
    """Something that happened, for any number of handlers."""

    __slots__ = ()


class Document(Request):
    """Data for one handler."""

    __slots__ = ()
