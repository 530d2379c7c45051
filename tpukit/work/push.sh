# Keep a tree of files as the one who pushes has it, file by file under what runs in it.
#   sh -c PROGRAM sh look TARGET
# answers "tpukit-push WORD [DIGEST]": absent, intact with the SHA-256 of its manifest, or changed
# since the last push or by one that was cut off; fails for a folder that no push may touch.
#   sh -c PROGRAM sh manifest TARGET
# writes the line "tpukit-bytes", then that manifest.
#   sh -c PROGRAM sh apply TARGET DIGEST MANIFEST
# makes the target have the manifest of that SHA-256, from the payload of the first one, and
# answers applied, missing (there is no payload of that digest) or differs (nothing was changed).
#
# The tree's folder .tpukit has the manifest of the last push, while all of it is in place; the names
# that any push has brought in `unfinished`, while it is not; what is on its way in `new` and `next`.

umask 022
unset CDPATH
export LC_ALL=C
verb=$1 target=$2 digest=$3 wanted=$4
whole=$tpukit/transfers/$digest
manifest=.tpukit/manifest unfinished=.tpukit/unfinished new=.tpukit/new next=.tpukit/next

answer() { echo "tpukit-push $*"; exit 0; }
refuse() { echo "$1" >&2; exit 1; }
command -v sha256sum >/dev/null 2>&1 || sha256sum() { shasum -a 256 "$@"; }
manifest_digest() { sha256sum <"$manifest" | cut -c 1-64; }
holds() { # FOLDER MANIFEST: whether every file and link in it is what the manifest there says
    (cd "$1" && { ! grep -q '^[^#]' "$2" || sha256sum -c "$2"; } && links "$2") >/dev/null 2>&1
}
links() {
    sed -n 's/^#l //p' "$1" | while IFS= read -r each; do
        [ "$(readlink -n "${each#*  }" | sha256sum | cut -c 1-64)" = "${each%%  *}" ] || exit 1
    done
}
names() { # MANIFEST: its names, each beginning with ./
    sed -n -e '/\/\.\.\//d' -e 's/^\(#l \)\{0,1\}[0-9a-f]\{64\}  //p' "$1"
}
each_of() { tr '\n' '\0' | xargs -0 "$@"; }

if [ ! -d "$target" ]; then
    if [ -e "$target" ] || [ -L "$target" ]; then refuse "there is a file of that name"; fi
    [ "$verb" = apply ] || answer absent
    mkdir -p -- "$target" || exit 1
fi
cd -- "$target" || exit 1
here=$(pwd -P)
case $(cd && pwd -P)/ in
"${here%/}"/*) refuse "the home folder is in it" ;;
esac
if [ -n "$(ls -A)" ] && [ ! -d .tpukit ]; then refuse "it holds files and no push has made it"; fi

case $verb in
look)
    [ -f "$unfinished" ] && answer changed
    [ -f "$manifest" ] || answer absent
    if holds . "$manifest"; then answer intact "$(manifest_digest)"; else answer changed; fi
    ;;
manifest)
    echo tpukit-bytes
    cat "$manifest"
    ;;
apply)
    # One at a time, also of workers that share the folder; without flock the last one wins.
    mkdir -p .tpukit && exec 9>.tpukit/lock || exit 1
    if command -v flock >/dev/null 2>&1 && ! flock -n 9 && ! flock -w 300 9; then
        refuse "another push is going on there"
    fi
    trap 'rm -rf "$new" "$next"' EXIT
    if [ -f "$manifest" ] && [ "$(manifest_digest)" = "$wanted" ] && holds . "$manifest"; then
        rm -rf "$unfinished" "$whole"
        answer applied
    fi
    [ -f "$whole" ] || answer missing
    rm -rf "$new" "$next" # of a push that was killed
    tar -xof "$whole" && mkdir -p "$new" || exit 1

    sort "$next/manifest" "$next/sent" | uniq -u >"$next/kept" || exit 1
    { holds "$new" "../next/sent" && holds . "$next/kept"; } || answer differs
    (cd "$new" && find . -type d) >"$next/folders" && names "$next/sent" >"$next/changed" &&
        names "$next/manifest" | sort >"$next/after" || exit 1
    { [ ! -f "$manifest" ] || names "$manifest"; [ ! -f "$unfinished" ] || cat "$unfinished"; } |
        sort -u >"$next/before" && comm -23 "$next/before" "$next/after" >"$next/removed" || exit 1
    { # what is no folder where one is to come, and what folders hold where a file is to come
        while IFS= read -r each; do
            if [ -L "$each" ] && grep -qxF -e "$each" "$next/removed"; then echo "$each"; fi
            if [ ! -d "$each" ] && { [ -e "$each" ] || [ -L "$each" ]; }; then echo "$each"; fi
        done <"$next/folders"
        while IFS= read -r each; do
            if [ -d "$each" ] && [ ! -L "$each" ]; then find "$each" ! -type d; fi
        done <"$next/changed"
    } | sort -u >"$next/in-the-way" || exit 1
    own=$(comm -23 "$next/in-the-way" "$next/removed" | head -n 1)
    [ -z "$own" ] || refuse "$own is in the way, and no push has brought it"
    # By their own names, none through a link: that leads to what is to stay, or out of the tree.
    find . ! -type d | sort | comm -12 - "$next/removed" >"$next/going" || exit 1

    # Until the manifest is there again, what has been removed and what has come is not known.
    sort -u -o "$next/unfinished" "$next/before" "$next/after" &&
        mv -f "$next/unfinished" "$unfinished" && rm -f "$manifest" || exit 1
    comm -12 "$next/going" "$next/in-the-way" | each_of rm -f -- || exit 1
    while IFS= read -r each; do
        [ ! -d "$each" ] || [ -L "$each" ] || find "$each" -depth -type d -exec rmdir {} + || exit 1
    done <"$next/changed"
    # A rename leaves whoever has the old file open with it, and nobody with half a new one.
    while IFS= read -r each; do
        mkdir -p "$each" && find "$new/$each" -maxdepth 1 ! -type d \
            -exec sh -c 'mv -f "$@" "$0"' "$each/" {} + || exit 1
    done <"$next/folders"
    # What has moved is at its new place by now: whoever runs in there has the one or the other.
    comm -23 "$next/going" "$next/in-the-way" | each_of rm -f -- ||
        refuse "what is gone here cannot be removed there"
    # Folders that are empty now go as well, the deepest first; by their own names, too.
    find . -type d | sort >"$next/standing"
    sed -n -e :a -e 's|/[^/]*$||' -e '/\//!d' -e p -e ba "$next/removed" | sort -u |
        comm -12 - "$next/standing" | sort -r | each_of rmdir -- 2>/dev/null
    mv -f "$next/manifest" "$manifest" || exit 1
    rm -rf "$unfinished" "$whole"
    answer applied
    ;;
esac
