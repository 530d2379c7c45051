# A repository of settings, linked into the home folder.

folder=$HOME/.dotfiles

# The files and folders at its top that are settings.
names() {
    for path in "$folder"/.[!.]*; do
        case ${path##*/} in
            .git | .gitignore | .gitmodules | .gitattributes | .github | .tpukit) ;;
            *) if [ -e "$path" ]; then echo "${path##*/}"; fi ;;
        esac
    done
}

fact() {
    if [ ! -d "$folder/.git" ]; then
        [ ! -e "$folder" ] || refuse "~/.dotfiles is there, and is no repository" "move it away"
        need "clone $value to ~/.dotfiles, and link its settings"
        return
    fi
    from=$(git config -f "$folder/.git/config" remote.origin.url)
    [ "$from" = "$value" ] || refuse "~/.dotfiles was cloned from $from" "move it away, or undo that step"
    missing=$(names | while read -r name; do
        [ "$(readlink "$HOME/$name")" = "$folder/$name" ] || printf ' %s' "$name"
    done)
    [ -z "$missing" ] || need "link$missing"
}

change() {
    command -v git >/dev/null || refuse "the worker has no git" "add the step apt:git before it"
    if [ ! -d "$folder" ]; then
        new=$tpukit/dotfiles.$$
        GIT_TERMINAL_PROMPT=0 GIT_SSH_COMMAND='ssh -o BatchMode=yes' git clone -q "$value" "$new" || {
            rm -rf "$new"
            refuse "$value cannot be cloned" "see that the worker reaches it, and may read it"
        }
        note take_tree "$folder"
        mv "$new" "$folder" || exit
    fi
    names | while read -r name; do
        path=$HOME/$name
        [ "$(readlink "$path")" = "$folder/$name" ] && continue
        if [ -e "$path" ] || [ -L "$path" ]; then
            kept=$ledgers/kept-$entry
            put_folder "$kept"
            note bring_back "$kept/$name" "$path"
            mv "$path" "$kept/$name" || exit
        fi
        note take_link "$path" "$folder/$name"
        ln -s "$folder/$name" "$path" || exit
    done
}
