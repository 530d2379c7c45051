# Remove environments, and with the last one all that was there for them.
#
#     PROGRAM NAME…        without a name: every environment
#
# Prints `TPUKIT-UNDONE NAME` for each.

venvs=$tpukit/venvs
if [ $# = 0 ]; then
    for venv in "$venvs"/*; do
        if [ -d "$venv" ]; then set -- "$@" "${venv##*/}"; fi
    done
fi
for name; do
    [ -d "$venvs/$name" ] || continue
    rm -rf "${venvs:?}/$name" || exit
    echo "TPUKIT-UNDONE $name"
done
rmdir "$venvs" 2>/dev/null
if [ ! -d "$venvs" ]; then
    for cache in uv pip; do
        # What was made for us alone, as install_uv.sh has seen.
        if [ -e "$tpukit/made-$cache-cache" ]; then
            [ -L "$HOME/.cache/$cache" ] || rm -rf "$HOME/.cache/$cache"
            rm -f "$tpukit/made-$cache-cache"
        fi
    done
    if [ -e "$tpukit/made-cache" ]; then
        rm -f "$tpukit/made-cache"
        rmdir "$HOME/.cache" 2>/dev/null
    fi
    rm -rf "$tpukit"/uv-* "$tpukit/pythons"
    for step in uv python venv packages requirements verify; do
        for status in "$tpukit/jobs/provision-$step"-*/status; do
            if [ -f "$status" ]; then rm -rf "${status%/status}"; fi
        done
    done
fi
rmdir "$tpukit/jobs" "$tpukit" 2>/dev/null
exit 0
