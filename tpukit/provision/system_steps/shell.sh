# zsh with oh-my-zsh, byobu, mosh, fastfetch.

framework=$HOME/.oh-my-zsh
settings=$HOME/.zshrc
address=https://github.com/ohmyzsh/ohmyzsh.git

packages() {
    echo zsh byobu mosh git
    if installed fastfetch || apt-cache show fastfetch >/dev/null 2>&1; then echo fastfetch; fi
}

settings_text() {
    cat <<'END'
export ZSH="$HOME/.oh-my-zsh"
ZSH_THEME="robbyrussell"
plugins=(git)
zstyle ':omz:update' mode disabled
source "$ZSH/oh-my-zsh.sh"
END
}

login_shell() {
    getent passwd "$(id -un)" | cut -d: -f7
}

# Accounts of OS Login are in no file here: their login shell is kept elsewhere.
is_local() {
    grep -q "^$(id -un):" /etc/passwd
}

fact() {
    missing=
    for package in $(packages); do installed "$package" || missing="$missing $package"; done
    [ -z "$missing" ] || need "install$missing"
    [ -e "$framework/oh-my-zsh.sh" ] || need "clone oh-my-zsh to ~/.oh-my-zsh"
    settings_text | is_block "$settings" || need "load it in ~/.zshrc"
    if ! is_local; then tell note "the login shell of an OS Login account is not changed"
    elif [ "$(login_shell)" != /usr/bin/zsh ]; then need "make zsh the login shell"; fi
    case $(packages) in
        *fastfetch*) ;;
        *) tell note "no fastfetch in this image's package sources" ;;
    esac
}

change() {
    # shellcheck disable=SC2046  # names without blanks
    install_packages $(packages)
    if [ ! -e "$framework/oh-my-zsh.sh" ]; then
        [ ! -e "$framework" ] || refuse "$framework is there, and is no oh-my-zsh" "move it away"
        new=$tpukit/oh-my-zsh.$$
        git clone -q --depth 1 "$address" "$new" || {
            rm -rf "$new"
            refuse "oh-my-zsh cannot be cloned from $address" "give the worker a way out: an external address or Cloud NAT"
        }
        note take_tree "$framework"
        mv "$new" "$framework" || exit
    fi
    settings_text | put_block "$settings"
    if is_local && [ "$(login_shell)" != /usr/bin/zsh ]; then
        note set_login_shell "$(login_shell)"
        set_login_shell /usr/bin/zsh
    fi
}
