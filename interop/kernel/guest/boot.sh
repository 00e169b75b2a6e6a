#!/bin/sh
# First program of the guest: loads the modules for its disk, mounts the disk, and starts
# setup.sh from it.
/bin/busybox mkdir -p /proc /dev /disk
/bin/busybox mount -t devtmpfs none /dev
for module in $(/bin/busybox cat /modules); do
    /bin/busybox insmod "/lib/$module" || echo "boot: no $module"
done
tries=0
while [ ! -b /dev/vda ] && [ $tries -lt 200 ]; do
    tries=$((tries + 1))
    /bin/busybox usleep 20000
done
/bin/busybox mount -t ext4 /dev/vda /disk || exec /bin/busybox sh
/bin/busybox mount --move /dev /disk/dev
exec /bin/busybox switch_root /disk /etc/interop/setup.sh
