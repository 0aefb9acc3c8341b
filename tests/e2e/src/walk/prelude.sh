#!/bin/bash
# Begins the script of docs/walk.md, on the console of the fresh Debian.
# no terminal: bars of progress would hide the reasons of a failure
exec > >(cat) 2>&1 < /dev/null
writer=$!
set -e
export SYSTEMD_PAGER= SYSTEMD_COLORS=0 DEBIAN_FRONTEND=noninteractive HOME=/root
cd /root
systemctl is-system-running --wait > /dev/null || true

# The reasons of a failure.
last_words() {
  code=$?
  [ $code != 0 ] || return 0
  echo '--- exit code' $code
  dmesg | tail -n 20
  journalctl -q -n 40 -o cat --no-pager -u millpond -u libvirtd
  millpond status
  tail -n 20 /var/log/libvirt/qemu/vm1.log
}
trap 'last_words; exec >&- 2>&-; wait $writer' EXIT

# Types commands of standard input at the console of the guest, as `virsh console` does, and prints
# their output. Fails if one of them fails.
in_guest() {
  local pty token line limit command typed=()
  mapfile -t typed
  pty=$(virsh ttyconsole vm1 | head -n 1)
  exec 9<> "$pty"
  stty -F "$pty" raw -echo
  token=$RANDOM$RANDOM
  # while the guest boots, it answers nothing, or echoes
  limit=$((SECONDS + 600))
  until [ "$line" = "READY-$token" ]; do
    [ $SECONDS -lt $limit ] || { echo 'the guest does not answer'; return 1; }
    printf 'echo READY-%s\n' $token >&9
    while IFS= read -r -t 5 line <&9; do
      line=${line%$'\r'}
      [ "$line" != "READY-$token" ] || break
    done
  done
  for command in "${typed[@]}"; do
    printf '%s; echo "STATUS-%s $?"\n' "$command" $token >&9
    while IFS= read -r -t 300 line <&9 || { echo "no answer to '$command'"; return 1; }; do
      line=${line%$'\r'}
      case $line in
        "READY-$token") ;;
        "STATUS-$token 0") break ;;
        "STATUS-$token "*) echo "'$command' failed in the guest"; return 1 ;;
        *) printf '%s\n' "$line" ;;
      esac
    done
  done
  exec 9>&-
}
