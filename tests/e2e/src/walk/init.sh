#!/bin/busybox sh
# Init of the guest on docs/walk.md: a console that takes commands, and a power button.
export PATH=/sbin:/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -o remount,rw /
off() { sync; mount -o remount,ro /; poweroff -f; }
for event in /dev/input/event*; do (dd if=$event of=/dev/null bs=24 count=1 2> /dev/null && off) & done
stty -F /dev/ttyS0 -echo
exec < /dev/ttyS0 > /dev/ttyS0 2>&1
while read -r line; do eval "$line"; done
