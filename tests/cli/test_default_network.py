"""The network that users really have, with Google's rules: open to everybody, said so, closed."""

from __future__ import annotations

import pytest
from support import warm_tpukit
from support.local_cloud import let_everybody_in

from tpukit.emulator import Emulator

pytestmark = pytest.mark.process


@pytest.mark.journey
def test_an_open_network_is_told_and_the_rule_of_a_slice_lets_us_in_once_it_is_closed() -> None:
    with Emulator(workers="ssh") as cloud:

        def run(*words: str, status: int = 0) -> str:
            done = warm_tpukit.run(words, env=cloud.env)
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
        rule = next(word for word in run("firewall", "list").split() if word.startswith("tpukit-"))
        let_everybody_in(cloud.variables, allowed=False)
        run("ssh", "demo", "--", "true")
        run("firewall", "audit")
        run("firewall", "remove", rule)
        assert "no firewall rule of network default admits tcp:22" in run(
            "ssh", "demo", "--timeout", "3s", "--", "true", status=255
        )
