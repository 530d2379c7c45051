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
    printf '# tpukit: the chips are for the group of who logs in.\n'
    printf 'SUBSYSTEM=="vfio", KERNEL=="[0-9]*", GROUP="%s", MODE="0660"\n' "$(id -gn)"
}

boot_text() {
    printf '# tpukit\nw %s - - - - always\n' "$pages"
}

# The groups of chips, where this image has its chips behind vfio-pci.
chips() {
    for chip in /dev/vfio/[0-9]*; do
        if [ -e "$chip" ]; then echo "$chip"; fi
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
    if [ "$(chips)" ]; then
        rules_text | is_file "$rules" || need "open /dev/vfio to the group $(id -gn): $rules"
    fi
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
    if [ "$(chips)" ]; then
        rules_text | put_file "$rules" 644
        as_root udevadm control --reload 2>/dev/null
        chips | while read -r chip; do
            # shellcheck disable=SC2046  # a mode, and who owns it
            note give_device "$chip" $(stat -c '%a %U:%G' "$chip")
            as_root chgrp "$(id -gn)" "$chip" && as_root chmod 660 "$chip" || exit
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
