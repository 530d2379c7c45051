# Receive bytes under the name of their SHA-256, whole or in pieces, and put them in place.
#   sh -c PROGRAM sh VERB DIGEST SIZE [ARGUMENT…]
#     look [INTO file|tree TARGET NAME MODE]   how much of it is here
#     receive OFFSET COMMAND…                  write what that makes of standard input at OFFSET
#     serve COMMAND…                           what is here, and comes, is its descriptor 3
#     place INTO file|tree TARGET NAME MODE
# Answers one line, "tpukit-transfer WORD BYTES [into]": complete, partial, corrupt (it is removed),
# sent (TARGET has these very bytes, and MODE, now) or unchanged (it had), the bytes that are here,
# and into where TARGET is a folder.

umask 077
verb=$1 digest=$2 size=$3 into=
shift 3
folder=$tpukit/transfers
whole=$folder/$digest
part=$whole.part
mkdir -p "$folder" || exit 1

bytes_of() {
    if [ -f "$1" ]; then echo $(($(wc -c <"$1"))); else echo 0; fi
}
answer() {
    echo "tpukit-transfer $*$into"
    exit 0
}
command -v sha256sum >/dev/null 2>&1 || sha256sum() { shasum -a 256 "$@"; }
is_whole() { # FILE
    [ -f "$1" ] && [ "$(bytes_of "$1")" -eq "$size" ] &&
        [ "$(sha256sum <"$1" | cut -c 1-64)" = "$digest" ]
}
merge() ( # FOLDER TARGET: move what is in it, each file in one step; what else is there stays
    [ -d "$2" ] || exec mv -- "$1" "$2"
    find "$1" -mindepth 1 -maxdepth 1 ! -type d -exec sh -c 'mv -f -- "$@" "$0"' "$2/" {} + || exit 1
    for each in "$1"/* "$1"/.[!.]* "$1"/..?*; do
        if [ ! -d "$each" ] || [ -L "$each" ]; then continue; fi
        merge "$each" "$2/${each##*/}" || exit 1
    done
)

case $verb in
look)
    find "$folder" -type f -mtime +7 -exec rm -f {} + 2>/dev/null
    if [ "$#" -gt 0 ]; then
        target=$3
        [ -d "$target" ] && into=' into'
        if [ "$1$into" != no ]; then target=${3%/}/$4; fi
        if [ "$2" = file ] && is_whole "$target"; then
            [ -n "$(find "$target" -prune -perm "$5")" ] && answer unchanged "$size"
            chmod -- "$5" "$target" || exit 1
            answer sent "$size"
        fi
    fi
    if [ -f "$whole" ]; then
        is_whole "$whole" && answer complete "$size"
        rm -f "$whole"
    fi
    answer partial "$(bytes_of "$part")"
    ;;
receive)
    # Whoever sends a digest writes the same bytes to the same places: two at once do no harm.
    offset=$1
    shift
    {
        dd bs=1 count=0 seek="$offset" conv=notrunc </dev/null 2>/dev/null
        "$@"
    } 1<>"$part"
    status=$? # 3 where the command has verified all of it
    [ "$status" = 3 ] || [ "$status" = 0 ] || exit 1 # the disk is full
    here=$(bytes_of "$part")
    [ "$here" -ge "$size" ] || answer partial "$here"
    if [ "$status" != 3 ] && ! is_whole "$part"; then
        rm -f "$part"
        answer corrupt 0
    fi
    # A sender whose connection was lost may have left a writer that finished a moment earlier.
    mv -f "$part" "$whole" 2>/dev/null || [ -f "$whole" ] || exit 1
    answer complete "$size"
    ;;
serve)
    if [ -f "$whole" ]; then part=$whole; else : >>"$part"; fi
    exec "$@" 3<"$part" # which it keeps when it is renamed
    ;;
place)
    [ -f "$whole" ] || answer partial 0
    target=${3%/}
    if [ "$1" = yes ]; then target=$target/$4; fi
    parent=${target%/*}/
    (umask 022 && mkdir -p -- "$parent") || exit 1
    new=$parent.tpukit.$digest.$$
    trap 'rm -rf -- "$new"' EXIT
    # What stands there is replaced by what is whole, in one step, and by nothing on a full disk.
    if [ "$2" = file ]; then
        if [ -d "$target" ]; then echo "$target is a folder there" >&2 && exit 1; fi
        # A second name of it, a link, would be changed with the file that is there in the end.
        mv -- "$whole" "$new" && chmod -- "$5" "$new" && mv -f -- "$new" "$target" || exit 1
    else
        mkdir "$new" && (umask 022 && tar -xof "$whole" -C "$new") || exit 1
        name=${target##*/}
        [ "$name" = "$4" ] || mv -- "$new/$4" "$new/$name" || exit 1
        merge "$new" "$parent" || exit 1 # where all is there already, the answer was lost
        rm -f "$whole"
    fi
    answer sent "$size"
    ;;
esac
