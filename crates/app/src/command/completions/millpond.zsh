#compdef millpond
# Completion of millpond for zsh; millpond itself names the candidates.
_millpond() {
    local -a lines whole open
    local line
    lines=("${(@f)$(
        MILLPOND_COMPLETE=zsh _CLAP_IFS=$'\n' _CLAP_COMPLETE_INDEX=$((CURRENT - 1)) millpond -- "${words[@]}" 2>/dev/null
    )}")
    # no blank follows a candidate that goes on
    for line in "${lines[@]}"; do
        case "${line%%:*}" in
            '') ;;
            *[/=@]) open+=("$line") ;;
            *) whole+=("$line") ;;
        esac
    done
    (( ${#open} )) && _describe -V 'values' open -S ''
    (( ${#whole} )) && _describe -V 'values' whole
}
if [ "$funcstack[1]" = "_millpond" ]; then
    _millpond "$@"
else
    compdef _millpond millpond
fi
