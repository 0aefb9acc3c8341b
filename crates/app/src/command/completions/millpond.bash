# Completion of millpond for bash; millpond itself names the candidates.
_millpond() {
    local words=() word piece index=0 i
    local line=$COMP_LINE at=0 glued
    # bash also splits words at characters such as @, : and =; a part that follows another one
    # without a blank belongs to the same word
    for ((i = 0; i <= COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        glued=yes
        while [[ ${line:at:1} == [[:blank:]] ]]; do
            at=$((at + 1))
            glued=
        done
        piece=$word
        if ((i == COMP_CWORD)); then
            piece=
            if ((COMP_POINT > at)); then
                piece=${line:at:COMP_POINT-at}
            fi
        fi
        if [[ $glued && $i -gt 0 ]]; then
            words[index]+=$piece
        else
            index=${#words[@]}
            words+=("$piece")
        fi
        at=$((at + ${#word}))
    done
    local IFS=$'\n'
    COMPREPLY=($(
        MILLPOND_COMPLETE=bash _CLAP_IFS=$'\n' _CLAP_COMPLETE_INDEX=$index millpond -- "${words[@]}" 2>/dev/null
    ))
    # bash replaces the last part only
    local before=${words[index]}
    before=${before%"$2"}
    COMPREPLY=("${COMPREPLY[@]#"$before"}")
    if [[ ${#COMPREPLY[@]} -ne 1 || ${COMPREPLY[0]} == *[=/:@] ]]; then
        compopt -o nospace
    fi
}
complete -o nosort -F _millpond millpond
