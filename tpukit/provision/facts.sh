# Print what is true on this worker, one `TPUKIT-FACT {json}` line a fact. Changes nothing.
#
#     sh -s < facts.sh
#
# POSIX sh and no more: python3 can be as old as 3.8 (runtime version tpu-vm-base), or missing.

root=$HOME/.tpukit

# What these import is nearly all that a look at a worker costs: no more than they need.
python_fact='
import sys
try:
    import json
    from importlib.util import find_spec
except ImportError:
    sys.exit(print("TPUKIT-FACT {\"fact\": \"minimal\", \"path\": \"%s\"}" % sys.executable))
print("TPUKIT-FACT " + json.dumps({
    "fact": "python",
    "path": sys.executable,
    "version": sys.version.split()[0],
    "implementation": sys.implementation.name,
    "pip": find_spec("pip") is not None,
    "venv": find_spec("venv") is not None and find_spec("ensurepip") is not None,
}))'

venv_fact='
import json, os, sys
def read(path, most=200):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(most)
    except OSError:
        return ""
def mark(name, most=200):
    return read(os.path.join(sys.argv[1], name), most)
def editable():
    # The folder of the project that is installed, while what it says is what it said then.
    then, blank, folder = mark("tpukit-editable", 5000).partition(" ")
    if not then:
        return ""
    import hashlib
    now = hashlib.sha256()
    for name in ("pyproject.toml", "setup.py", "uv.lock"):
        try:
            with open(os.path.join(os.path.expanduser("~"), folder, name), "rb") as file:
                now.update(file.read())
        except OSError:
            continue
    return folder if then == now.hexdigest() else ""
def packages():
    # A folder .dist-info without a file METADATA, or with half of one, has no name or no version.
    # importlib.metadata takes ten times as long: it parses each to its end.
    site = os.path.join(sys.argv[1], "lib", "python%d.%d" % sys.version_info[:2], "site-packages")
    for folder in os.listdir(site) if os.path.isdir(site) else ():
        if folder.endswith(".dist-info"):
            head = read(os.path.join(site, folder, "METADATA"), 4096).partition("\n\n")[0]
            fields = dict(line.partition(": ")[::2] for line in reversed(head.split("\n")))
            name, version = fields.get("Name", "").strip(), fields.get("Version", "").strip()
            if name and version:
                yield name, version
print("TPUKIT-FACT " + json.dumps({
    "fact": "venv",
    "name": os.path.basename(sys.argv[1]),
    "version": sys.version.split()[0],
    "packages": dict(packages()),
    "installing": os.path.exists(os.path.join(sys.argv[1], "tpukit-installing")),
    "requirements": mark("tpukit-requirements"),
    "editable": editable(),
    "upgraded": mark("tpukit-upgraded"),
    "verified": mark("tpukit-verified"),
}))'

# A word as the inside of a JSON string.
text() {
    case $1 in
    *[![:print:]]* | *[\"\\]*) printf '%s' "$1" | tr -d '[:cntrl:]' | sed 's/["\\]/\\&/g' ;;
    *) printf '%s' "$1" ;; # as good as always: no programs for it
    esac
}

fact() {
    printf 'TPUKIT-FACT {"fact": "%s"%s}\n' "$1" "$2"
}

# Ten seconds for a program that may hang, such as one on a network disk that is gone.
briefly() {
    if command -v timeout >/dev/null 2>&1; then timeout 10 "$@"; else "$@"; fi 2>/dev/null
}

free_kilobytes() {
    df -Pk "$HOME" 2>/dev/null | {
        read -r heading
        read -r device total used free rest
        printf '%s' "${free:-0}"
    }
}

host() {
    glibc=$(getconf GNU_LIBC_VERSION 2>/dev/null)
    printf ', "home": "%s"' "$(text "$HOME")"
    printf ', "system": "%s"' "$(text "$(uname -s)")"
    printf ', "architecture": "%s"' "$(text "$(uname -m)")"
    printf ', "glibc": "%s"' "$(text "${glibc#glibc }")"
    printf ', "free_kilobytes": %s' "$(free_kilobytes)"
    printf ', "kernel_log_bytes": %s' "$(stat -c %s /var/log/kern.log 2>/dev/null || echo 0)"
    printf ', "emulated_devices": "%s"' "$(text "$TPUKIT_EMULATED_DEVICES")"
    printf ', "emulator": "%s"' "${TPUKIT_EMULATED_DEVICES:+yes}"
}

# Being found is not enough: a pyenv shim is there for a Python that is not. Only what runs counts,
# and of several names of one file in one folder (/bin is /usr/bin) the first.
pythons() {
    for managed in "$root"/pythons/*/bin/python3; do
        [ -x "$managed" ] && briefly "$managed" -I -c "$python_fact"
    done
    seen=:
    set -f
    IFS=:
    for directory in $PATH; do
        case $directory in /*) ;; *) continue ;; esac
        directory=$(cd "$directory" 2>/dev/null && pwd -P) || continue
        for name in python3.14 python3.13 python3.12 python3.11 python3.10 python3; do
            [ -x "$directory/$name" ] || continue
            file=$directory=$(readlink -f "$directory/$name" || echo "$name")
            case $seen in *:"$file":*) continue ;; esac
            seen=$seen$file:
            briefly "$directory/$name" -I -c "$python_fact"
        done
    done
    unset IFS
    set +f
}

# In the folder of its version: one that is being installed still lies elsewhere.
uvs() {
    for uv in "$root"/uv-*/bin/uv; do
        [ -x "$uv" ] || continue
        version=$(briefly "$uv" --version) || continue
        version=${version#uv }
        version=${version%% *}
        [ "$uv" = "$root/uv-$version/bin/uv" ] || continue
        fact uv ", \"version\": \"$(text "$version")\""
    done
}

venvs() {
    for venv in "$root"/venvs/*; do
        [ -x "$venv/bin/python" ] && briefly "$venv/bin/python" -I -S -c "$venv_fact" "$venv"
    done
}

# Jobs that have ended: the next attempt at the same command takes the next number.
jobs_that_ended() {
    for status in "$root"/jobs/provision-*/status; do
        [ -f "$status" ] || continue
        job=${status%/status}
        fact job ", \"name\": \"$(text "${job##*/}")\""
    done
}

# The jobs come first: what one does that ends from here on is joined, not done again.
main() {
    echo # a login script may have written half a line
    jobs_that_ended
    fact host "$(host)"
    pythons
    uvs
    venvs
    fact end
}

# The program itself is on standard input: nothing that it starts may read it.
main </dev/null
