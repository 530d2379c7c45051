"""A program in the place of Ray: its nodes are processes, and a folder of files is its cluster."""

from __future__ import annotations

import json
from pathlib import Path

import psutil

from tpukit.ssh import worker_files

#: Its nodes are files with the number of their process. A node whose file `NAME.fails` has a number
#: ends at once so often. Only the head lists the nodes, unless there is a file `silent`.
RAY = """\
#!/usr/bin/env python3
import json, os, pathlib, signal, sys
cluster = pathlib.Path({cluster!r})
options = dict(word.partition("=")[::2] for word in sys.argv[2:])
living = {{}}
for file in cluster.glob("*.node"):
    pid, kind, total, home = json.loads(file.read_text())
    stat = pathlib.Path(f"/proc/{{pid}}/stat")
    if stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z":
        living[file.stem] = (kind, total, home)
if sys.argv[1] == "list":
    here = [kind for kind, _, home in living.values() if home == os.environ["HOME"]]
    if "head" not in here or (cluster / "silent").exists():
        sys.exit("no cluster")
    if (cluster / "strange").exists():
        sys.exit(print((cluster / "strange").read_text()))
    nodes = [{{"node_name": name, "resources_total": {{**total, "memory": "1 GiB", "node:x": 1}}}}
             for name, (_, total, _) in living.items()]
    print(json.dumps(nodes) if nodes else "No resource in the cluster")
    sys.exit()
if sys.argv[1] == "status":
    sys.exit("head" not in [kind for kind, *_ in living.values()])
name, token = options["--node-name"], os.environ["RAY_AUTH_TOKEN"]
with open(cluster / "starts", "a") as starts:
    starts.write(f"{{name}} {{token}} {{os.environ['RAY_AUTH_MODE']}}\\n")
fails = cluster / f"{{name}}.fails"
if fails.exists() and (left := int(fails.read_text())):
    fails.write_text(str(left - 1))
    sys.exit("Exception: The current node timed out during startup.")
kind = "head" if "--head" in options else "node"
(cluster / f"{{name}}.new").write_text(
    json.dumps([os.getpid(), kind, json.loads(options["--resources"]), os.environ["HOME"]]))
os.replace(cluster / f"{{name}}.new", cluster / f"{{name}}.node")
signal.pause()
"""


def install(home: Path, cluster: Path) -> None:
    """Install it in a worker's environment `ray`."""
    programs = home / worker_files.venv("ray") / "bin"
    programs.mkdir(parents=True)
    (programs / "python").symlink_to("/bin/sh")
    (programs / "ray").write_text(RAY.format(cluster=str(cluster)))
    (programs / "ray").chmod(0o755)


def starts(cluster: Path) -> list[str]:
    """Return the names of the nodes in the order of their starts."""
    file = cluster / "starts"
    return [line.split()[0] for line in file.read_text().splitlines()] if file.exists() else []


def lose(cluster: Path, name: str) -> None:
    """Kill a node."""
    pid, *_ = json.loads((cluster / f"{name}.node").read_text())
    process = psutil.Process(pid)
    process.kill()
    psutil.wait_procs([process])
