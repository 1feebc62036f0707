"""URLs and options: what they say, one wording for what is wrong with them, and never a password."""

import traceback
from datetime import timedelta

import pytest

from pump.errors import ConfigurationError
from pump.transport_kit.settings import TransportURL, at_least, finite_seconds, one_of, read_url

FORM = "mq://user:password@host:port/room?option=value"


def read(url: str, *, takes_others: bool = False) -> TransportURL:
    options = {"size": int, "wait": float, "name": str}
    return read_url(url, FORM, options, schemes=("mq", "mqs"), takes_others=takes_others)


def refusal(url: str) -> str:
    with pytest.raises(ConfigurationError) as refused:
        read(url).hosts()
    assert "hush" not in "".join(traceback.format_exception(refused.value))
    return str(refused.value)


def test_a_url_is_decoded() -> None:
    url = read("mqs://me%2B:p%40ss%2F@broker:12/my%2Froom?size=3&wait=0.5&name=a%26b")

    assert (url.scheme, url.user, url.password, url.path) == ("mqs", "me+", "p@ss/", "my/room")
    assert (url.host, url.port) == ("broker", 12)
    assert url.options == {"size": 3, "wait": 0.5, "name": "a&b"}


def test_what_is_left_out_is_none() -> None:
    url = read("mq://")

    assert (url.user, url.password, url.path, url.host, url.port) == (None, None, "", None, None)
    assert url.options == {}


def test_a_user_without_a_password_has_none() -> None:
    assert read("mq://token@h").password is None
    assert read("mq://me:@h").password == ""


def test_there_may_be_several_hosts() -> None:
    url = read("mq://me:secret@a:1,b,[::1]:2/")

    assert url.hosts() == [("a", 1), ("b", None), ("::1", 2)]
    with pytest.raises(ConfigurationError, match="several hosts"):
        _ = url.host


def test_a_url_without_hosts_has_a_name() -> None:
    assert read("mq://shop%20one/east").name == "shop one/east"


def test_options_of_the_client_are_passed_on_where_that_is_wanted() -> None:
    url = read("mq://h?size=3&sslmode=require", takes_others=True)

    assert (url.options, url.others) == ({"size": 3}, {"sslmode": "require"})


@pytest.mark.parametrize(
    ("rest", "word"),
    [
        ("@h/?colour=red", "do not know colour; their options: size, wait, name"),
        ("@h/?size=many", "the option size cannot be 'many'"),
        ("@h/?size=1&size=2", "the option size is given twice"),
        ("@h/?size", "name=value"),
        ("@h:port/", "port is not a number"),
        ("@h:99999/", "port is not a number"),
        ("@h/#part", "#"),
        ("@h/#", "#"),
        ("@[::1/", "cannot be read"),
        ("@:1/", "no name"),
        ("/with-a-slash@h/", "%2F"),
        ("", "%2F"),
    ],
)
def test_a_url_that_cannot_be_read_is_refused_and_not_shown(rest: str, word: str) -> None:
    assert word in refusal(f"mq://me:hush{rest}")


def test_another_scheme_is_refused() -> None:
    assert refusal("http://me:hush@h") == "http:// is not one of mq://, mqs://"


def test_an_error_of_the_transport_says_what_the_url_should_be() -> None:
    error = read("mq://me:hush@h/room").error("it has a path")

    assert "it has a path" in str(error)
    assert FORM in str(error)
    assert "hush" not in str(error)


def test_a_url_does_not_show_its_password() -> None:
    assert "hush" not in repr(read("mq://me:hush@h"))


def test_options_are_checked_alike_however_they_were_given() -> None:
    assert finite_seconds("mq", "lease", timedelta(minutes=1)) == 60.0
    for wrong in (0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ConfigurationError, match="mq: lease must be longer than 0 s and finite"):
            finite_seconds("mq", "lease", wrong)
    at_least("mq", "prefetch", None, 1)
    at_least("mq", "prefetch", 1, 1)
    with pytest.raises(ConfigurationError, match="mq: prefetch must be at least 1, not 0"):
        at_least("mq", "prefetch", 0, 1)
    one_of("mq", "kind", "a", ("a", "b"))
    with pytest.raises(ConfigurationError, match="mq: kind must be one of 'a', 'b', not 'c'"):
        one_of("mq", "kind", "c", ("a", "b"))
