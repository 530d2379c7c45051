# A folder that others may mount: FOLDER:ADDRESS,ADDRESS…

where=${value%%:*}
table=/etc/exports

table_text() {
    printf %s "$where"
    for address in $(printf %s "${value#*:}" | tr , ' '); do
        printf ' %s(rw,sync,no_subtree_check,all_squash,anonuid=%s,anongid=%s)' "$address" "$(id -u)" "$(id -g)"
    done
    echo
}

has_server() {
    PATH=$PATH:/usr/sbin:/sbin command -v exportfs >/dev/null
}

fact() {
    has_server || need "install nfs-kernel-server"
    [ -d "$where" ] || need "make the folder $where"
    table_text | is_block "$table" || need "share $where with ${value#*:}: $table"
}

change() {
    has_server || install_packages nfs-kernel-server
    if [ ! -d "$where" ]; then
        put_folder "$where"
        as_root chown "$(id -u):$(id -g)" "$where" || exit
    fi
    # Taken back the other way round: first the line goes, then the server is told.
    note export_again
    table_text | put_block "$table"
    export_again || refuse "the NFS server does not share $where" "see systemctl status nfs-kernel-server on the worker"
}
