# What system steps are made of: each change is noted in a ledger on the worker before it is made,
# with the words that take it back; to undo a step is to do these words, the last first.
#
# A step's program defines `fact`, which says what is not as it should be and changes nothing, and
# `change`, which may be repeated. POSIX sh; what needs root goes through sudo, which may not ask.

tpukit=$HOME/.tpukit
ledgers=$tpukit/ledger
mark=TPUKIT-STEP
here=$(printf '\t')

# begin WORD ENTRY VALUE VERSION: what follows is about one step.
begin() {
    word=$1 entry=$2 value=$3 version=$4
    ledger=$ledgers/$entry
    needed=
}

# tell KIND TEXT [FIX]: a line for tpukit. Nearly every text is as good as always: no programs for it.
tell() {
    case $2$3 in *[[:cntrl:]]*) set -- "$1" "$(flat "$2")" "$(flat "$3")" ;; esac
    printf '%s\t%s\t%s\t%s\t%s\n' "$mark" "$word" "$1" "$2" "$3"
}

flat() {
    printf %s "$1" | tr '[:cntrl:]' ' '
}

need() {
    needed=yes
    tell needed "$1"
}

# refuse CAUSE FIX: what stands in the way; nothing was changed by what comes after it.
refuse() {
    tell refused "$1" "$2"
    exit 3
}

# --- rights

is_root() {
    [ "$(id -u)" = 0 ]
}

as_root() {
    if is_root; then "$@"; else sudo -n -- "$@"; fi
}

# Where a worker is emulated without namespaces of its own, its /etc is that of the machine beneath.
require_root() {
    if [ "${TPUKIT_EMULATED_DEVICES+set}" ] && [ ! -d /opt/emulated-worker ]; then
        refuse "this emulated worker shares /etc with the machine that runs it" \
            "tpukit emulator start --engine namespaces, as root on Linux"
    fi
    is_root || sudo -n true >/dev/null 2>&1 ||
        refuse "$(id -un) may not use sudo without a password here" \
            "log in as an account with roles/compute.osAdminLogin, or one that the metadata's SSH keys name"
}

# for_path PATH COMMAND…: with the rights that the file needs.
for_path() {
    case $1 in
        "$HOME"/*) shift && "$@" ;;
        *) shift && as_root "$@" ;;
    esac
}

# --- the ledger

# quoted WORD…: as one line that eval reads as the same words.
quoted() {
    for each; do
        printf "'%s' " "$(printf %s "$each" | sed "s/'/'\\\\''/g")"
    done
}

noted() {
    [ -f "$ledger" ] && grep -qF "undo$here$(quoted "$@")" "$ledger"
}

# note WORD…: what takes back the change that comes next.
note() {
    noted "$@" && return
    [ "$(quoted "$@" | wc -l)" = 0 ] || refuse "a name has a line's end in it: $(flat "$*")" "rename it"
    if [ ! -f "$ledger" ]; then
        (umask 077 && mkdir -p "$ledgers") || exit
        # Past the newest: steps are undone the last first.
        number=$(cat "$ledgers"/* 2>/dev/null | sed -n "s/^number$here//p" | sort -n | tail -n 1)
        {
            printf 'word\t%s\nvalue\t%s\n' "$word" "$value"
            printf 'number\t%s\n' $((${number:-0} + 1))
            printf 'by\ttpukit %s\nat\t%s\n' "$version" "$(date -u +%Y-%m-%dT%H:%M:%SZ)"
        } >"$ledger" || exit
    fi
    printf 'undo\t%s\n' "$(quoted "$@")" >>"$ledger" || exit
}

# Do all that was noted, the last first. What is done is struck out, so that this may be repeated.
undo() {
    while [ -f "$ledger" ]; do
        line=$(sed -n "s/^undo$here//p" "$ledger" | tail -n 1)
        if [ -z "$line" ]; then
            rm -f "$ledger"
            break
        fi
        echo "undo: $line"
        eval "$line" || exit
        sed '$d' "$ledger" >"$ledger.new" && mv -f "$ledger.new" "$ledger" || exit
    done
}

# Remove what attempts at steps have left of which nothing holds, and the folders that are empty then.
sweep() {
    for status in "$tpukit"/jobs/provision-*/status; do
        job=${status%/status}
        step=${job##*/provision-}
        step=${step%-*-*} # without the digest and the number of the attempt
        case $step in uv | python | venv | packages | requirements | verify) continue ;; esac
        if [ -f "$status" ] && [ ! -e "$ledgers/$step" ]; then rm -rf "$job"; fi
    done
    rmdir "$ledgers" "$tpukit/jobs" "$tpukit" 2>/dev/null
    return 0
}

