# Tell how a job stands, and the next bytes of its log.
#   sh -c PROGRAM sh JOB OFFSET LIMIT
# Answers one line, "tpukit-job WORD STATUS": finished STATUS, running, starting, lost (it died
# without saying how it ended), absent; and after that line up to LIMIT bytes of the log.

folder=$HOME/.tpukit/jobs/$1

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

if [ ! -d "$folder" ]; then
    word=absent
elif [ -e "$folder/status" ]; then
    read -r status <"$folder/status"
    word="finished $status"
elif read -r pid born 2>/dev/null <"$folder/pid"; then
    word=running
    if [ "$(echo $(identity "$pid"))" != "$born" ]; then
        word=lost
        # It may have ended between the two looks.
        [ -e "$folder/status" ] && read -r status <"$folder/status" && word="finished $status"
    fi
else
    word=starting
fi
# The state is older than the log that follows: when it says finished, the log is whole.
echo "tpukit-job $word"
[ "$word" = absent ] || tail -c "+$(($2 + 1))" "$folder/log" 2>/dev/null | head -c "$3"
