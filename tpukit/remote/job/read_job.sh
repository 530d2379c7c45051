# Say how a job stands, and the next bytes of its log.
#   sh -c STATE_AND_PROGRAM sh JOB OFFSET LIMIT
# Answers one line, "tpukit-job WORD STATUS", with the words of state.sh; and after that line up to
# LIMIT bytes of the log.

folder=$tpukit/jobs/$1
judge "$folder"
# The state is older than the log that follows: when it says finished, the log is whole.
echo "tpukit-job $word"
[ "$word" = absent ] || tail -c "+$(($2 + 1))" "$folder/log" 2>/dev/null | head -c "$3"
