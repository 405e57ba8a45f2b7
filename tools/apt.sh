#!/usr/bin/env bash
# tools/apt.sh PACKAGE...: install the first of these packages that the distribution has.
# Fails, saying why, where apt is missing or may not be used without a password.
set -euo pipefail

if ! command -v apt-get >/dev/null; then
    echo "there is no apt-get here to install $1 with" >&2
    exit 1
fi
if [ "$(id -u)" -eq 0 ]; then
    as_root=()
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    as_root=(sudo -n)
else
    echo "installing $1 needs root or sudo without a password" >&2
    exit 1
fi

# An index that cannot be refreshed may still be good enough; the install below decides.
"${as_root[@]}" apt-get update >&2 || true
for package in "$@"; do
    echo "trying to install $package" >&2
    if "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install --yes --no-install-recommends "$package" >&2; then
        exit 0
    fi
done
echo "apt could install none of: $*" >&2
exit 1
