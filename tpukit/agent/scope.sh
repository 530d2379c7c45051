# enclose PID BORN: have systemd put a process into a control group of its own, tpukit-PID-BORN.scope,
# if sudo needs no password. Whatever leaves its session, and drops its mark, stays in there.
enclose() {
    # An emulated worker may share this machine's systemd; one that is a container has its own.
    if [ -n "${TPUKIT_EMULATED_DEVICES:-}" ]; then
        read -r container </run/systemd/container || :
        [ "${container:-}" = systemd-nspawn ] || return
    fi
    command -v busctl || return
    sudo='sudo -n'
    command -v sudo || sudo=
    manager=org.freedesktop.systemd1
    $sudo busctl --timeout=5 call $manager /org/freedesktop/systemd1 $manager.Manager \
        StartTransientUnit 'ssa(sv)a(sa(sv))' "tpukit-$1-$2.scope" fail 1 PIDs au 1 "$1" 0 || return
    tries=0
    until is_enclosed "$1" "/tpukit-$1-$2.scope"; do
        [ $((tries += 1)) -lt 50 ] && sleep 0.02 || return
    done
} </dev/null >/dev/null 2>&1

is_enclosed() { # PID SCOPE
    while read -r group; do
        case $group in *"$2") return ;; esac
    done <"/proc/$1/cgroup"
    return 1
}