# --- files and folders

# put_file PATH MODE <TEXT: a file of tpukit's own.
put_file() {
    if [ -e "$1" ] && ! noted take_file "$1"; then
        grep -q tpukit "$1" || refuse "$1 is there already, and is not tpukit's" "move it away"
    fi
    put_folder "${1%/*}"
    note take_file "$1"
    for_path "$1" sh -c 'umask 022; cat >"$1.tpukit-new" && chmod "$2" "$1.tpukit-new" &&
        mv -f "$1.tpukit-new" "$1"' sh "$1" "$2" || exit
}

take_file() {
    for_path "$1" rm -f "$1"
}

# is_file PATH <TEXT
is_file() {
    cat | cmp -s - "$1"
}

put_folder() {
    if [ -z "$1" ] || [ -d "$1" ]; then return; fi
    case $1 in */*) put_folder "${1%/*}" ;; esac
    note take_folder "$1"
    for_path "$1" mkdir "$1" || exit
}

take_folder() {
    for_path "$1" rmdir "$1" 2>/dev/null || [ ! -d "$1" ] || echo "kept, it is not empty: $1"
}

take_tree() {
    for_path "$1" rm -rf "$1"
}

# take_link PATH TARGET: unless it is another one by now.
take_link() {
    if [ "$(readlink "$1")" = "$2" ]; then for_path "$1" rm -f "$1"; fi
}

# bring_back KEPT PATH: what was in the way.
bring_back() {
    if [ -e "$1" ] || [ -L "$1" ]; then
        if [ -e "$2" ] || [ -L "$2" ]; then refuse "$2 is there again" "move it away"; fi
        for_path "$2" mv "$1" "$2"
    fi
}

# --- settings of the system

# give_device PATH MODE OWNER
give_device() {
    [ -e "$1" ] || return 0
    as_root chmod "$2" "$1" && as_root chown "$3" "$1"
}

set_pages() {
    printf %s "$1" | as_root tee /sys/kernel/mm/transparent_hugepage/enabled >/dev/null
}

set_login_shell() {
    as_root usermod --shell "$1" "$(id -un)"
}

unmount() {
    findmnt -n --mountpoint "$1" >/dev/null 2>&1 || return 0
    as_root umount "$1" || refuse "$1 is in use" "end what uses it: sudo fuser -vm $1"
}

# The NFS server reads its table anew.
export_again() {
    as_root exportfs -ra
}

# cache_back PATH ON_DISK: a copy, for what is on the disk stays there.
cache_back() {
    [ ! -e "$1" ] && [ -d "$2" ] || return 0
    cp -a "$2" "$1.tpukit-new" && mv "$1.tpukit-new" "$1" && rm -rf "$2" && return
    rm -rf "$1.tpukit-new"
    refuse "$2 does not fit into $1" "make room, or empty it"
}

# --- blocks in files of the user's and the system's

block() {
    printf '# >>> tpukit %s >>>\n' "$entry"
    cat
    printf '# <<< tpukit %s <<<\n' "$entry"
}

# marks ENTRY: the patterns of both marks; an editor may have indented them, or ended lines its own way.
marks() {
    first="^[[:space:]]*# >>> tpukit $1 >>>[[:space:]]*\$" last="^[[:space:]]*# <<< tpukit $1 <<<[[:space:]]*\$"
}

without_block() {
    marks "$1"
    sed "/$first/,/$last/d" "$2"
}

# require_marks ENTRY FILE: without the second one nobody knows where the user's own lines begin.
require_marks() {
    marks "$1"
    if sed -n "s/$first/b/p; s/$last/e/p" "$2" | tr -d '\n' | grep -q 'bb\|b$'; then
        refuse "the line '# <<< tpukit $1 <<<' is gone from $2" "put it back behind what is tpukit's, or remove '# >>> tpukit $1 >>>' too"
    fi
}

# is_block PATH <TEXT
is_block() {
    [ -f "$1" ] && [ "$(block)" = "$(sed -n "/^# >>> tpukit $entry >>>\$/,/^# <<< tpukit $entry <<<\$/p" "$1")" ]
}

# put_block PATH <TEXT: with a mark before and after it, at the end of a file.
put_block() {
    file=$(readlink -f -- "$1") || exit
    if [ -e "$file" ]; then require_marks "$entry" "$file"; fi
    new=$(mktemp) || exit
    block >"$new.block"
    if grep -qF "undo$here$(quoted take_block "$entry" "$file")" "$ledger" 2>/dev/null; then :
    elif [ ! -e "$file" ]; then note take_block "$entry" "$file" made
    elif [ -s "$file" ] && [ "$(tail -c 1 "$file" | wc -l)" = 0 ]; then
        note take_block "$entry" "$file" cut $(($(wc -c <"$file"))) # its last line had no end
    else note take_block "$entry" "$file" whole
    fi
    if [ -e "$file" ]; then without_block "$entry" "$file" >"$new"; fi
    if [ -s "$new" ] && [ "$(tail -c 1 "$new" | wc -l)" = 0 ]; then echo >>"$new"; fi
    cat "$new.block" >>"$new"
    replace "$file" "$new"
    rm -f "$new" "$new.block"
}

# replace FILE BY: the content, all or nothing; owner and mode stay.
replace() {
    if [ -e "$1" ]; then for_path "$1" cp -p "$1" "$1.tpukit-new" || exit; fi
    for_path "$1" sh -c 'umask 022; cat >"$1.tpukit-new" && mv -f "$1.tpukit-new" "$1"' sh "$1" <"$2" || exit
}

# take_block ENTRY FILE made|cut|whole [SIZE]: how the file was before; what was cut had so many bytes.
take_block() {
    [ -e "$2" ] || return 0
    require_marks "$1" "$2"
    new=$(mktemp) || exit
    without_block "$1" "$2" >"$new" || exit
    if [ "$3" = cut ] && [ "$(wc -c <"$new")" -eq $(($4 + 1)) ]; then
        head -c "$4" "$new" >"$new.cut" && mv "$new.cut" "$new" || exit
    fi
    if [ "$3" = made ] && [ ! -s "$new" ]; then take_file "$2"; else replace "$2" "$new"; fi
    rm -f "$new"
}

# --- packages

installed() {
    found=$(dpkg-query -W -f='${db:Status-Status} ${Version}' "${1%%=*}" 2>/dev/null) || return
    case $1 in
        *=*) [ "$found" = "installed ${1#*=}" ] ;;
        *) [ "${found%% *}" = installed ] ;;
    esac
}

# Say who holds the lock that apt is about to wait for: with -q apt itself waits without a word.
tell_lock() {
    lock=$(stat -c %i /var/lib/dpkg/lock-frontend 2>/dev/null) || return 0
    holder=$(awk -v "lock=:$lock\$" '$2 == "POSIX" && $6 ~ lock { print $5; exit }' /proc/locks 2>/dev/null)
    if [ "$holder" ]; then
        echo "waiting for the package lock, held by process $holder ($(tr '\0' ' ' <"/proc/$holder/cmdline" 2>/dev/null))" >&2
    fi
}

# Waits ten minutes for the lock that unattended-upgrades or another person holds, and says so;
# it never breaks one. needrestart may restart nothing: it would end the TPU runtime.
apt() {
    tell_lock
    as_root env DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=l NEEDRESTART_SUSPEND=1 LC_ALL=C \
        apt-get -q -y -o DPkg::Lock::Timeout=600 -o Dpkg::Use-Pty=0 \
        -o Dpkg::Options::=--force-confold -o APT::Install-Recommends=false "$@" </dev/null
}

# The lists have a lock of their own, for which apt does not wait.
update_lists() {
    tries=0
    until said=$(apt update 2>&1); do
        printf '%s\n' "$said"
        case $said in
            *"Could not get lock"*) tries=$((tries + 1)) ;;
            *) refuse "the lists of packages cannot be fetched: $(printf '%s\n' "$said" | grep -m 1 '^[EW]:')" \
                "give the worker a way out: an external address or Cloud NAT" ;;
        esac
        [ "$tries" -lt 60 ] || refuse "another program has held the lists of packages for ten minutes" "wait for it, then type this again"
        sleep 10
    done
}

# What apt would do, as its own lines: Inst NAME … a new one, Inst NAME [OLD] … an upgrade, Remv NAME.
simulated() {
    apt -s install "$@" 2>&1
}

# changes PLAN: what of it is no new package, in words.
changes() {
    printf '%s\n' "$1" | sed -n 's/^Remv \([^ ]*\) .*/remove \1/p
        s/^Inst \([^ ]*\) \[\([^]]*\)\] (\([^ )]*\).*/upgrade \1 from \2 to \3/p' | paste -sd , | sed 's/,/, /g'
}

