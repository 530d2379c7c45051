# A folder of another worker's: ADDRESS:FOLDER.

server=${value%%:*}
where=${value#*:}
table=/etc/fstab

# `hard`: a program waits for a server that is away for a while, and loses nothing.
options=hard,_netdev,nofail

table_text() {
    printf '%s:%s %s nfs %s 0 0\n' "$server" "$where" "$where" "$options"
}

is_server() {
    hostname -I 2>/dev/null | tr ' ' '\n' | grep -qxF "$server"
}

has_client() {
    PATH=$PATH:/usr/sbin:/sbin command -v mount.nfs >/dev/null
}

mounted() {
    findmnt -n --mountpoint "$where" >/dev/null 2>&1
}

fact() {
    if is_server; then
        tell note "this worker shares $where itself"
        return
    fi
    has_client || need "install nfs-common"
    if ! mounted; then
        if [ -d "$where" ] && [ "$(ls -A "$where" 2>/dev/null)" ]; then
            refuse "$where has files of this worker's in it" "move them away, or share another folder"
        fi
        need "mount $server:$where at $where"
    fi
    table_text | is_block "$table" || need "mount it after a restart too: $table"
}

change() {
    if is_server; then return; fi
    has_client || install_packages nfs-common
    put_folder "$where"
    table_text | put_block "$table"
    if ! mounted; then
        note unmount "$where"
        as_root timeout 60 mount -t nfs -o "$options" "$server:$where" "$where" ||
            refuse "$server:$where cannot be mounted" "see that its slice is READY, and that the network's rules let tcp:2049 through"
    fi
}
