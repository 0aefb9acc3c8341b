# Completion of millpond for fish; millpond itself names the candidates.
complete --keep-order --exclusive --command millpond --arguments "(MILLPOND_COMPLETE=fish millpond -- (commandline --current-process --tokenize --cut-at-cursor) (commandline --current-token) 2>/dev/null)"