# refuse_changes CHANGES NAME…: nearly every worker has updates pending, and a package may need one.
refuse_changes() {
    changed=$1
    shift
    for package; do
        if [ $# = 1 ] || [ "$(changes "$(simulated "$package")")" ]; then because="$because $package"; fi
    done
    refuse "to install${because:= $*} apt would $changed" \
        "if that is no driver, do it yourself on every worker: sudo apt-get install --yes$because; then type this again. Or choose a version that fits: apt:NAME=VERSION"
}

# install_packages NAME…: none that is there is upgraded or removed for them.
install_packages() {
    command -v apt-get >/dev/null || refuse "the worker has no apt-get" "create the slice with a runtime version that is Ubuntu"
    plan=$(simulated "$@") || { update_lists && plan=$(simulated "$@"); } || {
        printf '%s\n' "$plan"
        refuse "apt cannot install $*: $(printf '%s\n' "$plan" | grep -m 1 '^E:')" "apt-cache search WORD on the worker lists names"
    }
    changed=$(changes "$plan")
    [ -z "$changed" ] || refuse_changes "$changed" "$@"
    new=$(printf '%s\n' "$plan" | sed -n 's/^Inst \([^ ]*\) .*/\1/p')
    [ "$new" ] || return 0
    # Fetched first: without a network nothing is half installed.
    # shellcheck disable=SC2086  # names without blanks
    apt install --no-upgrade --download-only $new || { update_lists && apt install --no-upgrade --download-only "$@"; } ||
        refuse "the packages cannot be fetched" "give the worker a way out: an external address or Cloud NAT"
    # shellcheck disable=SC2086
    note take_packages $new
    apt install --no-upgrade "$@" || exit
    if [ -e /run/reboot-required ]; then
        echo "the system asks for a restart; tpukit never restarts a worker: it can come back without its TPU"
    fi
}

# Nothing that is not in the list goes with them: what was installed later may need one of them.
take_packages() {
    present=
    for each; do
        if dpkg-query -W "$each" >/dev/null 2>&1; then present="$present $each"; fi
    done
    [ "$present" ] || return 0
    # shellcheck disable=SC2086
    for gone in $(apt -s purge $present | sed -n 's/^\(Purg\|Remv\) \([^ ]*\) .*/\2/p'); do
        case " $* " in
            *" $gone "*) ;;
            *) refuse "$gone, which was installed later, needs one of$present" "remove $gone first" ;;
        esac
    done
    # shellcheck disable=SC2086
    apt purge $present
}

