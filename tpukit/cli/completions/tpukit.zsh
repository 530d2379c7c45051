#compdef tpukit
# zsh completion for tpukit: a file _tpukit in a folder of $fpath, or source <(tpukit completion zsh)
_tpukit() {
    local line
    local -a found
    while IFS= read -r line; do
        if [[ $line == ':files'* ]]; then
            _files
            return
        fi
        found+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
    done < <(tpukit completion --words -- "${(@)words[2,CURRENT]}" 2>/dev/null)
    _describe tpukit found
}
if [[ $funcstack[1] == _tpukit ]]; then
    _tpukit "$@"
else
    compdef _tpukit tpukit
fi
