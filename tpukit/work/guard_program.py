"""End this slice by itself: when its time is up, or its devices have been idle for long.

    python3 -I -c PROGRAM install FOLDER CONFIGURATION PROGRAM
    python3 -I guard_program.py watch CONFIGURATION

The slice's own labels say when, so that who changes them changes this; nothing is done on what was
not read just now. `install` prints what the slice's service account may do, and starts the watch
where it may delete: as a service of systemd where there is one, else as a process of its own, which
a restart of the machine ends. Plain Python 3.8.
"""

import calendar
import contextlib
import glob
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from email.utils import parsedate

LOOK_SECONDS = 60.0
AGAIN_SECONDS = 2.0
STARTED_SECONDS = 0.3
UNIT = "tpukit-guard"
SERVICE = """[Unit]
Description=Ends this slice when its time is up
[Service]
ExecStart={python} -I {program} watch {configuration}
Restart=always
RestartSec=30
[Install]
WantedBy=multi-user.target
"""


def metadata(path):
    host = os.environ.get("GCE_METADATA_HOST") or "metadata.google.internal"
    url = f"http://{host}/computeMetadata/v1/instance/service-accounts/default/{path}"
    request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(request, timeout=10) as answer:
        return answer.read().decode()


def call(method, url):
    """Return the status and the JSON object of an answer; raise OSError where there is none.

    The object has the API's time as its `date`: the clock of a worker may be wrong.
    """
    token = json.loads(metadata("token"))["access_token"]
    request = urllib.request.Request(url, method=method)
    request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, dict(json.loads(answer.read() or b"{}"), date=time_of(answer))
    except urllib.error.HTTPError as error:
        with error:
            text = error.read().decode("utf-8", "replace")
        try:
            return error.code, {"message": json.loads(text)["error"]["message"]}
        except (ValueError, KeyError, TypeError):
            return error.code, {"message": text[:200]}


def time_of(answer):
    given = parsedate(answer.headers.get("Date", ""))
    return calendar.timegm(given) if given else time.time()


def rights(location, name):
    """Return whether the service account may delete the slice (None: not known), and why not.

    The API has no question for that. IAM is asked before the resource is looked for: to delete a
    node that does not exist is "not found" for who may, and refused for who may not.
    """
    try:
        status, answer = call("GET", f"{location}/nodes/{name}")
        if status == 200:
            probe = f"tpukit-guard-probe-{os.urandom(4).hex()}"
            status, answer = call("DELETE", f"{location}/nodes/{probe}")
            if status == 404:
                return True, ""
    except (OSError, ValueError, KeyError) as error:
        return None, f"it cannot ask: {error}"
    return (False if status in (401, 403) else None), f"{status}: {answer.get('message', '')}"


