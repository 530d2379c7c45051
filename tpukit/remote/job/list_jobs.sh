# List the jobs of detached runs on this worker.
#   sh -c STATE_AND_PROGRAM sh
# Answers a line a run, "tpukit-run NAME WORD [STATUS] # HEADER", with the words of state.sh and the
# first line of its command; then "tpukit-runs end".

for folder in "$tpukit"/jobs/run.*; do
    [ -d "$folder" ] || continue
    judge "$folder"
    header=
    read -r header 2>/dev/null <"$folder/command"
    printf 'tpukit-run %s %s %s\n' "${folder##*/run.}" "$word" "$header"
done
echo "tpukit-runs end"
