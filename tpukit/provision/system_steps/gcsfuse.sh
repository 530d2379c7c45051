# A Cloud Storage bucket as a folder: BUCKET[:FOLDER].

bucket=${value%%:*}
where=/mnt/$bucket
case $value in *:*) where=${value#*:} ;; esac
key=/usr/share/keyrings/tpukit-cloud.google.asc
list=/etc/apt/sources.list.d/tpukit-gcsfuse.list
table=/etc/fstab

list_text() {
    # shellcheck disable=SC1091
    codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
    printf '# tpukit\ndeb [signed-by=%s] https://packages.cloud.google.com/apt gcsfuse-%s main\n' "$key" "$codename"
}

table_text() {
    printf '%s %s gcsfuse rw,_netdev,nofail,allow_other,implicit_dirs,uid=%s,gid=%s 0 0\n' "$bucket" "$where" "$(id -u)" "$(id -g)"
}

mounted() {
    findmnt -n --mountpoint "$where" -o FSTYPE 2>/dev/null | grep -q fuse
}

fact() {
    command -v gcsfuse >/dev/null || need "install gcsfuse from packages.cloud.google.com"
    mounted && table_text | is_block "$table" || need "mount the bucket $bucket at $where"
}

change() {
    if ! command -v gcsfuse >/dev/null; then
        new=$(mktemp) || exit
        curl -fsS --retry 3 --max-time 60 -o "$new" https://packages.cloud.google.com/apt/doc/apt-key.gpg ||
            refuse "packages.cloud.google.com cannot be reached" "give the worker a way out: an external address, Cloud NAT or Private Google Access"
        note take_file "$key"
        as_root install -m 644 "$new" "$key" || exit
        rm -f "$new"
        list_text | put_file "$list" 644
        update_lists
        install_packages gcsfuse
    fi
    put_folder "$where"
    table_text | put_block "$table"
    if ! mounted; then
        note unmount "$where"
        as_root mount "$where" || refuse "the bucket $bucket cannot be mounted" "see that it is there, and that the slice's service account may read it: roles/storage.objectUser"
    fi
}
