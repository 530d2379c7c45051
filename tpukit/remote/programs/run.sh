# Run a command with an environment that arrives on standard input.
#   sh -c PROGRAM sh MARK COMMAND
# Standard input: shell lines, a line that is MARK, then the command's own input. Status 75 with
# nothing run when the lines did not arrive whole. The command and all that it starts carry
# TPUKIT_JOB=MARK in their environment, by which end.py finds them.

# `read` takes byte by byte from a pipe and leaves the rest to the command.
lines=
while IFS= read -r line && [ "$line" != "$1" ]; do
    lines="$lines$line
"
done
[ "$line" = "$1" ] || exit 75
eval "$lines"
export TPUKIT_JOB="$1"
# The user's own shell, as sshd would have it.
exec "${SHELL:-/bin/sh}" -c "$2"
