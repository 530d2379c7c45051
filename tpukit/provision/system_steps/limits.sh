# Limits and kernel settings that TPU work needs.

limits=/etc/security/limits.d/90-tpukit.conf
rules=/etc/udev/rules.d/90-tpukit.rules
boot=/etc/tmpfiles.d/tpukit.conf
pages=/sys/kernel/mm/transparent_hugepage/enabled

limits_text() {
    printf '# tpukit: chips behind vfio-pci lock the memory that they read and write.\n'
    printf '* - memlock unlimited\nroot - memlock unlimited\n'
}

rules_text() {
    printf '# tpukit: the chips are for every user.\n'
    printf 'SUBSYSTEM=="vfio", KERNEL=="[0-9]*", MODE="0666"\n'
}

boot_text() {
    printf '# tpukit\nw %s - - - - always\n' "$pages"
}

# Chips behind vfio-pci that not every user may open. A mode is only ever widened: an image may open
# them to everybody itself, and Google's runtime, uid 2000, has to open them too.
closed_chips() {
    for chip in /dev/vfio/[0-9]*; do
        case $(stat -c %a "$chip" 2>/dev/null) in "" | *[67]) ;; *) echo "$chip" ;; esac
    done
}

pages_now() {
    sed -n '/\[/{s/.*\[\(.*\)\].*/\1/p;d}; p' "$pages" 2>/dev/null
}

pages_can_be_set() {
    as_root test -w "$pages" 2>/dev/null
}

fact() {
    limits_text | is_file "$limits" || need "let memory be locked without a limit: $limits"
    [ -z "$(closed_chips)" ] || need "open /dev/vfio to every user: $rules"
    case $(pages_now) in
        always) ;;
        "") tell note "this kernel has no transparent huge pages" ;;
        *)
            if pages_can_be_set; then need "transparent huge pages: always: $boot"
            else tell note "transparent huge pages cannot be set here: they are the machine's beneath"; fi ;;
    esac
}

change() {
    limits_text | put_file "$limits" 644
    if [ "$(closed_chips)" ]; then
        rules_text | put_file "$rules" 644
        as_root udevadm control --reload 2>/dev/null
        closed_chips | while read -r chip; do
            # shellcheck disable=SC2046  # a mode, and who owns it
            note give_device "$chip" $(stat -c '%a %U:%G' "$chip")
            as_root chmod a+rw "$chip" || exit
        done || exit
    fi
    case $(pages_now) in
        always | "") ;;
        *)
            if pages_can_be_set; then
                boot_text | put_file "$boot" 644
                note set_pages "$(pages_now)"
                set_pages always
            fi ;;
    esac
}
