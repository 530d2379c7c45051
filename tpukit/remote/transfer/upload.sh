# Receive bytes under the name of their SHA-256, whole or in pieces, and put them in place.
#   sh -c PROGRAM sh VERB DIGEST SIZE [ARGUMENT…]
#     look [file|tree TARGET INTO NAME MODE]   how much of it is here
#     receive OFFSET plain|gzip                write standard input at OFFSET
#     place file|tree TARGET INTO NAME MODE
# Answers one line, "tpukit-transfer WORD [BYTES] [into]": complete, partial BYTES, corrupt (it was
# removed), placed (TARGET has these very bytes) or mode (it has, and now MODE too); into says that
# TARGET is a folder.

umask 077
verb=$1 digest=$2 size=$3 into=
shift 3
folder=$tpukit/transfers
whole=$folder/$digest
part=$whole.part
mkdir -p "$folder" || exit 1

digest_of() {
    if command -v sha256sum >/dev/null 2>&1; then sha256sum; else shasum -a 256; fi <"$1" |
        cut -c 1-64
}
answer() {
    echo "tpukit-transfer $*$into"
    exit 0
}
bytes_here() {
    if [ -f "$part" ]; then echo $(($(wc -c <"$part"))); else echo 0; fi
}
finish() {
    if [ "$(bytes_here)" -lt "$size" ]; then answer partial "$(bytes_here)"; fi
    if [ "$(digest_of "$part")" != "$digest" ]; then
        rm -f "$part"
        answer corrupt
    fi
    # A sender whose connection was lost may have left a writer that finished a moment earlier.
    mv -f "$part" "$whole" 2>/dev/null || [ -f "$whole" ] || exit 1
    answer complete
}
merge() ( # FOLDER TARGET: move what is in it, each file in one step; what else is there stays
    find "$1" -mindepth 1 -maxdepth 1 ! -type d -exec sh -c 'mv -f -- "$@" "$0"' "$2/" {} + || exit 1
    for each in "$1"/* "$1"/.[!.]* "$1"/..?*; do
        if [ ! -d "$each" ] || [ -L "$each" ]; then continue; fi
        place=$2/${each##*/}
        if [ -d "$place" ]; then merge "$each" "$place"; else mv -- "$each" "$place"; fi || exit 1
    done
)

case $verb in
look)
    find "$folder" -type f -mtime +7 -exec rm -f {} + 2>/dev/null
    if [ "$#" -gt 0 ]; then
        target=$2
        [ -d "$target" ] && into=' into'
        if [ "$3$into" != no ]; then target=${2%/}/$4; fi
        if [ "$1" = file ] && [ -f "$target" ] && [ "$(($(wc -c <"$target")))" -eq "$size" ] &&
            [ "$(digest_of "$target")" = "$digest" ]; then
            [ -n "$(find "$target" -prune -perm "$5")" ] && answer placed
            chmod -- "$5" "$target" || exit 1
            answer mode
        fi
    fi
    if [ -f "$whole" ]; then
        [ "$(digest_of "$whole")" = "$digest" ] && answer complete
        rm -f "$whole"
    fi
    answer partial "$(bytes_here)"
    ;;
receive)
    # Whoever sends a digest writes the same bytes to the same places: two at once do no harm.
    : >>"$part" || exit 1
    {
        dd bs=1 count=0 seek="$1" conv=notrunc </dev/null 2>/dev/null
        if [ "$2" = gzip ]; then gzip -dc; else cat; fi
    } 1<>"$part" || exit 1 # the disk is full
    finish
    ;;
place)
    [ -f "$whole" ] || answer partial "$(bytes_here)"
    target=${2%/}
    parent=$(dirname -- "$2")
    if [ "$3" = yes ]; then parent=$2 target=$target/$4; fi
    (umask 022 && mkdir -p -- "$parent") || exit 1
    new=$parent/.tpukit.$digest.$$
    trap 'rm -rf -- "$new"' EXIT
    # What stands there is replaced by what is whole, in one step, and by nothing on a full disk.
    if [ "$1" = file ]; then
        # A second name of it, a link, would be changed with the file that is there in the end.
        mv -- "$whole" "$new" && chmod -- "$5" "$new" && mv -f -- "$new" "$target" || exit 1
    else
        mkdir "$new" && (umask 022 && tar -xof "$whole" -C "$new") || exit 1
        if [ "$3" = yes ]; then
            merge "$new" "$parent" || exit 1
        elif [ -d "$target" ]; then # it was put there, and the answer was lost
            merge "$new/$4" "$target" || exit 1
        else
            mv -- "$new/$4" "$target" || exit 1
        fi
        rm -f "$whole"
    fi
    answer placed
    ;;
esac
