#!/bin/sh
# Process 1 of the guest: sets up mounts, modules, addresses and a Soft-RoCE link, then
# runs the agent for ever. Parameters are on the kernel's command line, as
# interop.KEY=VALUE.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp
mount -t proc none /proc
mount -t sysfs none /sys
mkdir -p /dev/pts /dev/shm
mount -t devpts none /dev/pts
mount -t tmpfs none /dev/shm
mount -t tmpfs none /run
mount -t tmpfs none /tmp
mount -t configfs none /sys/kernel/config 2>/dev/null
argument() { sed -n "s/.*\binterop\.$1=\([^ ]*\).*/\1/p" /proc/cmdline; }
echo guest >/proc/sys/kernel/hostname
ulimit -l unlimited
while read -r module; do
    modprobe "$module" || echo "setup: no $module"
done </etc/interop/load

ip link set lo up
# The interface with the MAC address on the command line is the one under test. The other
# one is for the agent.
for netdev in /sys/class/net/eth*; do
    case $(cat "$netdev/address") in
        "$(argument mac)") ip link set "${netdev##*/}" name data0 ;;
        *) ip link set "${netdev##*/}" name control0 ;;
    esac
done
echo 0 >/proc/sys/net/ipv6/conf/data0/accept_ra
echo 0 >/proc/sys/net/ipv6/conf/data0/accept_dad
ip link set data0 mtu "$(argument mtu)" up
ip addr add "$(argument ip4)" brd + dev data0
ip -6 addr add "$(argument ip6)" dev data0 nodad
ip route add 224.0.0.0/4 dev data0
ip link set control0 up
ip addr add 10.0.2.15/24 dev control0
rdma link add rxe0 type rxe netdev data0
while :; do
    python3 /etc/interop/agent.py "$(argument port)"
    sleep 1
done
