# Preload tcmalloc, unless the image preloads something already.

settings=/etc/environment

library() {
    for file in /usr/lib/*-linux-gnu/libtcmalloc_minimal.so.4; do
        if [ -e "$file" ]; then echo "$file" && return; fi
    done
}

# What somebody else preloads.
preloaded() {
    without_block "$entry" "$settings" 2>/dev/null | sed -n 's/^ *LD_PRELOAD=//p' | tail -n 1
}

settings_text() {
    printf 'LD_PRELOAD=%s\n' "$(library)"
}

fact() {
    if [ "$(preloaded)" ]; then
        tell note "the image preloads $(preloaded)"
        return
    fi
    [ "$(library)" ] || need "install libtcmalloc-minimal4"
    [ "$(library)" ] && settings_text | is_block "$settings" || need "preload it: $settings"
}

change() {
    if [ -z "$(library)" ]; then
        name=libtcmalloc-minimal4
        # The name since Ubuntu 24.04.
        if apt-cache show "${name}t64" >/dev/null 2>&1; then name=${name}t64; fi
        install_packages "$name"
    fi
    settings_text | put_block "$settings"
}
