#!/usr/bin/env bash
# Tries `make up` and `make test` where nothing is installed: a Debian root made by debootstrap (minbase) with only make, git and
# python3 added. Needs root and debootstrap. The root is deleted at the end, unless KEEP=1.
#
#   sudo scripts/try-bare-debian.sh [ROOT]          ROOT: where to put it, by default a new folder under /tmp
#
#   SUITE=bookworm     the Debian release
#   MIRROR=http://...  where packages come from, by default deb.debian.org
#   COPY="..."         files and folders of this machine that the root needs, such as certificates of a proxy
#   PASS="..."         names of environment variables to hand on, such as https_proxy or PIP_INDEX_URL
#   STEPS="up test"    what to try
set -euo pipefail
cd "$(dirname "$0")/.."

root=${1:-$(mktemp -d /tmp/bare-debian.XXXXXX)}
suite=${SUITE:-bookworm}
mirror=${MIRROR:-http://deb.debian.org/debian}
steps=${STEPS:-up test}

mounts=(proc dev dev/shm)
service=
clean_up() {
    if [ -n "$service" ]; then kill -TERM "$service" 2>/dev/null && wait "$service" || true; fi
    for mount in dev/shm dev proc; do mountpoint -q "$root/$mount" && umount "$root/$mount"; done
    for mount in "${mounts[@]}"; do
        if mountpoint -q "$root/$mount"; then echo "still mounted: $root/$mount; not deleting $root" >&2; return; fi
    done
    if [ "${KEEP:-0}" != 1 ]; then rm -rf --one-file-system "$root"; fi
}
trap clean_up EXIT

if [ ! -e "$root/etc/debian_version" ]; then
    debootstrap --variant=minbase --include=make,git,python3 "$suite" "$root" "$mirror" >"$root.log" 2>&1 || { tail "$root.log"; exit 1; }
    rm -f "$root.log"
fi
cp /etc/resolv.conf /etc/hosts "$root/etc/"
for path in ${COPY:-}; do mkdir -p "$root$(dirname "$path")" && cp -rLT "$path" "$root$path"; done
mount -t proc proc "$root/proc"
# Private: what is mounted below stays in the root.
mount --bind --make-private /dev "$root/dev"
mountpoint -q "$root/dev/shm" || mount -t tmpfs tmpfs "$root/dev/shm"

# What a fresh clone would hold: everything that git tracks or would track.
mkdir -p "$root/root/roskva"
git ls-files -z --cached --others --exclude-standard | tar --null --files-from=- --ignore-failed-read -cf - | tar -xf - -C "$root/root/roskva"

environment=(HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8)
for name in ${PASS:-}; do [ -n "${!name:-}" ] && environment+=("$name=${!name}"); done
inside() { chroot "$root" /usr/bin/env -i "${environment[@]}" bash -c "cd /root/roskva && $1"; }

for step in $steps; do
    echo "== make $step in a bare Debian $suite"
    if [ "$step" != up ]; then
        inside "time make $step"
        continue
    fi
    # exec: the process that we end is `make` itself, as a terminal would.
    chroot "$root" /usr/bin/env -i "${environment[@]}" bash -c "cd /root/roskva && exec make up ARGS='--listen 127.0.0.1:18470'" &
    service=$!
    for _ in $(seq 900); do
        kill -0 "$service" 2>/dev/null || { echo "make up ended by itself" >&2; exit 1; }
        if inside ".venv/bin/roskva status --url http://127.0.0.1:18470" >/dev/null 2>&1; then break; fi
        sleep 1
    done
    inside 'export ROSKVA_URL=http://127.0.0.1:18470
        .venv/bin/roskva watch demo/hello --count 2 --timeout 90 | grep -m 1 -w 7 & watch=$!  # first "unknown", then the version
        sleep 10
        .venv/bin/roskva publish demo/hello 7 && wait $watch && .venv/bin/roskva status'
    kill -TERM "$service"
    wait "$service" || true
    service=
done
echo "== worked in a bare Debian $suite: make ${steps// /, make }"
