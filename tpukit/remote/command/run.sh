# Set up a command, with an environment that may arrive on standard input; the line that runs it
# follows this text.
#   MARK [input]
# With a second word, standard input is: shell lines, a line that is MARK, then the command's own
# input. Status 75 with nothing run when the lines did not arrive whole. The command and all that it
# starts carry TPUKIT_JOB=MARK in their environment, and have the session that commands/MARK names:
# end_program.py finds them by these.

keep_session() (
    read -r stat <"/proc/$$/stat" && read -r boot </proc/sys/kernel/random/boot_id || return
    set -- "$1" ${stat##*) }
    leader=$5
    # Ours is led by this shell or the login shell: else the server has none for each command.
    [ "$leader" = "$$" ] || [ "$leader" = "$PPID" ] || return
    [ -d "$tpukit/commands" ] || mkdir -p -m 700 "$tpukit/commands"
    echo "$leader $boot ${21}" >"$tpukit/commands/$1"
    set -- "$tpukit"/commands/*
    [ $# -gt 100 ] || return
    for file; do
        read -r leader booted born <"$file"
        [ "$booted" = "$boot" ] && [ -d "/proc/$leader" ] || rm -f "$file"
    done
)
keep_session "$1" 2>/dev/null

if [ -n "${2:-}" ]; then
    # `read` takes byte by byte from a pipe and leaves the rest to the command.
    lines=
    while IFS= read -r line && [ "$line" != "$1" ]; do
        lines="$lines$line
"
    done
    [ "$line" = "$1" ] || exit 75
    eval "$lines"
fi
export TPUKIT_JOB="$1"
