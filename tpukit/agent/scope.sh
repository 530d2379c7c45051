# enclose PID BORN: have systemd put a process into a control group of its own, tpukit-PID-BORN.scope,
# if sudo needs no password. Whatever leaves its session, and drops its mark, stays in there.
enclose() {
    # An emulated worker may share this machine's systemd; one that is a container has its own.
    if [ -n "${TPUKIT_EMULATED_DEVICES:-}" ]; then
        read -r container </run/systemd/container || :
        [ "${container:-}" = systemd-nspawn ] || return
    fi
    command -v busctl || return
    root='sudo -n'
    [ "$(id -u)" != 0 ] || root=
    manager=org.freedesktop.systemd1
    timeout 5 $root busctl call $manager /org/freedesktop/systemd1 $manager.Manager \
        StartTransientUnit 'ssa(sv)a(sa(sv))' "tpukit-$1-$2.scope" fail 1 PIDs au 1 "$1" 0 || return
    tries=0
    until grep -q "/tpukit-$1-$2.scope" "/proc/$1/cgroup"; do
        [ $((tries += 1)) -lt 50 ] && sleep 0.02 || return
    done
} </dev/null >/dev/null 2>&1
