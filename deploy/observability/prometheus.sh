#!/usr/bin/env bash
# Print the directory that has Prometheus' programs `promtool` and `prometheus`: that of the system, or else one below the
# user's cache directory into which Debian's package is unpacked. Nothing is installed, and no service starts.
# Exits 3, with a line that says why, where they cannot be had.
set -euo pipefail

if promtool=$(command -v promtool) && command -v prometheus >/dev/null; then
  dirname "$promtool"
  exit
fi

folder=${XDG_CACHE_HOME:-$HOME/.cache}/headwater-tools/prometheus
if [[ -x $folder/usr/bin/promtool && -x $folder/usr/bin/prometheus ]]; then
  echo "$folder/usr/bin"
  exit
fi

cannot() {
  echo "no promtool: $1" >&2
  exit 3
}
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null ||
  cannot "it is not installed, and this is no Debian from which to take it"
mkdir -p "$(dirname "$folder")"
work=$(mktemp -d "$folder.XXXXXX")
trap 'rm -rf "$work"' EXIT
fetch() { (cd "$work" && apt-get download prometheus >&2); }
if ! fetch; then
  ((EUID == 0)) || cannot "it is not installed, and apt cannot bring it; as root its lists would be updated first"
  apt-get update -qq >&2 && fetch || cannot "it is not installed, and apt cannot bring it"
fi
dpkg-deb -x "$work"/prometheus_*.deb "$work/unpacked"
rm -rf "$folder"
mv "$work/unpacked" "$folder" # at once: nobody sees half of it
echo "$folder/usr/bin"
