"""What JSON has no word for, written as text: moments, durations, decimals, ids, bytes. Bad text is a ValueError."""

import binascii
import re
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Final
from uuid import UUID

_MOMENT: Final = re.compile(
    r"\d{4}-\d\d-\d\d[T ](?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?P<point>\.(?P<fraction>\d+))?"
    r"(?:Z|[+-](?:[01]\d|2[0-3]):?[0-5]\d)?",
    re.ASCII | re.IGNORECASE,
)
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_AMOUNT: Final = r"(?:(\d{1,18})(?:\.(\d+))?%s)?"
_DURATION: Final = re.compile(
    rf"(?P<sign>[+-])?P(?=.)(?:{_AMOUNT % 'D'})(?:T(?=.){_AMOUNT % 'H'}{_AMOUNT % 'M'}{_AMOUNT % 'S'})?",
    re.ASCII | re.IGNORECASE,
)
_DECIMAL: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:E[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_UUID: Final = re.compile(r"[0-9a-f]{32}|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
_INTEGER: Final = re.compile(r"-?(?:0|[1-9]\d*)", re.ASCII)

_MICROSECONDS: Final = (86_400_000_000, 3_600_000_000, 60_000_000, 1_000_000)
"""In a day, an hour, a minute and a second."""
_FRACTION_DIGITS: Final = 15
_MICRO_DIGITS: Final = 6
_EXACT_DIGITS: Final = 15
"""A binary float gives every decimal of so many digits back unchanged, and no more."""
_MINUTE: Final = timedelta(minutes=1)


def _matched(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    match = pattern.fullmatch(text)
    if match is None:
        raise ValueError(pattern.pattern)
    return match


def _part(fraction: str, unit: int) -> int:
    """The decimal `fraction` of the unit, in whole microseconds, a half rounded up."""
    digits = int(fraction[:_FRACTION_DIGITS].ljust(_FRACTION_DIGITS, "0"))
    whole = 10**_FRACTION_DIGITS
    return (digits * unit + whole // 2) // whole


def read_datetime(text: str) -> datetime:
    """The moment that an RFC 3339 text names; naive if it has no offset, to the nearest microsecond."""
    match = _matched(_MOMENT, text)
    fraction = match["fraction"]
    if fraction is None or len(fraction) <= _MICRO_DIGITS:
        return datetime.fromisoformat(text.upper())
    begin, end = match.span("point")
    whole = datetime.fromisoformat((text[:begin] + text[end:]).upper())
    return whole + timedelta(microseconds=_part(fraction, _MICROSECONDS[-1]))


def read_time(text: str) -> time:
    """The time of day that an RFC 3339 text names; one that would round up to midnight is refused."""
    moment = read_datetime(f"2000-01-01T{text}")
    if moment.day != 1:
        raise ValueError(text)
    return moment.timetz()


def write_moment(moment: datetime | time) -> str:
    """The moment in RFC 3339, UTC as Z; an offset that RFC 3339 cannot tell exactly is refused."""
    offset = moment.utcoffset()
    if offset is None and moment.tzinfo is not None:
        raise ValueError("a time zone without an offset")
    if offset and offset % _MINUTE:
        raise ValueError("an offset that is not in whole minutes")
    if offset is None or offset:
        return moment.isoformat()
    return moment.replace(tzinfo=None).isoformat() + "Z"


def read_date(text: str) -> date:
    """The day that an RFC 3339 text names."""
    return date.fromisoformat(_matched(_DATE, text)[0])


def write_date(day: date) -> str:
    """The day in RFC 3339."""
    return day.isoformat()


def read_duration(text: str) -> timedelta:
    """The duration that an ISO 8601 text names in days, hours, minutes, seconds; only the last may have a fraction."""
    match = _matched(_DURATION, text)
    amounts = match.groups()[1:]
    microseconds, broken = 0, False
    for whole, fraction, unit in zip(amounts[::2], amounts[1::2], _MICROSECONDS, strict=True):
        if whole is None:
            continue
        if broken:
            raise ValueError("only the last unit may have a fraction")
        microseconds += int(whole) * unit + _part(fraction or "0", unit)
        broken = fraction is not None
    return timedelta(microseconds=-microseconds if match["sign"] == "-" else microseconds)


def write_duration(duration: timedelta) -> str:
    """The duration in ISO 8601, in days and seconds."""
    size = abs(duration)
    days, seconds, micro = size.days, size.seconds, size.microseconds
    clock = f"T{seconds}" + (f".{micro:06d}".rstrip("0") if micro else "") + "S" if seconds or micro else ""
    text = f"{days}D" if days or not clock else ""
    return ("-" if duration.days < 0 else "") + "P" + text + clock


def read_decimal(text: str) -> Decimal:
    """Exactly the number in the text."""
    return Decimal(_matched(_DECIMAL, text)[0])


def decimal_of(number: float) -> Decimal:
    """The decimal that was written as this JSON number; one with more digits than a float keeps is refused."""
    exact = Decimal(repr(number))
    if type(number) is float and len(exact.as_tuple().digits) > _EXACT_DIGITS:
        raise ValueError("too many digits for a JSON number: a decimal is exact as a string")
    return exact


def write_decimal(number: Decimal) -> str:
    """Every digit of the number; NaN and the infinities are refused."""
    if not number.is_finite():
        raise ValueError("not a finite number")
    return str(number)


def read_uuid(text: str) -> UUID:
    """The UUID of 32 hexadecimal digits, with the usual hyphens or none."""
    return UUID(_matched(_UUID, text)[0])


def read_bytes(text: str) -> bytes:
    """The bytes that a padded base64 text of the standard alphabet stands for."""
    if len(text) % 4:  # binascii's own strictness lets a superfluous padding pass
        raise ValueError("not padded")
    return binascii.a2b_base64(text, strict_mode=True)


def write_bytes(data: bytes) -> str:
    """The bytes in padded base64 of the standard alphabet."""
    return binascii.b2a_base64(data, newline=False).decode("ascii")


def read_integer(text: str) -> int:
    """The integer in plain decimal digits, without a plus sign or leading zeros."""
    return int(_matched(_INTEGER, text)[0])
