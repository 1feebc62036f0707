"""A message-pump framework that loses nothing: handlers, pumps and pluggable transports."""

from pump.attribute import Attribute, Rest, Steps
from pump.clock import ManualClock, SystemClock
from pump.context import Context
from pump.errors import (
    ConfigurationError,
    DeferMessageAction,
    DontAckAction,
    HandlerTimeout,
    InvalidMessageAction,
    LeaseLost,
    MessageAction,
    PublishError,
    PublishExhausted,
    PumpError,
    RejectMessageAction,
    SetupError,
    TransportError,
    UnknownPublication,
)
from pump.handling.delivery import AsyncDelivery, Delivery
from pump.handling.registry import RequestHandler
from pump.mapping.mapper import JsonMapper, Mapper
from pump.message import Header, Message
from pump.program.dispatcher import Dispatcher
from pump.program.processor import CommandProcessor, Post
from pump.request import Command, Document, Event
from pump.subscription import Publication, Subscription

__all__ = [
    "AsyncDelivery",
    "Attribute",
    "Command",
    "CommandProcessor",
    "ConfigurationError",
    "Context",
    "DeferMessageAction",
    "Delivery",
    "Dispatcher",
    "Document",
    "DontAckAction",
    "Event",
    "HandlerTimeout",
    "Header",
    "InvalidMessageAction",
    "JsonMapper",
    "LeaseLost",
    "ManualClock",
    "Mapper",
    "Message",
    "MessageAction",
    "Post",
    "Publication",
    "PublishError",
    "PublishExhausted",
    "PumpError",
    "RejectMessageAction",
    "RequestHandler",
    "Rest",
    "SetupError",
    "Steps",
    "Subscription",
    "SystemClock",
    "TransportError",
    "UnknownPublication",
]
