# Keep a tree of files as the one who pushes has it: built beside, checked, then renamed.
#   sh -c PROGRAM sh look TARGET
# answers "tpukit-push WORD [DIGEST]": absent, or intact or changed since the last push, with the
# SHA-256 of its manifest; fails for a folder that holds something and that no push has made.
#   sh -c PROGRAM sh manifest TARGET
# writes the line "tpukit-bytes", then that manifest.
#   sh -c PROGRAM sh apply TARGET DIGEST MANIFEST
# makes the target have the manifest of that SHA-256, from the payload of the first one, and
# answers applied, missing (there is no payload of that digest) or differs (nothing was changed).
#
# A tree keeps its manifest in .tpukit/manifest, so that both are renamed as one. What was made on
# the worker stays; what the last push brought and this one does not have goes.

umask 022
verb=$1 target=${2%/} digest=$3 wanted=$4
whole=$tpukit/transfers/$digest

answer() {
    echo "tpukit-push $*"
    exit 0
}
refuse() {
    echo "$1" >&2
    exit 1
}
sha256() {
    if command -v sha256sum >/dev/null 2>&1; then sha256sum "$@"; else shasum -a 256 "$@"; fi
}
holds() { # whether every file of the manifest in a folder is what it says
    (cd -- "$1" && { ! grep -q '^[^#]' .tpukit/manifest || sha256 -c .tpukit/manifest; }) \
        >/dev/null 2>&1
}

manifest_digest() {
    sha256 <"$target/.tpukit/manifest" | cut -c 1-64
}

# Where the target really is: what is renamed has to be the folder, not a link to it.
if [ -d "$target" ]; then
    target=$(cd -- "$target" && pwd -P) || exit 1
elif [ -e "$target" ] || [ -L "$target" ]; then
    refuse "there is a file of that name"
else
    mkdir -p -- "$(dirname -- "$target")" || exit 1
    target=$(cd -- "$(dirname -- "$target")" && pwd -P)/$(basename -- "$target")
fi
case $(cd && pwd -P)/ in
"${target%/}"/*) refuse "the home folder is in it" ;;
esac
parent=$(dirname -- "$target")
name=$(basename -- "$target")
old=$parent/.$name.tpukit-old
new=$parent/.$name.tpukit-new

# One at a time, also of workers that share the folder; where there is no flock the last one wins.
exec 9>"$parent/.$name.tpukit-lock" || exit 1
command -v flock >/dev/null 2>&1 && flock 9
# A push that was cut off between its two renames left no target.
if [ ! -e "$target" ] && [ -d "$old" ]; then mv -- "$old" "$target" || exit 1; fi
# Nobody's folder is replaced but one that a push has made.
if [ -d "$target" ] && [ ! -f "$target/.tpukit/manifest" ] && [ -n "$(ls -A -- "$target")" ]; then
    refuse "it holds files and no push has made it"
fi

case $verb in
look)
    [ -f "$target/.tpukit/manifest" ] || answer absent
    found=$(manifest_digest)
    if holds "$target"; then answer intact "$found"; else answer changed "$found"; fi
    ;;
manifest)
    echo tpukit-bytes
    cat -- "$target/.tpukit/manifest"
    ;;
apply)
    if [ -f "$target/.tpukit/manifest" ] && [ "$(manifest_digest)" = "$wanted" ] &&
        holds "$target"; then
        rm -f "$whole"
        answer applied
    fi
    [ -f "$whole" ] || answer missing
    rm -rf -- "$old" "$new"
    if [ -d "$target" ]; then
        # Links instead of copies where they can be: tar puts new files in their place.
        cp -al -- "$target" "$new" 2>/dev/null ||
            { rm -rf -- "$new" && cp -Rp -- "$target" "$new"; } || exit 1
    else
        mkdir -- "$new" || exit 1
    fi
    tar -xof "$whole" -C "$new" .tpukit || exit 1
    while IFS= read -r each; do
        case /$each/ in
        */../*) continue ;;
        *//) rmdir -- "$new/$each" 2>/dev/null ;;
        *) rm -f -- "$new/$each" ;;
        esac
    done <"$new/.tpukit/removed"
    tar -xof "$whole" -C "$new" || exit 1
    rm -f -- "$new/.tpukit/removed"
    if ! holds "$new"; then
        rm -rf -- "$new"
        answer differs
    fi
    if [ -d "$target" ]; then mv -- "$target" "$old" || exit 1; fi
    mv -- "$new" "$target" || exit 1
    rm -rf -- "$old"
    rm -f "$whole"
    answer applied
    ;;
esac
