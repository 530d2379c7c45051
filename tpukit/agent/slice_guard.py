"""The guard: deletes this slice when its time is up, or when its devices are idle for too long.

The slice's labels set both limits, and the guard reads them before each decision. It runs from its
own copy of the agent, because clients remove old agents.
"""

from __future__ import annotations

import calendar
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from email.utils import parsedate
from typing import Any

from tpukit.agent.devices import device_files, open_files
from tpukit.agent.main import Home, Request, say

_LOOK_SECONDS = 60.0
_AGAIN_SECONDS = 2.0
_STARTED_SECONDS = 0.3
_UNIT = "tpukit-guard"
_SERVICE = """[Unit]
Description=Ends this slice when its time is up
[Service]
ExecStart={command}
StandardInput=file:{request}
Restart=always
RestartSec=30
[Install]
WantedBy=multi-user.target
"""


def install_guard(home: Home, request: Request) -> None:
    """Start the guard of slice `name` in place of an older one, if it may delete the slice.

    `location` is the URL of the slice's zone. In the answer, `may_delete` is null if it is unknown.
    `kept_by` is "systemd", or "process" for a process that a restart of the worker ends.
    """
    report = {"account": "", "may_delete": None, "why": "", "kept_by": "", "sees_all": False}
    location, name = request["location"], request["name"]
    try:
        report["account"] = _metadata("email")
    except OSError as error:
        report["why"] = f"the slice has no service account that can be asked for: {error}"
    else:
        report["may_delete"], report["why"] = _rights(location, name)
    if report["may_delete"]:
        try:
            _, node = _call("GET", f"{location}/nodes/{name}")
            watched = {"location": location, "name": name, "id": node.get("id")}
            report["kept_by"] = _start(home, watched)
            report["sees_all"] = report["kept_by"] == "systemd" or os.geteuid() == 0
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            report["why"] = f"it could not be started: {error}"
    say(report)


def guard(home: Home, request: Request) -> None:
    """Watch slice `name` at `location`, and delete it when its labels require it.

    Ends when the slice is gone, also if another slice with another `id` has its name.
    """
    location, name = request["location"], request["name"]
    used = None
    while True:
        pause = _LOOK_SECONDS
        try:
            node = _node(location, name)
            if not node or node["id"] != request["id"]:
                return
            labels, now = node.get("labels", {}), node["date"]
            idle, ends = _idle_of(labels), _ends_of(labels)
            end = min(ends, default=None)
            used = now if used is None else min(used, now)
            used = now if not idle or device_files(home) & open_files() else used
            until = [] if end is None else [end]
            until += [used + idle] if idle else []
            if until and now >= min(until):
                why = ends[end] if end is not None and now >= end else f"idle for {idle} s"
                pause = _AGAIN_SECONDS
                if node.get("state") != "DELETING":
                    print(f"{why}: deleting", *_delete(location, node), flush=True)
            else:
                pause = max(1.0, min([_LOOK_SECONDS, *(moment - now for moment in until)]))
                pause = min(pause, idle / 4) if idle else pause
        except (OSError, ValueError, KeyError, TypeError) as error:
            print(f"{type(error).__name__}: {error}", flush=True)
        time.sleep(max(1.0, pause))


def _metadata(path: str) -> str:
    host = os.environ.get("GCE_METADATA_HOST") or "metadata.google.internal"
    url = f"http://{host}/computeMetadata/v1/instance/service-accounts/default/{path}"
    request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(request, timeout=10) as answer:
        text: str = answer.read().decode()
    return text


def _call(method: str, url: str) -> tuple[int, dict[str, Any]]:
    """Return the status and the JSON object of an answer; raise OSError if there is none.

    The object has the API's time as `date`, because the worker's clock may be wrong.
    """
    token = json.loads(_metadata("token"))["access_token"]
    request = urllib.request.Request(url, method=method)
    request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            date = parsedate(answer.headers.get("Date", ""))
            now = calendar.timegm(date) if date else time.time()
            return answer.status, dict(json.loads(answer.read() or b"{}"), date=now)
    except urllib.error.HTTPError as error:
        with error:
            text = error.read().decode("utf-8", "replace")
        try:
            return error.code, {"message": json.loads(text)["error"]["message"]}
        except (ValueError, KeyError, TypeError):
            return error.code, {"message": text[:200]}


def _node(location: str, name: str) -> dict[str, Any]:
    """Return the slice's current node, empty if it is gone; raise OSError if it is unreadable."""
    status, node = _call("GET", f"{location}/nodes/{name}")
    if status not in (200, 404):
        raise OSError(f"cannot read the slice: {status}: {node.get('message')}")
    return node if status == 200 else {}


