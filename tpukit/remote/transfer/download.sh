# Describe and send a file, a folder, or what a pattern matches, as bytes that can be resumed.
#   sh -c PROGRAM sh measure PATH pattern|plain
# answers "tpukit-listing KIND SIZE DIGEST SAMPLE"; KIND is file or program (the bytes themselves),
# folder (a tar archive of what is in it), several (one of what matched) or absent; SAMPLE is how
# many bytes the first 4 MiB make when they are compressed.
#   sh -c PROGRAM sh send PATH pattern|plain OFFSET plain|gzip
# writes the line "tpukit-bytes", then the bytes from OFFSET on.

verb=$1 path=$2 mode=$3

matches() {
    # With no field separator an unquoted value undergoes pathname expansion and nothing else.
    IFS=
    set -- $path
    unset IFS
    total=$#
    while [ "$total" -gt 0 ]; do
        each=${1%/}
        shift
        total=$((total - 1))
        [ -e "$each" ] || [ -L "$each" ] || continue
        set -- "$@" -C "$(cd -- "$(dirname -- "$each")" && pwd -P)" "./$(basename -- "$each")"
    done
    [ "$#" -gt 0 ] && tar -cf - "$@" 2>/dev/null
}
kind=absent
if [ "$mode" = pattern ]; then
    [ -n "$(matches | head -c 1 | tr '\0' x)" ] && kind=several
elif [ -d "$path" ]; then
    kind=folder
elif [ -f "$path" ]; then
    kind=file
    [ -x "$path" ] && kind=program
fi
content() {
    case $kind in
    file | program) cat -- "$path" ;;
    folder) tar -cf - -C "$path" . 2>/dev/null ;;
    several) matches ;;
    esac
}
digest() {
    if command -v sha256sum >/dev/null 2>&1; then sha256sum; else shasum -a 256; fi | cut -c 1-64
}

if [ "$verb" = measure ]; then
    [ "$kind" = absent ] && { echo "tpukit-listing absent 0 - 0"; exit 0; }
    counted=$({ { content | tee /dev/fd/3 | wc -c >&4; } 3>&1 | digest; } 4>&1)
    set -- $counted
    # The count and the digest come in either order.
    if [ "${#1}" -eq 64 ]; then set -- "$2" "$1"; fi
    echo "tpukit-listing $kind $1 $2 $(($(content | head -c 4194304 | gzip -1 | wc -c)))"
    exit 0
fi
echo tpukit-bytes
if [ "$5" = gzip ]; then
    content | tail -c "+$(($4 + 1))" | gzip -1
else
    content | tail -c "+$(($4 + 1))"
fi
