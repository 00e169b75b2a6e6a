#!/bin/sh
# Boots the system in directory ROOT as a container: `boot.sh ROOT`, as root. The exit status
# is that of `systemctl exit N` inside. The system has its own processes, network, mounts and
# control groups. `cargo xtask package-test` runs this.
set -eu

case ${2:-} in
"")
    # A private mount namespace, so that all mounts end with this script.
    exec unshare --mount --propagation private sh "$0" "$1" outside
    ;;
outside)
    # The control group that is the root for the system inside.
    mount -t cgroup2 cgroup2 "$1/mnt"
    group=$1/mnt/ferroce-boot-$$
    mkdir "$group"
    status=0
    sh -c 'echo $$ >"$1/cgroup.procs" && exec timeout --kill-after=5 180 unshare --pid --fork \
        --kill-child --net --mount --ipc --uts --cgroup --propagation private sh "$2" "$3" inside' \
        sh "$group" "$0" "$1" || status=$?
    find "$group" -depth -type d -exec rmdir {} +
    exit "$status"
    ;;
esac

mount --bind "$1" "$1"
cd "$1"
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=755 tmpfs dev
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts
mount -t tmpfs tmpfs dev/shm
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
for device in null zero full random urandom tty; do
    touch "dev/$device"
    mount --bind "/dev/$device" "dev/$device"
done
ip link set lo up
mkdir -p mnt/outside
pivot_root . mnt/outside
cd /
umount -l /mnt/outside
exec env -i container=ferroce PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    /sbin/init --log-target=journal --show-status=no --unit=multi-user.target
