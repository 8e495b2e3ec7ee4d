#!/usr/bin/env bash
# Make sure that Spark will find Java 17 or newer: JAVA_HOME first, then java on PATH.
# Silent when it is there; otherwise installs it with apt, or says the one command that does.
set -euo pipefail

least=17

major_version() { # "17" for: openjdk version "17.0.15" ...; "8" for: java version "1.8.0_392"
    "$1" -version 2>&1 | sed -nE 's/.* version "(1\.)?([0-9]+).*/\2/p' | head -n 1
}

is_new_enough() {
    local major
    major=$(major_version "$1" 2>/dev/null) || return 1
    [[ -n $major && $major -ge $least ]]
}

if [[ -n ${JAVA_HOME:-} ]]; then
    is_new_enough "$JAVA_HOME/bin/java" && exit 0
    echo "JAVA_HOME is $JAVA_HOME, where no Java $least or newer runs, and Spark would use it." >&2
    echo "Point it at a newer Java, or: unset JAVA_HOME" >&2
    exit 1
fi

command -v java >/dev/null && is_new_enough java && exit 0

as_root=()
[[ $(id -u) -eq 0 ]] || as_root=(sudo -n)

if command -v apt-get >/dev/null && { [[ $(id -u) -eq 0 ]] || sudo -n true 2>/dev/null; }; then
    echo "No Java $least or newer found: installing one with apt-get ..." >&2
    export DEBIAN_FRONTEND=noninteractive
    "${as_root[@]}" apt-get update -qq
    # Newer releases of Debian and Ubuntu no longer carry 17.
    "${as_root[@]}" apt-get install -y -qq openjdk-17-jre-headless >/dev/null ||
        "${as_root[@]}" apt-get install -y -qq openjdk-21-jre-headless >/dev/null
    hash -r
    is_new_enough java && exit 0
    echo "Java was installed, but 'java' on PATH is still older than $least." >&2
    echo "Choose the new one: sudo update-alternatives --config java" >&2
    exit 1
fi

if command -v apt-get >/dev/null; then
    remedy="sudo apt-get update && sudo apt-get install -y openjdk-17-jre-headless"
elif command -v dnf >/dev/null; then
    remedy="sudo dnf install -y java-17-openjdk-headless"
elif command -v brew >/dev/null; then
    remedy="brew install --cask temurin@17"
else
    remedy="install a Java runtime, version $least or newer, and put it on PATH"
fi
echo "Spark needs Java $least or newer, and none was found. To get it: $remedy" >&2
exit 1
