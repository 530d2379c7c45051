# fish completion for tpukit: a file tpukit.fish in ~/.config/fish/completions
function __tpukit_words
    set -l words (commandline -opc)
    set -l last (commandline -ct)
    for line in (tpukit completion --words -- $words[2..-1] "$last" 2>/dev/null)
        if string match -q ':files*' -- $line
            __fish_complete_path "$last"
        else
            echo $line
        end
    end
end
complete -c tpukit -f -a '(__tpukit_words)'
