# Install what comes on top of a recipe, and leave none of its files: they may hold secrets.
#     sh -c PROGRAM sh FOLDER PROJECT ENVIRONMENT UV COMMAND…
# FOLDER may have requirements.txt and `variables`. PROJECT is a folder, from the home folder or from
# the root, or empty. COMMAND… ends as a `uv pip install` of the recipe's own pins.

folder=$1 project=$2 environment=$3 uv=$4
shift 4
trap 'rm -rf "$folder"' EXIT
[ ! -f "$folder/variables" ] || . "$folder/variables" || exit
[ ! -f "$folder/requirements.txt" ] || set -- "$@" --requirements "$folder/requirements.txt"
if [ "$project" ]; then
    place=$HOME/$project
    [ "${project#/}" = "$project" ] || place=$project
    if [ ! -f "$place/pyproject.toml" ] && [ ! -f "$place/setup.py" ]; then
        echo "error: there is no project in $place: neither pyproject.toml nor setup.py"
        exit 1
    fi
    set -- "$@" --editable "$place"
    if [ -f "$place/uv.lock" ]; then
        # What the project's own lock says, except the project itself; uv checks the hashes.
        mkdir -p "$folder" || exit
        "$uv" export --quiet --frozen --no-emit-project --no-default-groups \
            --python "$environment/bin/python" --project "$place" \
            --output-file "$folder/locked.txt" || exit
        set -- "$@" --requirements "$folder/locked.txt"
    fi
fi
"$@" || exit
if [ "$project" ]; then
    "$environment/bin/python" -I -c '
import hashlib, os, sys
place, project, mark = sys.argv[1:]
digest = hashlib.sha256()
for name in ("pyproject.toml", "setup.py", "uv.lock"):
    try:
        with open(os.path.join(place, name), "rb") as file:
            digest.update(file.read())
    except OSError:
        continue
with open(mark, "w") as file:
    file.write(digest.hexdigest() + " " + project)
' "$place" "$project" "$environment/tpukit-editable"
fi
