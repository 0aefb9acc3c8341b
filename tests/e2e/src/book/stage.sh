# The stage for the commands of a page: a private copy of the system in memory.
# Arguments: an empty directory, the program, and the script to run there.
stage=$1 program=$2 script=$3
set -e
ip link set lo up
mkdir "$stage/memory" "$stage/view"
mount -t tmpfs stage "$stage/memory"
mkdir "$stage/memory/changes" "$stage/memory/work"
mount -t overlay -o "lowerdir=/,upperdir=$stage/memory/changes,workdir=$stage/memory/work" stage "$stage/view"
for dir in dev run tmp; do mount -t tmpfs "$dir" "$stage/view/$dir"; done
mount -t proc proc "$stage/view/proc"
for node in null zero full random urandom fuse kvm; do
  [ -e /dev/$node ] || continue
  touch "$stage/view/dev/$node"
  mount --bind /dev/$node "$stage/view/dev/$node"
done
touch "$stage/view/usr/local/bin/millpond"
mount --bind "$program" "$stage/view/usr/local/bin/millpond"
cp "$script" "$stage/view/run/script"
exec chroot "$stage/view" /bin/bash /run/script
