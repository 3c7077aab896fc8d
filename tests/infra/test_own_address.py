"""The address that this machine is seen with, from services that may answer with anything."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Callable, Iterator

import pytest

from infra import own_address
from infra.errors import ProviderError

Service = Callable[[bytes], str]


@pytest.fixture
def service() -> Iterator[Service]:
    """Makes a local HTTP service that answers each request with the bytes given; tells its address."""
    servers: list[socketserver.TCPServer] = []

    def make(answer: bytes) -> str:
        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                while self.rfile.readline().strip():  # to the end of the request's headers
                    pass
                self.wfile.write(answer)

        server = socketserver.TCPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return f"http://127.0.0.1:{server.server_address[1]}/"

    yield make
    for server in servers:
        server.shutdown()
        server.server_close()


def http(body: str, *, status: str = "200 OK") -> bytes:
    content = body.encode()
    return f"HTTP/1.0 {status}\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content


WRONG = {
    "a page": http("<!DOCTYPE html>\n<html>Sign in to the hotel's network é</html>" * 9),
    "an empty body": http(""),
    "no answer": b"",
    "no HTTP": b"\x15\x03\x01 what?\r\n\r\n",
    "a body cut off": b"HTTP/1.0 200 OK\r\nContent-Length: 50\r\n\r\n",
    "500": http("203.0.113.9", status="500 Internal Server Error"),
    "the whole world": http("0.0.0.0/0"),
    "a network": http("203.0.113.0/24"),
}


@pytest.mark.parametrize(
    ("answer", "network"), [("203.0.113.7\n", "203.0.113.7/32"), (" 2001:db8::7 ", "2001:db8::7/128")]
)
def test_an_address_is_told_as_a_network_of_one(answer: str, network: str, service: Service) -> None:
    assert own_address.find([service(http(answer))]) == network


@pytest.mark.parametrize("answer", WRONG.values(), ids=WRONG.keys())
def test_the_second_is_asked_when_the_first_answers_with_no_address(answer: bytes, service: Service) -> None:
    assert own_address.find([service(answer), service(http("203.0.113.7"))]) == "203.0.113.7/32"


@pytest.mark.parametrize("answer", WRONG.values(), ids=WRONG.keys())
def test_no_address_is_one_sentence_with_each_service_and_the_key_to_write(answer: bytes, service: Service) -> None:
    urls = [service(answer), service(answer)]
    with pytest.raises(ProviderError, match=r'ssh_from: \["203.0.113.7"\]') as error:
        own_address.find(urls)
    assert all(url in str(error.value) for url in urls)
    assert "\n" not in str(error.value)


def test_nobody_there_is_told_too(service: Service) -> None:
    gone = service(b"").replace("127.0.0.1", "127.0.0.2")
    with pytest.raises(ProviderError, match="ssh_from"):
        own_address.find([gone])
