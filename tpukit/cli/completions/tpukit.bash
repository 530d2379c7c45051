# bash completion for tpukit: source <(tpukit completion bash)
_tpukit() {
    local line word=${COMP_WORDS[COMP_CWORD]}
    COMPREPLY=()
    while IFS= read -r line; do
        line=${line%%$'\t'*}
        if [ "$line" = ":files" ]; then
            compopt -o default
            return
        fi
        # bash has taken the word apart at its equals sign.
        case $word in *=*) ;; *) line=${line#--*=} ;; esac
        COMPREPLY+=("$line")
    done < <(tpukit completion --words -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -F _tpukit tpukit
