"""Lock a file of this worker, print that it is done, and unlock when standard input ends.

    python3 -I -c PROGRAM FILE

Where another one has the lock, "TPUKIT-WAITING " and what that one has left in the file come first.
The file goes with the lock: who has waited for one that is gone by then begins anew.
"""

import contextlib
import fcntl
import os
import sys
import time

path = os.path.join(os.path.expanduser("~"), sys.argv[1])
folder = os.path.dirname(path)
lock = None
while lock is None:
    with contextlib.suppress(FileNotFoundError):
        os.makedirs(folder, mode=0o700, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(file, 200, 0).decode(errors="replace").strip()
            print("\nTPUKIT-WAITING", holder, flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.path.samestat(os.fstat(file), os.stat(path)):
            lock = file
client = os.environ.get("SSH_CONNECTION", "").partition(" ")[0]
since = time.strftime("%H:%M:%S UTC", time.gmtime())
os.ftruncate(lock, 0)
os.pwrite(lock, f"PID {os.getpid()}{client and ', for ' + client}, since {since}\n".encode(), 0)
print("\nTPUKIT-LOCKED", flush=True)
sys.stdin.read()
with contextlib.suppress(OSError):
    os.unlink(path)
    os.rmdir(folder)  # unless there is more in it
