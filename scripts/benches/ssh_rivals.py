"""`true` on every host of a known-hosts file, by another library: parallel-ssh or fabric.

python ssh_rivals.py parallel-ssh|fabric KNOWN_HOSTS KEY USER COUNT
"""

from __future__ import annotations

import sys
from pathlib import Path


def parallel_ssh(hosts: list[str], key: str, user: str) -> None:
    from pssh.clients import ParallelSSHClient

    client = ParallelSSHClient(hosts, user=user, pkey=key, pool_size=len(hosts))
    output = client.run_command("true")
    client.join(output)
    assert all(host.exit_code == 0 for host in output)


def fabric(hosts: list[str], key: str, user: str) -> None:
    from fabric import ThreadingGroup

    connect = {"key_filename": key, "look_for_keys": False, "allow_agent": False}
    group = ThreadingGroup(*hosts, user=user, connect_kwargs=connect)
    results = group.run("true", hide=True)
    assert all(result.ok for result in results.values())


def main(name: str, known_hosts: str, key: str, user: str, count: str) -> None:
    lines = Path(known_hosts).read_text().splitlines()
    hosts = [line.split()[0] for line in lines][: int(count)]
    {"parallel-ssh": parallel_ssh, "fabric": fabric}[name](hosts, key, user)


main(*sys.argv[1:])
