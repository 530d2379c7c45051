"""Lock this worker's devices, print that it is done, and unlock when standard input ends."""

import fcntl
import os
import sys

path = os.path.join(os.path.expanduser("~"), sys.argv[1])
os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
with open(path, "w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    print("TPUKIT-LOCKED", flush=True)
    sys.stdin.read()
