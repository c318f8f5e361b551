"""The address of a PostgreSQL server: what the driver needs, and a form without the password that may be shown."""

from __future__ import annotations

from collections.abc import Mapping

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from limpet.errors import UsageError

DEFAULTS = {
    "connect_timeout": "10",
    "application_name": "limpet",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "2",
    "tcp_user_timeout": "20000",
}
"""Settings of the driver that the user's address may override.

The system itself notices within 20 seconds that a connection is dead, also one that waits for a notification or for a
migration: it asks for a sign of life, and gives up what it can't deliver.
"""

DRIVERS_CONNECT_TIMEOUT = 130
"""Seconds that the driver allows for a new connection where no limit is given."""


class Address:
    """A URL or connection string, parsed. Its text form leaves the password out.

    Raises `UsageError` for one that can't be parsed; the message never quotes it, as it may have the password.
    """

    __slots__ = ("connect_timeout", "conninfo", "database", "password", "text", "user")

    def __init__(self, url: str) -> None:
        try:
            given = conninfo_to_dict(url)
        except psycopg.Error:
            given = {}
        if not given or not _is_plausible(given):
            raise UsageError(
                "the address of the PostgreSQL server can't be read: write postgresql://user:password@host:port/"
                "database, with special characters of the password as %XX, and only options that exist"
            )
        self.conninfo = make_conninfo("", **{**DEFAULTS, **given})
        self.connect_timeout = _seconds(given.get("connect_timeout"))
        self.password = str(given.get("password") or "")
        self.user = str(given.get("user") or "")
        self.database = str(given.get("dbname") or "")
        self.text = _without_password(given)

    def __repr__(self) -> str:
        return f"<Address {self.text}>"

    def __str__(self) -> str:
        return self.text

    def clean(self, text: str) -> str:
        """`text` with "…" in place of the password."""
        return text.replace(self.password, "…") if self.password else text


def _seconds(given: object) -> int:
    """The whole seconds that a new connection may take; as for the driver, 0 or less stands for its own limit."""
    try:
        seconds = int(float(str(given or DEFAULTS["connect_timeout"])))
    except (ValueError, OverflowError):  # infinity
        raise UsageError(f"connect_timeout must be a number of seconds, not {given!r}") from None
    return seconds if seconds > 0 else DRIVERS_CONNECT_TIMEOUT


def _is_plausible(given: Mapping[str, object]) -> bool:
    """False where a slash or an @ in the password has made its rest the host, the port or the database."""
    ports = str(given.get("port") or "").split(",")
    hosts = str(given.get("host") or "").split(",")
    return (
        all(not port or port.isdecimal() for port in ports)
        and "@" not in str(given.get("dbname") or "")
        and not any("@" in host[1:] for host in hosts)  # an @ at the start is an abstract socket
    )


def _without_password(given: Mapping[str, object]) -> str:
    user = f"{given['user']}@" if given.get("user") else ""
    host = str(given.get("host") or given.get("hostaddr") or "")
    port = f":{given['port']}" if given.get("port") else ""
    database = str(given.get("dbname") or "")
    if host.startswith("/"):
        return f"postgresql://{user}{port}/{database} at {host}"
    return f"postgresql://{user}{host}{port}/{database}"
