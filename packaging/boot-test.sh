#!/bin/sh
# Tests the units of the package in a system that runs systemd: configured links, and
# programs across restarts. `cargo xtask package-test` runs this as root after each of
# three boots.
set -eu
PATH=/usr/sbin:/usr/bin:/sbin:/bin
. /common.sh
boot=$(($(cat /boots 2>/dev/null || echo 0) + 1))
echo "$boot" >/boots

complain() {
    status=$?
    [ "$status" = 0 ] && return
    systemctl status --no-pager ferroced || true
    journalctl --no-pager --lines=40 || true
    exit "$status"
}
trap complain EXIT

main_pid() { systemctl show --property=MainPID --value ferroced; }
runs_again() { systemctl --quiet is-active ferroced && [ "$(main_pid)" != "$1" ]; }
link_is_up() { ferroce link show "$1" 2>/dev/null | grep -q "link $1/1 state ACTIVE "; }
packets() { ferroce stat rxe0 | sed 's/.* sent_pkts \([0-9]*\) .*/\1/'; }
more_packets() { [ "$(packets)" -gt "$1" ]; }
as() {
    user=$1
    shift
    runuser -u "$user" -- env XDG_RUNTIME_DIR="/run/user/$(id -u "$user")" "$@"
}

case $boot in
1)
    say "installation enables and starts no unit"
    quietly dpkg --install /ferroce.deb
    not systemctl --quiet is-enabled ferroced
    not systemctl --quiet is-active ferroced
    getent group ferroce >/dev/null
    useradd --create-home --groups ferroce alice
    useradd --create-home bob

    say "systemd-analyze accepts the units"
    verify() { systemd-analyze --man=no "$@" verify ferroced.service >/tmp/verified 2>&1; }
    verify || { cat /tmp/verified; exit 1; }
    not grep ferroced /tmp/verified
    export XDG_RUNTIME_DIR=/tmp
    verify --user || { cat /tmp/verified; exit 1; }
    not grep ferroced /tmp/verified
    unset XDG_RUNTIME_DIR

    say "the unit takes over links that were added by hand"
    ip link add eth0 type veth peer name far0
    ip addr add 10.0.0.1/24 dev eth0
    ip link set eth0 up
    ip link set far0 up
    ferroce link add rxe0 type rxe netdev lo
    ferroce link add rxe1 type rxe netdev eth0 mtu 512
    ferroce config save
    systemctl enable --now ferroced 2>/dev/null
    link_is_up rxe0
    link_is_up rxe1
    [ "$(main_pid)" = "$(cat /run/ferroce/*/ferroced.pid)" ]
    systemctl status --no-pager ferroced | grep -q 'active (running)'

    say "members of the group ferroce use the links, other users do not"
    as alice ferroce link | grep -q '^link rxe0/1 '
    not as alice ferroce link delete rxe0 2>/dev/null
    as bob ferroce link >/tmp/bob 2>/dev/null || true
    not grep rxe0 /tmp/bob
    as alice ferroce run -- rping -s -a 127.0.0.1 >/dev/null 2>&1 &
    server=$!
    wait_for "rping listens" rping_listens
    as alice ferroce run -- rping -c -a 127.0.0.1 >/dev/null 2>&1 &
    client=$!
    wait_for "packets flow" more_packets 100

    say "programs keep running over a restart and a crash of the unit"
    old=$(main_pid)
    systemctl restart ferroced
    runs_again "$old"
    link_is_up rxe0
    link_is_up rxe1
    wait_for "packets flow again" more_packets $(($(packets) + 100))
    old=$(main_pid)
    kill -KILL "$old"
    wait_for "systemd has restarted ferroced" runs_again "$old"
    wait_for "packets flow again" more_packets $(($(packets) + 100))
    kill -0 "$server" "$client"
    rdma_of_ferroce resource show cm_id state CONNECT | grep -q 'dst-addr 127.0.0.1:7174'
    kill "$client" "$server"
    wait "$client" "$server" 2>/dev/null || true

    say "stop and start recreates the links"
    systemctl stop ferroced
    not systemctl --quiet is-active ferroced
    systemctl start ferroced
    link_is_up rxe0
    link_is_up rxe1

    say "the journal names a mistake in links.toml"
    cp /etc/ferroce/links.toml /tmp/links.toml
    printf '[[link]]\nname = "x"\nnetdev = "lo"\nmtu = 1500\n' >/etc/ferroce/links.toml
    not systemctl restart ferroced 2>/dev/null
    journalctl --sync
    journalctl --unit ferroced --no-pager | grep -q 'links.toml: line 4: mtu 1500 is not one of'
    cp /tmp/links.toml /etc/ferroce/links.toml
    systemctl reset-failed ferroced
    systemctl restart ferroced
    link_is_up rxe0
    ;;
2)
    say "a boot recreates links, each when its netdev exists"
    link_is_up rxe0
    not ferroce link show rxe1 2>/dev/null
    ip link add eth0 type veth peer name far0
    ip addr add 10.0.0.1/24 dev eth0
    ip link set eth0 up
    ip link set far0 up
    wait_for "rxe1 is up" link_is_up rxe1
    ferroce -d link show rxe1 | grep -q ' mtu 512 '

    say "an upgrade restarts ferroced and keeps the links"
    old=$(main_pid)
    quietly dpkg --install /ferroce.deb
    wait_for "the new ferroced runs" runs_again "$old"
    link_is_up rxe0

    say "the unit of a user"
    systemctl disable --now ferroced 2>/dev/null
    ferroce link delete rxe0
    ferroce link delete rxe1
    wait_for "ferroced has ended" no_ferroced
    loginctl enable-linger bob
    wait_for "bob's service manager runs" test -S "/run/user/$(id -u bob)/systemd/private"
    as bob ferroce link add mine type rxe netdev lo
    as bob ferroce config save
    test -s ~bob/.config/ferroce/links.toml
    as bob systemctl --user enable --now ferroced 2>/dev/null
    as bob systemctl --user status --no-pager ferroced | grep -q 'active (running)'
    as bob ferroce link | grep -q '^link mine/1 state ACTIVE '
    as bob ferroce run -- ibv_devices | grep -q mine
    ;;
3)
    say "another boot recreates the user's link, and not root's links"
    bobs_link() { as bob ferroce link 2>/dev/null | grep -q '^link mine/1 state ACTIVE '; }
    wait_for "bob's link exists" bobs_link
    as bob systemctl --user --quiet is-active ferroced
    not systemctl --quiet is-active ferroced
    as bob systemctl --user disable --now ferroced 2>/dev/null

    say "removal of the package while ferroced runs leaves nothing behind"
    as bob ferroce link delete mine
    wait_for "bob's ferroced has ended" no_ferroced
    systemctl enable --now ferroced 2>/dev/null
    link_is_up rxe0
    quietly dpkg --remove ferroce
    wait_for "ferroced has ended" no_ferroced
    test -e /etc/ferroce/links.toml
    quietly dpkg --purge ferroce
    not test -e /etc/ferroce
    not test -e /run/ferroce
    systemctl list-unit-files >/tmp/units
    not grep ferroced /tmp/units
    not ls /etc/systemd/system/*/ferroced.service 2>/dev/null
    say "all checks passed"
    ;;
esac
