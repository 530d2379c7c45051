# How a job stands; read before the programs that use it.

# The same words as in start_job.sh, nothing for a process that is gone or only waits to be reaped.
identity() {
    if read -r line 2>/dev/null <"/proc/$1/stat"; then
        set -- ${line##*) }
        [ "$1" = Z ] && return
        shift 19
        read -r boot </proc/sys/kernel/random/boot_id
        echo "$boot $1"
    elif [ ! -d /proc/self ]; then
        ps -o lstart= -p "$1"
    fi
}

# Set `word` for the job in $1: "finished STATUS", running, starting, lost (it died without saying
# how it ended) or absent.
judge() {
    if [ ! -d "$1" ]; then
        word=absent
    elif read -r status 2>/dev/null <"$1/status"; then
        word="finished $status"
    elif read -r pid born 2>/dev/null <"$1/pid"; then
        word=running
        if [ "$(echo $(identity "$pid"))" != "$born" ]; then
            word=lost
            # It may have ended between the two looks.
            read -r status 2>/dev/null <"$1/status" && word="finished $status"
        fi
    else
        word=starting
    fi
}
