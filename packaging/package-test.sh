#!/bin/sh
# Installs the package in a fresh system, uses it as a user, upgrades and removes it.
# `cargo xtask package-test` runs this as root.
set -eu
. /common.sh
as_user() { setpriv --reuid=4242 --regid=4242 --clear-groups env HOME=/tmp PATH="$PATH" "$@"; }

find / -xdev -path /proc -prune -o -path /tmp -prune -o -path /var -prune -o -print | sort >/tmp/before

say "install"
quietly dpkg --install /ferroce.deb
# The system's rdma is still that of iproute2.
test "$(command -v rdma)" = "$(dpkg --listfiles iproute2 | grep '/bin/rdma$')"

say "ferroce doctor"
as_user ferroce doctor >/tmp/doctor || { cat /tmp/doctor; exit 1; }

say "ferroce demo"
as_user ferroce demo --quick >/tmp/demo
grep -q 'atomics 1000 additions' /tmp/demo

say "ibv_rc_pingpong with ulimit -l 0"
as_user ferroce run -- sh -c '
    set -e
    . /common.sh
    ulimit -l 0
    ibv_rc_pingpong -d rxe0 -g 1 -s 1048576 -n 100 -c >/tmp/server &
    wait_for "the server listens" listens 4853
    ibv_rc_pingpong -d rxe0 -g 1 -s 1048576 -n 100 -c 127.0.0.1 >/tmp/client
    wait $!'
grep -q '100 iters in' /tmp/server
grep -q '100 iters in' /tmp/client

say "rping"
as_user ferroce run -- sh -c '
    set -e
    . /common.sh
    rping -s -a 127.0.0.1 -C 10 >/tmp/rping-server 2>&1 &
    wait_for "rping listens" rping_listens
    rping -c -v -a 127.0.0.1 -C 10 >/tmp/rping-client 2>&1
    wait' || { cat /tmp/rping-client; exit 1; }
grep -q 'ping data: rdma-ping-9' /tmp/rping-client

say "rdma, rxe_cfg and sudo, as in guides"
as_user ferroce shell --no-link </dev/null
as_user ferroce run --no-link -- sh -c '
    set -e
    sudo rdma link add rxe0 type rxe netdev lo
    rdma link | grep -q "^link rxe0/1 state ACTIVE physical_state LINK_UP netdev lo"
    ibv_devices | grep -q rxe0
    rxe_cfg | grep -q "rxe0  4096  (5)"
    rdma link delete rxe0'

say "man pages and completions"
test -s /usr/share/man/man1/ferroce.1
test -s /usr/share/bash-completion/completions/ferroce

say "an upgrade keeps root's configuration"
ferroce config path | grep -qx /etc/ferroce/links.toml
mkdir -p /etc/ferroce
printf '[[link]]\nname = "rxe0"\nnetdev = "lo"\n' >/etc/ferroce/links.toml
quietly dpkg --install /ferroce.deb
ferroced --configured
ferroce link | grep -q 'rxe0/1'
ferroce link delete rxe0
kill "$(cat /run/ferroce/*/ferroced.pid)"
wait_for "ferroced has ended" no_ferroced
quietly dpkg --remove ferroce
test -e /etc/ferroce/links.toml

say "a purge leaves nothing behind"
quietly dpkg --purge ferroce
find / -xdev -path /proc -prune -o -path /tmp -prune -o -path /var -prune -o -print | sort >/tmp/after
diff /tmp/before /tmp/after
say "all checks passed"
