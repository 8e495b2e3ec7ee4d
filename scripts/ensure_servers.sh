#!/usr/bin/env bash
# Make sure that the tests find the programs of PostgreSQL and MariaDB. They start private servers of
# their own, in temporary folders; a server of the system is neither needed nor touched.
# Silent when they are there; otherwise installs them with apt, or says the one command that does.
set -euo pipefail
export PATH="$PATH:/usr/sbin:/usr/local/sbin"

packages=()
compgen -G "/usr/lib/postgresql/*/bin/initdb" >/dev/null || command -v initdb >/dev/null ||
    packages+=(postgresql)
{ command -v mariadbd || command -v mysqld; } >/dev/null || packages+=(mariadb-server)
[[ ${#packages[@]} -eq 0 ]] && exit 0

if command -v apt-get >/dev/null && { [[ $(id -u) -eq 0 ]] || sudo -n true 2>/dev/null; }; then
    as_root=()
    [[ $(id -u) -eq 0 ]] || as_root=(sudo -n)
    echo "Installing ${packages[*]} with apt-get, for the tests ..." >&2
    # While this file says 101, no package starts a service of its own.
    policy=/usr/sbin/policy-rc.d
    if [[ ! -e $policy ]]; then
        printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" >/dev/null
        "${as_root[@]}" chmod 755 "$policy"
        trap '"${as_root[@]}" rm -f "$policy"' EXIT
    fi
    "${as_root[@]}" apt-get update -qq
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
    exit 0
fi

names="${packages[*]}"
if command -v apt-get >/dev/null; then
    remedy="sudo apt-get update && sudo apt-get install -y $names"
elif command -v dnf >/dev/null; then
    remedy="sudo dnf install -y ${names/postgresql/postgresql-server}"
elif command -v brew >/dev/null; then
    remedy="brew install ${names/mariadb-server/mariadb}"
else
    remedy="install $names and put their programs on PATH"
fi
echo "The tests start private database servers and miss: $names. To get them: $remedy" >&2
exit 1
