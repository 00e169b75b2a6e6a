#!/bin/sh
# First program of the guest: loads the modules for its disk, mounts the disk, and starts
# setup.sh from it. The guest never writes to its disk: changes stay in memory, as an overlay. ext4 of
# Linux 6.1.0-54 and 6.1.0-55 crashes if it writes after the guest has dropped its caches.
/bin/busybox mkdir -p /proc /dev /disk /changes /merged
/bin/busybox mount -t devtmpfs none /dev
for module in $(/bin/busybox cat /modules); do
    /bin/busybox insmod "/lib/$module" || echo "boot: no $module"
done
tries=0
while [ ! -b /dev/vda ] && [ $tries -lt 200 ]; do
    tries=$((tries + 1))
    /bin/busybox usleep 20000
done
/bin/busybox mount -t ext4 -o ro /dev/vda /disk || exec /bin/busybox sh
/bin/busybox mount -t tmpfs none /changes
/bin/busybox mkdir /changes/files /changes/work
/bin/busybox mount -t overlay -o lowerdir=/disk,upperdir=/changes/files,workdir=/changes/work none /merged ||
    exec /bin/busybox sh
/bin/busybox mount --move /dev /merged/dev
exec /bin/busybox switch_root /merged /etc/interop/setup.sh
