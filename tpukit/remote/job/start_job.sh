# Start one detached job, at most once.
#   sh -c PROGRAM sh JOB BYTES      with the job's command, BYTES long, on standard input
# Answers one line, "tpukit-job WORD": started, present (it was there already), other (it was there
# with another command). Status 75 with nothing started when the command did not arrive whole.

umask 077
jobs=$tpukit/jobs
folder=$jobs/$1
arrived=$jobs/.arrived.$1.$$
mkdir -p "$jobs" || exit 1
trap 'rm -f "$arrived"' EXIT

# A lost connection looks like the end of the input: only the length tells.
cat >"$arrived" || exit 1
[ "$(wc -c <"$arrived")" -eq "$2" ] || exit 75

# mkdir is the lock: of two starters, one makes the folder.
if ! mkdir "$folder" 2>/dev/null; then
    # The other starter may have made the folder a moment ago, and its command not yet.
    tries=0
    while [ -d "$folder" ] && [ ! -e "$folder/command" ] && [ "$tries" -lt 20 ]; do
        tries=$((tries + 1))
        sleep 0.1
    done
    if [ ! -d "$folder" ]; then
        echo "cannot make $folder" >&2
        exit 1
    elif [ ! -e "$folder/command" ] || cmp -s "$arrived" "$folder/command"; then
        echo "tpukit-job present"
    else
        echo "tpukit-job other"
    fi
    exit 0
fi
# The end has its blocks on the disk before the job can fill it.
if ! : >"$folder/log" || ! echo "unknown" >"$folder/status.new" ||
    ! mv "$arrived" "$folder/command"; then
    rm -rf "$folder"
    exit 1
fi

# The runner says who it is before it runs anything, and how it ended after. A process id alone
# may be another process's after a reboot: the boot and the start time go with it.
runner='
folder=$1
identity() {
    if read -r line 2>/dev/null <"/proc/$1/stat"; then
        set -- ${line##*) }
        shift 19
        read -r boot </proc/sys/kernel/random/boot_id
        echo "$boot $1"
    else
        ps -o lstart= -p "$1"
    fi
}
echo $$ $(identity $$) >"$folder/pid.new" && mv "$folder/pid.new" "$folder/pid" || exit 1
sh "$folder/command" </dev/null >>"$folder/log" 2>&1
status=$?
# A restart of the worker ends everything at once: that is no status of the command.
[ "$status" -lt 128 ] || sleep 0.3
printf "%-7d\n" "$status" 1<>"$folder/status.new" && mv "$folder/status.new" "$folder/status"
'
leader='import os, sys
os.setsid()
os.execvp(sys.argv[1], sys.argv[1:])'

cd "$HOME" || exit 1
# macOS has no setsid.
if command -v setsid >/dev/null 2>&1; then
    setsid sh -c "$runner" sh "$folder" </dev/null >/dev/null 2>&1 &
elif command -v perl >/dev/null 2>&1; then
    perl -e 'use POSIX; POSIX::setsid(); exec @ARGV' sh -c "$runner" sh "$folder" \
        </dev/null >/dev/null 2>&1 &
else
    python3 -c "$leader" sh -c "$runner" sh "$folder" </dev/null >/dev/null 2>&1 &
fi

# Answer when the runner is in its own session: until then, whoever cleans up after this one ends it.
tries=0
while [ ! -e "$folder/pid" ] && [ "$tries" -lt 200 ]; do
    tries=$((tries + 1))
    sleep 0.05
done
echo "tpukit-job started"
