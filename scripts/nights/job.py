"""What runs on each worker: numbered lines, a checkpoint a second, a file that grows.

Runs in the home folder as `python3 project/job.py LINES SECONDS STATUS`. The files of the project
say themselves whether they are whole; it reads one each second. Where the disk is full it makes no
checkpoint, and goes on.
"""

import hashlib
import os
import sys
import time


def line(number: int) -> str:
    """Return a line that says whether it is whole."""
    return f"line {number} {hashlib.sha256(str(number).encode()).hexdigest()[:16]}"


def sealed(text: str) -> str:
    """Return a text whose last line is the digest of what is before."""
    return f"{text}{hashlib.sha256(text.encode()).hexdigest()}\n"


def whole(text: str) -> bool:
    """Return whether a sealed text is as it was."""
    return len(text) > 65 and sealed(text[:-65]) == text


def checkpoint(second: int) -> None:
    """Write a file beside and rename it: it is there whole or not at all."""
    place = f"out/checkpoints/{second:06d}"
    try:
        with open(f"{place}.new", "w") as file:
            file.write(sealed(f"second {second}\n" * 200))
    except OSError:
        os.remove(f"{place}.new")
        raise
    os.replace(f"{place}.new", place)
    size = os.path.getsize("out/metrics")
    try:
        with open("out/metrics", "a") as file:
            file.write(line(second) + "\n")
    except OSError:
        os.truncate("out/metrics", size)
        raise


def look(second: int) -> None:
    """Read one file of the project, which may be pushed just now."""
    names = sorted(name for name in os.listdir("project") if name.startswith("part-"))
    name = names[second % len(names)]
    with open(f"project/{name}") as file:
        if not whole(file.read()):
            print(f"DAMAGED project/{name}", file=sys.stderr, flush=True)


def main(lines: int, seconds: float, status: int) -> None:
    with open("starts", "a") as file:
        file.write("x\n")
    os.makedirs("out/checkpoints", exist_ok=True)
    with open("out/metrics", "w"):
        pass
    begun, written, second = time.monotonic(), 0, 0
    while written < lines:
        passed = time.monotonic() - begun
        while written < min(lines, lines * passed / seconds):
            written += 1
            sys.stdout.write(line(written) + "\n")
        sys.stdout.flush()
        if passed >= second + 1:
            second = int(passed)
            look(second)
            try:
                checkpoint(second)
            except OSError as error:
                print(f"skipped {second}: {error.strerror}", file=sys.stderr, flush=True)
        time.sleep(0.02)
    sys.exit(status)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
