# A data disk, mounted where the value says: [DEVICE:]FOLDER.

where=${value##*:}
asked=
case $value in *:*) asked=${value%%:*} ;; esac
table=/etc/fstab
#: The start of a disk that has to be nothing but zeros, in MiB: a signature may lie deep.
START=64

# Every disk beside the one that the system is on, as /dev/NAME.
disks() {
    system=$(findmnt -n -o SOURCE / | sed 's/\[.*//')
    for link in /dev/disk/by-id/google-*; do
        case $link in *-part[0-9]*) continue ;; esac
        device=$(readlink -f "$link")
        [ -b "$device" ] || continue
        # The disk of a partition begins its name: sda1 is of sda, nvme0n1p1 of nvme0n1.
        case $system in "$device"*) ;; *) echo "$device" ;; esac
    done | sort -u
}

disk() {
    disks | while read -r each; do
        if [ -z "$asked" ] || [ "${each##*/}" = "$asked" ] || [ "$(readlink -f "/dev/disk/by-id/google-$asked")" = "$each" ]; then echo "$each"; fi
    done
}

one_disk() {
    device=$(disk)
    case $device in
        "") refuse "this worker has no data disk${asked:+ $asked}" "attach one: tpukit update NAME --data-disk, or create with --data-disk" ;;
        *"
"*) refuse "this worker has several data disks: $(echo $device)" "name one: disk:${device##*/}:$where" ;;
    esac
}

probe() {
    as_root blkid -p -o value -s "$1" "$device" 2>/dev/null
}

read_only() {
    [ "$(as_root blockdev --getro "$device" 2>/dev/null)" = 1 ]
}

empty() {
    ! as_root blkid -p "$device" >/dev/null 2>&1 &&
        [ -z "$(as_root wipefs -n -p "$device" 2>/dev/null)" ] &&
        as_root head -c "$((START << 20))" "$device" | tr -d '\0' | head -c 1 | wc -c | grep -qx 0
}

options() {
    if read_only; then echo ro,noload,nofail; else echo discard,nofail; fi
}

table_text() {
    printf 'UUID=%s %s %s %s 0 2\n' "$(probe UUID)" "$where" "$(probe TYPE)" "$(options)"
}

mounted() {
    [ "$(findmnt -n -o SOURCE --mountpoint "$where" 2>/dev/null)" = "$device" ]
}

caches() {
    read_only || printf '%s\n' huggingface uv pip
}

fact() {
    one_disk
    kind=$(probe TYPE)
    if [ -z "$kind" ]; then
        read_only && refuse "the disk $device is read-only and has no file system" "attach it to one worker read-write first, and apply this step there"
        empty || refuse "the disk $device has data that is no file system" "copy what you need, and wipe it yourself: sudo wipefs -a $device; sudo dd if=/dev/zero of=$device bs=1M count=$START"
        need "format $device, which is empty, as ext4"
        need "mount it at $where"
    else
        case $kind in
            ext2 | ext3 | ext4 | xfs | btrfs) ;;
            *) refuse "the disk $device has $kind on it, which is no file system to mount" "copy what you need, and wipe it yourself" ;;
        esac
        mounted && table_text | is_block "$table" || need "mount $device at $where, with what is on it"
    fi
    for cache in $(caches); do
        [ "$(readlink "$HOME/.cache/$cache")" = "$where/cache/$(id -un)/$cache" ] || need "move ~/.cache/$cache to it"
    done
}

change() {
    one_disk
    if [ -z "$(probe TYPE)" ]; then
        empty || refuse "the disk $device is no longer empty" "see what has come onto it"
        # Not noted: what is on a disk then is yours.
        as_root mkfs.ext4 -q -m 0 -E lazy_itable_init=0,lazy_journal_init=0,discard "$device" || exit
        fresh=yes
    fi
    put_folder "$where"
    table_text | put_block "$table"
    if ! mounted; then
        note unmount "$where"
        as_root mount -o "$(options)" "$device" "$where" || refuse "$device cannot be mounted at $where" "see dmesg on the worker"
    fi
    if [ "${fresh-}" ]; then as_root chown "$(id -u):$(id -g)" "$where" || exit; fi
    for cache in $(caches); do move_cache "$cache"; done
}

# A cache goes to the disk with what is in it; back comes what fits.
move_cache() {
    path=$HOME/.cache/$1 target=$where/cache/$(id -un)/$1
    [ "$(readlink "$path")" = "$target" ] && return
    as_root mkdir -p "$where/cache/$(id -un)" && as_root chown "$(id -u):$(id -g)" "$where/cache/$(id -un)" && mkdir -p "$target" || exit
    put_folder "$HOME/.cache"
    if [ -e "$path" ]; then
        cp -a "$path/." "$target/" || refuse "~/.cache/$1 does not fit on the disk" "empty it, or choose a larger disk"
        note cache_back "$path" "$target"
        rm -rf "$path"
    fi
    note take_link "$path" "$target"
    ln -s "$target" "$path" || exit
}
