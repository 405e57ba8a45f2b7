#!/usr/bin/env bash
# Prints the home of a Java that Spark can run on; installs one with apt if there is none.
set -euo pipefail
oldest=17

# Prints a java program's home if it is new enough. Java 8 calls itself 1.8.
home_of() {
    local settings version
    settings=$("$1" -XshowSettings:properties -version 2>&1) || return 1
    version=$(sed -n 's/^ *java\.specification\.version = //p' <<<"$settings")
    version=${version#1.}
    if ! [ "${version%%.*}" -ge "$oldest" ] 2>/dev/null; then
        echo "passing over $1: Java ${version:-of unknown version}, needed is $oldest or newer" >&2
        return 1
    fi
    sed -n 's/^ *java\.home = //p' <<<"$settings"
}

find_java() {
    local java
    for java in "${JAVA_HOME:+$JAVA_HOME/bin/java}" "$(command -v java || true)" /usr/lib/jvm/*/bin/java; do
        if [ -x "$java" ] && home_of "$java"; then
            return
        fi
    done
    return 1
}

if find_java; then
    exit
fi
echo "no Java $oldest or newer found, in JAVA_HOME, on PATH or in /usr/lib/jvm" >&2
if "$(dirname "$0")/apt.sh" openjdk-17-jre-headless openjdk-21-jre-headless default-jre-headless && find_java; then
    exit
fi
echo "Spark needs Java $oldest or newer. Install one (on Debian and Ubuntu: apt-get install openjdk-17-jre-headless)" >&2
echo "or set JAVA_HOME to one, then run make again." >&2
exit 1
