# Begins the script of a page: the devices of the examples, which are files here, and a daemon with
# its default paths.
exec 2>&1 < /dev/null
set -e
export HOME=/tmp PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
unset MILLPOND_SOCKET XDG_RUNTIME_DIR
rm -rf /etc/millpond /var/lib/millpond
mkdir -p /work /srv /mnt /backup /etc/millpond
cd /work

# start [OPTION...]: starts the daemon.
start() {
  millpond serve "$@" >> /run/daemon.log &
  daemon=$!
  millpond status --wait 20 > /run/status
}

stop() {
  kill "$daemon"
  wait "$daemon"
}

# Pools, exports, policies and the contents of all devices go; the daemon is a new one.
afresh() {
  stop
  devices
  rm -rf /var/lib/millpond
  mkdir -p /var/lib/millpond/pools
  start "$@"
}

devices() {
  mkdir -p /dev/shm /dev/disk/by-id /devices
  rm -f /devices/* /dev/sd? /dev/nvme?n1
  truncate -s 1G /devices/sd{b..l} /devices/nvme{0..3}n1
  # a plain file among the device nodes would be refused
  ln -s /devices/* /dev
  ln -sf /dev/sdb /dev/disk/by-id/A
  ln -sf /dev/sdc /dev/disk/by-id/B
}

devices
mkdir -p /var/lib/millpond/pools
start