# --- what tpukit reads

# Every ledger: what was changed on this worker, by which version, when. By the shell alone: each
# look at a worker does this.
tell_ledgers() {
    for ledger in "$ledgers"/*; do
        [ -f "$ledger" ] || continue
        word='' value='' number='' by='' at=''
        while IFS= read -r line || [ "$line" ]; do
            text=${line#*"$here"}
            case $line in
                "word$here"*) word=$text ;;
                "value$here"*) value=$text ;;
                "number$here"*) number=$text ;;
                "by$here"*) by=$text ;;
                "at$here"*) at=$text ;;
                "undo$here"*) tell undo "$text" ;;
            esac
        done <"$ledger"
        tell number "$number" "$value"
        tell changed "$by" "$at"
    done
}

# Attempts that have ended or not, and the room that is left.
tell_worker() {
    word=
    for job in "$tpukit"/jobs/provision-*; do
        if [ -f "$job/status" ]; then tell ended "${job##*/}"; elif [ -d "$job" ]; then tell open "${job##*/}"; fi
    done
    tell free "$(df -Pk / "$HOME" 2>/dev/null | awk 'NR > 1 && (!least || $4 < least) { least = $4 } END { print least + 0 }')"
    if [ "$TPUKIT_EMULATED_DEVICES" ]; then tell emulated yes; fi
    tell_ledgers
}

# check [root]: the facts of one step.
check() {
    fact
    if [ "$needed" ] && [ "$1" = root ]; then require_root; fi
    tell checked
}
