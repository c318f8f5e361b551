"""Indirect connections to a PostgreSQL server: through TLS, and through a pooler."""

from __future__ import annotations

import datetime
import os
import pwd
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from support.postgres import PATIENCE, Server
from support.redis_servers import free_port


def certificates(folder: Path, host: str) -> tuple[Path, Path]:
    """The files of a new certificate for `host`, signed by itself, and of its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    folder.mkdir(exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host)])
    now = datetime.datetime.now(datetime.UTC)
    names: list[x509.GeneralName] = [x509.DNSName(host)]
    with suppress(ValueError):
        names = [x509.IPAddress(ip_address(host))]
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate = folder / "server.crt"
    private = folder / "server.key"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return certificate, private


@contextmanager
def tls_in_front_of(server: Server, certificate: Path, key: Path) -> Iterator[int]:
    """A port that leads to the server through TLS only, as its own binary may lack TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    there = f"{server._server.get_postmaster_info().socket_dir}/.s.PGSQL.5432"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_accept, args=(listener, context, there), daemon=True).start()
        yield listener.getsockname()[1]


def _accept(listener: socket.socket, context: ssl.SSLContext, there: str) -> None:
    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_serve, args=(client, context, there), daemon=True).start()


def _serve(client: socket.socket, context: ssl.SSLContext, there: str) -> None:
    with suppress(OSError), client, socket.socket(socket.AF_UNIX) as server:
        if client.recv(8)[4:] != b"\x04\xd2\x16\x2f":  # the request for TLS
            return
        client.sendall(b"S")
        with context.wrap_socket(client, server_side=True) as inside:
            server.connect(there)
            back = threading.Thread(target=_relay, args=(server, inside), daemon=True)
            back.start()
            _relay(inside, server)
            back.join(PATIENCE)


def _relay(source: Any, target: Any) -> None:
    with suppress(OSError, ValueError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_RDWR)


@contextmanager
def pgbouncer(server: Server, folder: Path) -> Iterator[int]:
    """The port of a PgBouncer that gives each transaction any of a few sessions."""
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if program is None:
        pytest.skip("no pgbouncer here: apt-get install pgbouncer")
    port = free_port()
    owner = os.stat(server.data)
    folder.mkdir()
    (folder / "users.txt").write_text('"postgres" ""\n')
    (folder / "pgbouncer.ini").write_text(
        f"[databases]\n* = host={server._server.get_postmaster_info().socket_dir}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = trust\n"
        f"auth_file = {folder}/users.txt\npool_mode = transaction\ndefault_pool_size = 3\nserver_round_robin = 1\n"
    )
    shutil.copytree(folder, shown := server.folder / f"pgbouncer-{port}")
    (shown / "pgbouncer.ini").write_text(
        (folder / "pgbouncer.ini").read_text().replace(str(folder), str(shown))
    )
    for path in (shown, *shown.iterdir()):
        os.chown(path, owner.st_uid, owner.st_gid)
    as_user = ["-u", pwd.getpwuid(owner.st_uid).pw_name] if os.geteuid() == 0 else []
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen([program, *as_user, str(shown / "pgbouncer.ini")], stdout=log, stderr=log)
    try:
        _wait_for(port, process, folder / "log")
        yield port
    finally:
        process.terminate()
        process.wait(PATIENCE)


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, "pgbouncer doesn't answer"
