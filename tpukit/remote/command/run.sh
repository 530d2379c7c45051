# Run a command, with an environment that may arrive on standard input.
#   sh -c PROGRAM sh MARK COMMAND [input]
# With a third word, standard input is: shell lines, a line that is MARK, then the command's own
# input. Status 75 with nothing run when the lines did not arrive whole. The command and all that it
# starts carry TPUKIT_JOB=MARK in their environment, by which end.py finds them.

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
export TPUKIT_JOB="$1"
# The user's own shell, as sshd would have it.
exec "${SHELL:-/bin/sh}" -c "$2"
