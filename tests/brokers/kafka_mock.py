"""Serves the broker that is within the client library: `python kafka_mock.py ADDRESS_FILE CONTROL_SOCKET`.

Its address is written to the file when it serves. Each line that comes to the socket is a JSON list: the name of one of
the calls below and its arguments; the answer is "done", or what went wrong.
"""

import ctypes
import json
import socket
import sys
from pathlib import Path
from typing import Any

import confluent_kafka

BROKER = 1
ERROR_LENGTH = 512


def _library() -> Any:
    wheels = Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs"
    library = ctypes.CDLL(str(next(wheels.glob("librdkafka-*.so*"))))
    pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
    kinds: dict[str, tuple[Any, list[Any]]] = {
        "rd_kafka_conf_new": (pointer, []),
        "rd_kafka_conf_set": (number, [pointer, text, text, text, ctypes.c_size_t]),
        "rd_kafka_new": (pointer, [number, pointer, text, ctypes.c_size_t]),
        "rd_kafka_mock_cluster_new": (pointer, [pointer, number]),
        "rd_kafka_mock_cluster_bootstraps": (text, [pointer]),
        "rd_kafka_mock_topic_create": (number, [pointer, text, number, number]),
        "rd_kafka_mock_topic_set_error": (None, [pointer, text, number]),
        "rd_kafka_mock_broker_set_down": (number, [pointer, ctypes.c_int32]),
        "rd_kafka_mock_broker_set_up": (number, [pointer, ctypes.c_int32]),
        "rd_kafka_mock_topic_delete": (number, [pointer, text]),
        "rd_kafka_mock_broker_set_host_port": (number, [pointer, ctypes.c_int32, text, number]),
        "rd_kafka_mock_broker_set_rtt": (number, [pointer, ctypes.c_int32, number]),
        "rd_kafka_mock_push_request_errors_array": (
            None,
            [pointer, ctypes.c_int16, ctypes.c_size_t, ctypes.POINTER(number)],
        ),
        "rd_kafka_mock_clear_request_errors": (None, [pointer, ctypes.c_int16]),
        "rd_kafka_mock_group_initial_rebalance_delay_ms": (None, [pointer, ctypes.c_int32]),
    }
    for name, (result, arguments) in kinds.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class Cluster:
    """One broker, and what can be done to it."""

    def __init__(self) -> None:
        self._library = library = _library()
        error = ctypes.create_string_buffer(ERROR_LENGTH)
        settings = library.rd_kafka_conf_new()
        library.rd_kafka_conf_set(settings, b"log_level", b"0", error, ERROR_LENGTH)
        client = library.rd_kafka_new(0, settings, error, ERROR_LENGTH)
        self._cluster = library.rd_kafka_mock_cluster_new(client, 1)
        library.rd_kafka_mock_group_initial_rebalance_delay_ms(self._cluster, 0)

    @property
    def address(self) -> str:
        return str(self._library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode())

    def down(self) -> None:
        self._check(self._library.rd_kafka_mock_broker_set_down(self._cluster, BROKER))

    def up(self) -> None:
        self._check(self._library.rd_kafka_mock_broker_set_up(self._cluster, BROKER))

    def slow(self, milliseconds: int) -> None:
        """Every answer takes so long."""
        self._check(self._library.rd_kafka_mock_broker_set_rtt(self._cluster, BROKER, milliseconds))

    def topic(self, name: str, partitions: int) -> None:
        self._check(self._library.rd_kafka_mock_topic_create(self._cluster, name.encode(), partitions, 1))

    def no_topic(self, name: str) -> None:
        self._check(self._library.rd_kafka_mock_topic_delete(self._cluster, name.encode()))

    def advertise(self, port: int) -> None:
        """Clients are told to come to this port of the same machine."""
        self._check(self._library.rd_kafka_mock_broker_set_host_port(self._cluster, BROKER, b"127.0.0.1", port))

    def refuse_topic(self, name: str, error: int) -> None:
        """Every record for the topic is refused with that error; 0 ends it."""
        self._library.rd_kafka_mock_topic_set_error(self._cluster, name.encode(), error)

    def refuse(self, request: int, *errors: int) -> None:
        """The next requests of a kind, by its number in the protocol, are answered with these errors."""
        array = (ctypes.c_int * len(errors))(*errors)
        self._library.rd_kafka_mock_push_request_errors_array(self._cluster, request, len(errors), array)

    def accept(self, request: int) -> None:
        """No request of the kind is refused any more."""
        self._library.rd_kafka_mock_clear_request_errors(self._cluster, request)

    def _check(self, error: int) -> None:
        if error:
            raise ValueError(f"error {error}")


def main(address: Path, control: str) -> None:
    """Serve until killed."""
    cluster = Cluster()
    Path(control).unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(control)
        listener.listen()
        new = address.with_suffix(".new")
        new.write_text(cluster.address)
        new.replace(address)
        while True:
            connection, _ = listener.accept()
            with connection, connection.makefile() as lines:
                for line in lines:
                    connection.sendall(_answer(cluster, *json.loads(line)).encode() + b"\n")


def _answer(cluster: Cluster, call: str, *arguments: Any) -> str:
    try:
        getattr(cluster, call)(*arguments)
    except Exception as error:
        return repr(error)
    return "done"


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
