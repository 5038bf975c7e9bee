#!/bin/sh
# Base images without an image registry, from the distribution's packages: base.sh FOLDER [SUITE [MIRROR]]
#
# Makes FOLDER/base.tar (Python) and FOLDER/build.tar (also venv and g++) unless they are there. Then
#   docker import FOLDER/base.tar rumormill-base
#   docker import FOLDER/build.tar rumormill-build
# and build with --build-arg BASE_IMAGE=rumormill-base --build-arg BUILD_IMAGE=rumormill-build.
set -eu

folder=${1:?usage: base.sh FOLDER [SUITE [MIRROR]]}
suite=${2:-bookworm}
mirror=${3:-}

test "$(id -u)" = 0 || { echo "base.sh: debootstrap needs root" >&2; exit 1; }
command -v debootstrap > /dev/null || { echo "base.sh: install debootstrap" >&2; exit 1; }
mkdir -p "$folder"

# What a container doesn't read.
slim() {
  rm -rf "$1"/var/cache/apt/* "$1"/var/lib/apt/lists/* "$1"/var/log/* \
    "$1"/usr/share/doc/* "$1"/usr/share/man/* "$1"/usr/share/locale/* "$1"/usr/share/info/*
}

make_tar() { # NAME PACKAGES
  test -f "$folder/$1.tar" && return
  root=$(mktemp -d "$folder/$1.XXXXXX")
  trap 'rm -rf "$root"' EXIT
  # shellcheck disable=SC2086  # no mirror is no argument
  debootstrap --variant=minbase --include="$2" "$suite" "$root" $mirror > "$folder/$1.log"
  slim "$root"
  tar --create --file "$folder/$1.tar.new" --directory "$root" .
  mv "$folder/$1.tar.new" "$folder/$1.tar"
  rm -rf "$root"
  trap - EXIT
}

make_tar base python3
make_tar build python3,python3-venv,g++