def look():
    """Return the files that are open anywhere, as far as this account may see."""
    found = set()
    for link in glob.iglob("/proc/[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            found.add(os.readlink(link))
    return found


def busy(folder):
    if "TPUKIT_EMULATED_DEVICES" in os.environ:
        paths = glob.glob(os.path.join(folder, "emulated-devices/*"))
    else:
        paths = glob.glob("/dev/accel*") + glob.glob("/dev/vfio/[0-9]*")
    return bool(set(paths) & look())


def end_of(labels):
    try:
        text = labels.get("tpukit-expires", "")
        return calendar.timegm(time.strptime(text, "%Y-%m-%dt%H-%M-%Sz"))
    except ValueError:
        return None


def idle_of(labels):
    text = labels.get("tpukit-idle", "")
    return int(text) if text.isdigit() else 0


def delete(location, node):
    """Ask that the slice goes, with the request that it came from where that has no other."""
    request = node.get("queuedResource", "").rpartition("/")[2]
    if request and not node.get("multisliceNode"):
        return call("DELETE", f"{location}/queuedResources/{request}?force=true")
    return call("DELETE", f"{location}/nodes/{node['name'].rpartition('/')[2]}")


def watch(configuration):
    used = None
    while True:
        pause = LOOK_SECONDS
        try:
            status, node = call("GET", f"{configuration['location']}/nodes/{configuration['name']}")
            if status == 404:
                return
            if status != 200:
                raise OSError(f"cannot read the slice: {status}: {node.get('message')}")
            if node.get("id") != configuration["id"]:
                return  # another of the same name: not this machine's
            labels, now = node.get("labels", {}), node["date"]
            end, idle = end_of(labels), idle_of(labels)
            used = now if used is None else min(used, now)
            used = now if not idle or busy(configuration["folder"]) else used
            until = [] if end is None else [end]
            until += [used + idle] if idle else []
            if until and now >= min(until):
                why = "its time is up" if end is not None and now >= end else f"idle for {idle} s"
                pause = AGAIN_SECONDS
                if node.get("state") != "DELETING":
                    print(f"{why}: deleting", *delete(configuration["location"], node), flush=True)
            else:
                pause = max(1.0, min([LOOK_SECONDS, *(each - now for each in until)]))
                pause = min(pause, idle / 4) if idle else pause
        except (OSError, ValueError, KeyError, TypeError) as error:
            print(f"{type(error).__name__}: {error}", flush=True)
        time.sleep(max(1.0, pause))


def has_systemd():
    # By its own word, not by folders: a worker may be emulated on a machine that has systemd.
    try:
        asked = ["systemctl", "is-system-running"]
        state = subprocess.run(asked, capture_output=True, text=True).stdout.strip()
    except OSError:
        return False
    if state not in ("initializing", "starting", "running", "degraded", "maintenance"):
        return False
    return subprocess.run(["sudo", "-n", "true"], capture_output=True).returncode == 0


def start(folder, configuration, program):
    """Write the program and start it anew; return what keeps it."""
    os.makedirs(folder, 0o700, exist_ok=True)
    paths = [os.path.join(folder, name) for name in ("guard_program.py", "configuration.json")]
    for path, text in ((paths[0], program), (paths[1], json.dumps(configuration))):
        with open(f"{path}.new", "w") as file:
            file.write(text)
        os.replace(f"{path}.new", path)
    python = sys.executable or "/usr/bin/python3"
    if has_systemd():
        unit = SERVICE.format(python=python, program=paths[0], configuration=paths[1])
        place = f"/etc/systemd/system/{UNIT}.service"
        for words in (
            ["tee", place],
            ["systemctl", "daemon-reload"],
            ["systemctl", "enable", UNIT],
            ["systemctl", "restart", UNIT],
            ["systemctl", "is-active", UNIT],
        ):
            given = unit if words[0] == "tee" else ""
            subprocess.run(
                ["sudo", "-n", *words], input=given, text=True, check=True, capture_output=True
            )
        return "systemd"
    old = os.path.join(folder, "pid")
    with contextlib.suppress(OSError, ValueError):
        with open(old) as file:
            pid = int(file.read())
        with open(f"/proc/{pid}/cmdline") as file:
            if "guard_program.py" in file.read():
                os.kill(pid, 15)
    with open(os.path.join(folder, "log"), "a") as log:
        process = subprocess.Popen(
            [python, "-I", paths[0], "watch", paths[1]],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd="/",
        )
    with open(old, "w") as file:
        file.write(str(process.pid))
    time.sleep(STARTED_SECONDS)
    if process.poll() is not None:
        raise OSError(f"it ended at once, with status {process.returncode}")
    return "process"


def install(folder, configuration, program):
    folder = os.path.abspath(folder)
    configuration = dict(json.loads(configuration), folder=os.path.dirname(folder))
    report = {"account": "", "may_delete": None, "why": "", "kept_by": "", "sees_all": False}
    try:
        report["account"] = metadata("email")
    except OSError as error:
        report["why"] = f"the slice has no service account that can be asked for: {error}"
    else:
        may, why = rights(configuration["location"], configuration["name"])
        report.update(may_delete=may, why=why)
    if report["may_delete"]:
        try:
            _, node = call("GET", f"{configuration['location']}/nodes/{configuration['name']}")
            report["kept_by"] = start(folder, dict(configuration, id=node.get("id")), program)
            report["sees_all"] = report["kept_by"] == "systemd" or os.geteuid() == 0
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            report["why"] = f"it could not be started: {error}"
    print("\ntpukit-guard " + json.dumps(report))


if __name__ == "__main__":
    if sys.argv[1] == "watch":
        with open(sys.argv[2]) as file:
            watch(json.load(file))
    else:
        os.chdir(os.path.expanduser("~"))
        install(*sys.argv[2:])
