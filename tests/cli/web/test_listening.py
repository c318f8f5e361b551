"""Where a server listens, and what other machines need to reach it."""

from __future__ import annotations

import errno
import socket
from contextlib import ExitStack

import pytest

from limpet.cli.web import listening
from limpet.cli.web.listening import Address, checked_address, listen, why_not
from limpet.errors import UsageError


@pytest.mark.parametrize(
    ("host", "url", "known"),
    [
        ("127.0.0.1", "http://127.0.0.1:{}/x", "127.0.0.1"),
        ("LocalHost", "http://localhost:{}/x", "localhost"),
        ("0.0.0.0", "http://127.0.0.1:{}/x", "0.0.0.0"),
        ("0", "http://127.0.0.1:{}/x", "0.0.0.0"),
        ("::1", "http://[::1]:{}/x", "[::1]"),
        ("[0:0::1]", "http://[::1]:{}/x", "[::1]"),
        ("::", "http://[::1]:{}/x", "[::]"),
    ],
)
def test_the_url_is_one_that_a_browser_on_this_machine_can_open(host: str, url: str, known: str) -> None:
    """H19: whatever the address is called; requests may name it, and the names that are allowed."""
    try:
        found = listen(Address(host, 0, "t+/=", ["runs.example"]))
    except OSError:
        pytest.skip("this machine has no such address")
    with found.socket:
        assert found.url("/x") == f"{url.format(found.port)}?token=t%2B%2F%3D"
        assert found.url("/x", with_token=False) == url.format(found.port)
        assert {known, "runs.example", "localhost", "127.0.0.1", "[::1]"} <= {*found.hosts}
        assert _connects(url.format(found.port))


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_the_wildcard_of_ipv6_listens_on_ipv4_as_well() -> None:
    """H19."""
    found = listen(Address("::", 0, "a-token-of-the-tests"))
    with found.socket:
        assert _connects(f"http://127.0.0.1:{found.port}")


def _connects(url: str) -> bool:
    host, _, port = url.removeprefix("http://").partition("/")[0].rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), timeout=60):
        return True


def test_another_port_is_taken_where_the_usual_one_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """H20: two servers of one user need no options; who asked for a port gets that one, or an error."""
    with ExitStack() as opened:
        taken = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        monkeypatch.setattr(listening, "PORT", taken.getsockname()[1])
        found = listen(Address())
        opened.enter_context(found.socket)
        assert found.port not in (0, listening.PORT)
        asked = Address(port=listening.PORT)
        with pytest.raises(OSError, match="in use") as refused:
            listen(asked)
        reason = why_not(refused.value, asked)
        assert reason.startswith(f"port {listening.PORT} of 127.0.0.1 is in use: give another --port")


def test_a_reserved_port_is_left_to_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """H20: Windows reserves ranges of ports."""
    bound = listening._bound

    def reserved(host: str, port: int) -> socket.socket:
        if port:
            raise PermissionError(errno.EACCES, "forbidden")
        return bound(host, port)

    monkeypatch.setattr(listening, "_bound", reserved)
    with listen(Address()).socket as found:
        assert found.getsockname()[1] not in (0, listening.PORT)


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        ("192.0.2.1", "can't listen on port 0 of 192.0.2.1: Cannot assign requested address"),
        ("host.invalid", "can't listen on port 0 of host.invalid: "),
    ],
)
def test_an_address_of_another_machine_is_refused(host: str, reason: str) -> None:
    """H19: with what the system says, without what it tried."""
    address = Address(host, 0)
    with pytest.raises(OSError, match=r"\w") as refused:
        listen(address)
    assert why_not(refused.value, address).startswith(reason)
    assert "attempting" not in why_not(refused.value, address)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", " LOCALHOST "])
def test_programs_on_this_machine_need_no_token_that_was_chosen(host: str) -> None:
    """H19: one is generated, a different one each time."""
    assert checked_address(host, 0, "", ()).token == ""
    tokens = set()
    for _ in range(2):
        found = listen(Address(port=0))
        found.socket.close()
        tokens.add(found.token)
    assert [len(token) for token in tokens] == [32, 32]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "0", "127.1", "localhost.example", "::ffff:192.0.2.1"])
def test_other_machines_need_a_token_that_was_chosen(host: str) -> None:
    """H19: also where a host only looks like this machine."""
    with pytest.raises(UsageError, match="so choose a token"):
        checked_address(host, 0, "", ())
    with pytest.raises(UsageError, match="needs 16 characters or more, not 15"):
        checked_address(host, 0, "x" * 15, ())
    assert checked_address(host, 0, "x" * 16, ()).token == "x" * 16


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        "*",
        "a b",
        "a..b",
        ".a",
        "a.",
        "x" * 64,
        "a." * 127 + "a",
        "http://a",
        "a:80",
        "[::1",
        "::1]",
        "é",
    ],
)
def test_what_cannot_be_a_host_is_refused(name: str) -> None:
    """H19: as the address, and as another name of it."""
    for host, names in ((name, []), ("localhost", [name])):
        with pytest.raises(UsageError, match="isn't the name or the address of a host, without a port"):
            checked_address(host, 0, "a-token-of-the-tests", names)


def test_small_answers_do_not_wait_for_an_acknowledgement() -> None:
    """H19: of their head, which takes 40 ms: connections send what they have at once."""
    found = listen(Address("127.0.0.1", 0, "token"))
    with found.socket, socket.create_connection(("127.0.0.1", found.port)):
        connection, _ = found.socket.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
