# Install packages into an environment, and make good what an installer that died has left there.
#     sh -c PROGRAM sh ENVIRONMENT COMMAND…        with COMMAND… a `uv pip install`
# A package that was half written may look installed: then all are installed again.

installing=$1/tpukit-installing
# uv locks the file of its user's credentials, whether there is one or not: without one, not in their home.
[ -e "${XDG_DATA_HOME:-$HOME/.local/share}/uv/credentials" ] || export UV_CREDENTIALS_DIR="$1/tpukit-credentials"
# What was verified is no longer what is there, from before the first file changes.
rm -f "$1/tpukit-verified" || exit
shift
again=
[ -e "$installing" ] && again=--reinstall
: >"$installing" || exit
"$@" $again
status=$?
# 1 is uv's word for what cannot be resolved or fetched, before anything is changed; 2 for all that
# is unexpected: astral-sh/uv:crates/uv/src/commands/mod.rs, ExitStatus.
case $status in
    0 | 1) rm -f "$installing" ;;
esac
exit "$status"