def _rights(location: str, name: str) -> tuple[bool | None, str]:
    """Return True if the service account may delete the slice (None if unknown), and the reason.

    The API has no such request. But it checks permissions before it looks for a node: deleting a
    missing node gives "not found" with the permission, and a refusal without it.
    """
    try:
        status, answer = _call("GET", f"{location}/nodes/{name}")
        if status == 200:
            probe = f"tpukit-guard-probe-{os.urandom(4).hex()}"
            status, answer = _call("DELETE", f"{location}/nodes/{probe}")
            if status == 404:
                return True, ""
    except (OSError, ValueError, KeyError) as error:
        return None, f"it cannot ask: {error}"
    return (False if status in (401, 403) else None), f"{status}: {answer.get('message', '')}"


def _ends_of(labels: dict[str, str]) -> dict[float, str]:
    """Return the times at which the labels end the slice, each with the reason."""
    ends = {}
    for key, why in (("tpukit-claim", "nobody claimed it"), ("tpukit-expires", "its time is up")):
        with contextlib.suppress(ValueError):
            moment = time.strptime(labels.get(key, ""), "%Y-%m-%dt%H-%M-%Sz")
            ends[float(calendar.timegm(moment))] = why
    return ends


def _idle_of(labels: dict[str, str]) -> int:
    text = labels.get("tpukit-idle", "")
    return int(text) if text.isdigit() else 0


def _delete(location: str, node: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Request the deletion of the slice, with its queued resource if that has no other slice."""
    queued = node.get("queuedResource", "").rpartition("/")[2]
    if queued and not node.get("multisliceNode"):
        return _call("DELETE", f"{location}/queuedResources/{queued}?force=true")
    return _call("DELETE", f"{location}/nodes/{node['name'].rpartition('/')[2]}")


def _start(home: Home, watched: Request) -> str:
    """Copy the agent, start the guard from the copy, and return "systemd" or "process"."""
    folder = f"{home.folder}/guard"
    os.makedirs(folder, 0o700, exist_ok=True)
    agent, request = f"{folder}/{os.path.basename(sys.path[0])}", f"{folder}/request.json"
    if not os.path.isdir(agent):
        shutil.rmtree(f"{folder}/new", ignore_errors=True)
        shutil.copytree(sys.path[0], f"{folder}/new")
        os.rename(f"{folder}/new", agent)
    with open(f"{request}.new", "w") as file:
        file.write(json.dumps(watched) + "\n")
    os.replace(f"{request}.new", request)
    python = [sys.executable or "/usr/bin/python3", "-I", "-S", f"{agent}/__main__.py"]
    command = [*python, home.folder, home.temporary, str(home.emulated_devices), "guard"]
    if _has_systemd():
        _start_service(_SERVICE.format(command=" ".join(command), request=request))
        return "systemd"
    _start_process(folder, command, request)
    return "process"


def _has_systemd() -> bool:
    # Ask systemd itself: an emulated worker may run on a machine that has systemd's folders.
    try:
        asked = ["systemctl", "is-system-running"]
        state = subprocess.run(asked, capture_output=True, text=True).stdout.strip()
    except OSError:
        return False
    if state not in ("initializing", "starting", "running", "degraded", "maintenance"):
        return False
    return subprocess.run(["sudo", "-n", "true"], capture_output=True).returncode == 0


def _start_service(unit: str) -> None:
    for words in (
        ["tee", f"/etc/systemd/system/{_UNIT}.service"],
        ["systemctl", "daemon-reload"],
        ["systemctl", "enable", _UNIT],
        ["systemctl", "restart", _UNIT],
        ["systemctl", "is-active", _UNIT],
    ):
        given = unit if words[0] == "tee" else ""
        sudo = ["sudo", "-n", *words]
        subprocess.run(sudo, input=given, text=True, check=True, capture_output=True)


def _start_process(folder: str, command: list[str], request: str) -> None:
    """Start the guard as a background process, in place of an earlier one."""
    pid_file = f"{folder}/pid"
    with contextlib.suppress(OSError, ValueError):
        with open(pid_file) as file:
            pid = int(file.read())
        with open(f"/proc/{pid}/cmdline") as file:
            if f"{folder}/" in file.read():
                os.kill(pid, 15)
    with open(request) as given, open(f"{folder}/log", "a") as log:
        process = subprocess.Popen(
            command, stdin=given, stdout=log, stderr=log, start_new_session=True, cwd="/"
        )
    with open(pid_file, "w") as file:
        file.write(str(process.pid))
    time.sleep(_STARTED_SECONDS)
    if process.poll() is not None:
        raise OSError(f"it ended at once, with status {process.returncode}")
