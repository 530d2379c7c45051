# Print whether an interpreter is there, and for how many devices this worker stands in (0: it is
# a TPU VM). Changes nothing.
#
#     sh -s -- PYTHON < ready.sh

cd "$HOME" || exit 1
if [ -x "$1" ]; then state=ready; else state=missing; fi
printf '\nTPUKIT-READY %s %s\n' "$state" "${TPUKIT_EMULATED_DEVICES:-0}"
