"""Lock a file of this worker, print that it is done, and unlock when standard input ends.

    python -I -c PROGRAM FILE

Where another one has the lock, "TPUKIT-WAITING " and what that one has left in the file come first.
"""

import fcntl
import os
import sys
import time

path = os.path.join(os.path.expanduser("~"), sys.argv[1])
os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
with open(path, "a+") as lock:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        print("\nTPUKIT-WAITING", lock.readline(200).strip(), flush=True)
        fcntl.flock(lock, fcntl.LOCK_EX)
    client = os.environ.get("SSH_CONNECTION", "").partition(" ")[0]
    lock.truncate(0)
    since = time.strftime("%H:%M:%S UTC", time.gmtime())
    lock.write(f"PID {os.getpid()}{client and ', for ' + client}, since {since}\n")
    lock.flush()
    print("\nTPUKIT-LOCKED", flush=True)
    sys.stdin.read()
