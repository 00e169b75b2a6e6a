#!/bin/sh
# Inside a Debian system with perftest, as root: unpacks the tarball of a release and runs it
# as a user, from where it lies. `cargo xtask dist --try` runs this.
set -eu
. /mnt/common.sh
as_user() { setpriv --reuid=4242 --regid=4242 --clear-groups env HOME=/tmp PATH="$PATH" "$@"; }
bytes_sent() { as_user ferroce stat --json | tr -d ' \n' | grep -o '"sent_bytes":[0-9]*' | head -n 1 | cut -d: -f2; }

chmod 1777 /tmp
mkdir /mnt/here
tar --extract --gzip --file /mnt/ferroce-*.tar.gz --directory /mnt/here
PATH=$(echo /mnt/here/ferroce-*/bin):$PATH
say "glibc $(ldd --version | sed -n '1s/.* //p'), perftest $(dpkg-query --show --showformat='${Version}' perftest)"

say "the demo"
as_user ferroce demo --quick >/tmp/demo
grep -q 'atomics 1000 additions' /tmp/demo

as_user ferroce link add rxe0 type rxe netdev lo

say "ibv_rc_pingpong, which checks what it receives"
as_user ferroce run -- sh -c '
    set -e
    . /mnt/common.sh
    ibv_rc_pingpong -d rxe0 -g 1 -s 65536 -n 100 -c >/tmp/server &
    wait_for "the server listens" listens 4853
    ibv_rc_pingpong -d rxe0 -g 1 -s 65536 -n 100 -c 127.0.0.1 >/tmp/client
    wait $!'
grep -q '100 iters in' /tmp/server
grep -q '100 iters in' /tmp/client

say "ib_send_bw"
before=$(bytes_sent)
as_user ferroce run -- sh -c '
    set -e
    . /mnt/common.sh
    ib_send_bw -d rxe0 -x 1 -p 18516 >/tmp/server &
    wait_for "the server listens" listens 4854
    ib_send_bw -d rxe0 -x 1 -p 18516 127.0.0.1 >/tmp/client
    wait $!' || { cat /tmp/server /tmp/client; exit 1; }
grep -q 'BW average' /tmp/client
# 1000 messages of 64 KiB went over the link.
sent=$(($(bytes_sent) - before))
test "$sent" -ge 65536000 || { echo "only $sent bytes went over the link" >&2; exit 1; }

say "the manual"
test -s /mnt/here/ferroce-*/share/man/man1/ferroce.1
test -s /mnt/here/ferroce-*/LICENSE-MIT

as_user ferroce link delete rxe0
wait_for "ferroced has ended" no_ferroced
