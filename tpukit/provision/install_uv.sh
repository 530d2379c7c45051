# Install uv, with a Python that has pip or can make an environment that has it.
#     sh -c PROGRAM sh PYTHON pip|venv FOLDER REQUIREMENT
# REQUIREMENT is a line of a requirements file, with hashes: pip refuses any other file.
# Two at once, and one that was killed, do not meet: each fills a folder of its own, and the first
# that is whole gets the name.

folder=$3
# Caches that are not there yet are made for us, and may go with us: remove_environments of the agent.
mkdir -p "${folder%/*}"
[ -e "$HOME/.cache" ] || : >"${folder%/*}/made-cache"
for cache in uv pip; do
    [ -e "$HOME/.cache/$cache" ] || : >"${folder%/*}/made-$cache-cache"
done
partial=$folder.partial.$$
works() {
    "$folder/bin/uv" --version >/dev/null 2>&1
}
for left in "$folder".partial.*; do
    kill -0 "${left##*.}" 2>/dev/null || rm -rf "$left"
done
works || rm -rf "$folder"
trap 'rm -rf "$partial"' EXIT
mkdir -p "$partial" || exit
python=$1
if [ "$2" = venv ]; then
    "$1" -I -m venv "$partial/helper" || exit
    python=$partial/helper/bin/python
fi
echo "$4" >"$partial/uv.txt"
# Some images log in as root, of which pip warns; an option would stop a pip older than 22.1.
PIP_ROOT_USER_ACTION=ignore "$python" -I -m pip install --quiet --no-input \
    --disable-pip-version-check --only-binary=:all: --require-hashes --no-deps --no-compile \
    --target "$partial/uv" --requirement "$partial/uv.txt" || exit
# Unlike mv, it fails where another one's is there.
"$1" -I -c 'import os, sys; os.rename(*sys.argv[1:])' "$partial/uv" "$folder" 2>/dev/null || works
