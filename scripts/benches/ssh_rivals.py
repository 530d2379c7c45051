"""`true`, or a command whose output is shown, on hosts of a known-hosts file, by another library.

python ssh_rivals.py NAME KNOWN_HOSTS KEY USER COUNT [COMMAND]
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path


def parallel_ssh(hosts: list[str], key: str, user: str) -> None:
    from pssh.clients import ParallelSSHClient

    client = ParallelSSHClient(hosts, user=user, pkey=key, pool_size=len(hosts))
    output = client.run_command("true")
    client.join(output)
    assert all(host.exit_code == 0 for host in output)


def parallel_ssh_lines(hosts: list[str], key: str, user: str, command: str) -> None:
    """Print each line with its host; hosts that are read one after the other take minutes."""
    from gevent import joinall, spawn
    from pssh.clients import ParallelSSHClient
    from pssh.output import HostOutput

    def show(host: HostOutput) -> None:
        for line in host.stdout:
            print(f"[{host.host}] {line}")

    client = ParallelSSHClient(hosts, user=user, pkey=key, pool_size=len(hosts))
    output = client.run_command(command)
    joinall([spawn(show, host) for host in output], raise_error=True)
    client.join(output)
    assert all(host.exit_code == 0 for host in output)


def libssh2(hosts: list[str], key: str, user: str) -> None:
    """The C library that parallel-ssh drives, in plain threads and with nothing around it."""
    import socket
    from concurrent.futures import ThreadPoolExecutor

    from ssh2.session import Session

    def run(host: str) -> int:
        with socket.create_connection((host, 22)) as connected:
            session = Session()
            session.handshake(connected)
            session.userauth_publickey_fromfile(user, key)
            channel = session.open_session()
            channel.execute("true")
            channel.wait_eof()
            channel.close()
            channel.wait_closed()
            status = int(channel.get_exit_status())
            session.disconnect()
            return status

    with ThreadPoolExecutor(32) as pool:
        assert not any(pool.map(run, hosts))


def fabric(hosts: list[str], key: str, user: str) -> None:
    from fabric import ThreadingGroup

    connect = {"key_filename": key, "look_for_keys": False, "allow_agent": False}
    group = ThreadingGroup(*hosts, user=user, connect_kwargs=connect)
    results = group.run("true", hide=True)
    assert all(result.ok for result in results.values())


RIVALS: dict[str, Callable[..., None]] = {
    "parallel-ssh": parallel_ssh,
    "parallel-ssh, lines": parallel_ssh_lines,
    "libssh2, bare": libssh2,
    "Fabric": fabric,
}


def main(name: str, known_hosts: str, key: str, user: str, count: str, *command: str) -> None:
    lines = Path(known_hosts).read_text().splitlines()
    hosts = [line.split()[0] for line in lines][: int(count)]
    RIVALS[name](hosts, key, user, *command)


if __name__ == "__main__":
    main(*sys.argv[1:])
