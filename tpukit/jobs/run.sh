# Set up a command, with an environment that may arrive on standard input; the line that runs it
# follows this text.
#   NAME ABOUT [input]
# NAME is the run's folder among the jobs, ABOUT what listings show. With a third word, standard input
# is: shell lines, a line that is NAME, then the command's own input. Status 75 with nothing run when
# the lines did not arrive whole. The command and all that it starts carry TPUKIT_JOB, the path of
# that folder, which names their session and control group (tpukit/agent/run_records.py).
export TPUKIT_JOB="$tpukit/jobs/$1"

look() { # PID: set what /proc says of a process
    read -r stat <"/proc/$1/stat" || return
    set -- ${stat##*) }
    session=$4 born=${20}
}

keep_record() (
    read -r boot </proc/sys/kernel/random/boot_id && look "$$" || return
    leader=$session ours=$born
    # Ours is led by this shell or the login shell: else the server has none for each command.
    case $leader in
    "$$" | "$PPID") ;;
    *) leader=0 ;;
    esac
    enclose "$$" "$ours" &
    umask 077
    mkdir -p "$TPUKIT_JOB" || return
    printf '%s\n' "$2" >"$TPUKIT_JOB/about"
    echo "$leader $boot $ours" >"$TPUKIT_JOB/pid"
    if wait $!; then echo "tpukit-$$-$ours.scope" >"$TPUKIT_JOB/scope"; fi
    set -- "$tpukit"/jobs/run.*@"${1##*@}"
    [ $# -gt 100 ] || return
    for folder; do
        [ ! -e "$folder/command" ] || continue # a detached run's, which has a log
        read -r leader booted born <"$folder/pid"
        [ "$booted" = "$boot" ] && [ -d "/proc/$leader" ] || rm -rf "$folder"
    done
)
keep_record "$1" "$2" 2>/dev/null

if [ -n "${3:-}" ]; then
    # `read` takes byte by byte from a pipe and leaves the rest to the command.
    lines=
    while IFS= read -r line && [ "$line" != "$1" ]; do
        lines="$lines$line
"
    done
    [ "$line" = "$1" ] || exit 75
    eval "$lines"
fi
