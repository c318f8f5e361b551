"""The address of a PostgreSQL server: what the driver needs, and a form without the password that may be shown."""

from __future__ import annotations

from collections.abc import Mapping

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from limpet.errors import UsageError

DEFAULTS = {"connect_timeout": "10", "application_name": "limpet", "tcp_user_timeout": "30000"}
"""Settings of the driver that the user's address may override."""


class Address:
    """A URL or connection string, parsed. Its text form leaves the password out.

    Raises `UsageError` for one that can't be parsed; the message never quotes it, as it may have the password.
    """

    __slots__ = ("conninfo", "database", "password", "text", "user")

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
