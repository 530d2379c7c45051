"""The network that users really have, with Google's rules: open to everybody, said so, closed."""

from __future__ import annotations

import json
import subprocess
import sys
from urllib.request import Request, urlopen

import pytest

from tpukit.emulator import Emulator

pytestmark = pytest.mark.process


def test_an_open_network_is_told_and_the_rule_of_a_slice_lets_us_in_once_it_is_closed() -> None:
    with Emulator(workers="ssh") as cloud:

        def run(*words: str, status: int = 0) -> str:
            line = [sys.executable, "-P", "-m", "tpukit", *words]
            done = subprocess.run(
                line, env=cloud.env, capture_output=True, text=True, timeout=120, check=False
            )
            assert done.returncode == status, done
            return done.stdout + done.stderr

        run("create", "v3-8", "demo", "--no-firewall")
        run("ssh", "demo", "--", "true")
        told = run("firewall", "audit", status=9)
        assert "rule default-allow-ssh lets the whole world reach port 22" in told
        assert "gcloud compute firewall-rules update default-allow-ssh --disabled" in told
        made = run("firewall", "apply", "demo")
        assert "opened: tcp:22 from 127." in made
        assert "it lets you in when default-allow-ssh, open to everybody, is closed" in made
        assert "lets the whole world reach port 22" in made
        rule = next(each for each in run("firewall", "list").split() if each.startswith("tpukit-"))
        path = "/compute/v1/projects/tpukit-local/global/firewalls/default-allow-ssh"
        patch(cloud, path, {"disabled": True})
        run("ssh", "demo", "--", "true")
        run("firewall", "audit")
        run("firewall", "remove", rule)
        assert "no firewall rule of network default admits tcp:22" in run(
            "ssh", "demo", "--timeout", "3s", "--", "true", status=255
        )


def patch(cloud: Emulator, path: str, body: dict[str, object]) -> None:
    """Do what the command of the audit does."""
    request = Request(cloud.url + path, json.dumps(body).encode(), method="PATCH")
    request.add_header("Authorization", f"Bearer {cloud.token}")
    with urlopen(request, timeout=60) as answer:
        assert answer.status == 200
