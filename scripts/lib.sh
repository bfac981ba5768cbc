# shellcheck shell=bash
# What the scripts beside this file share. Sourced, never run.

export LC_ALL=C LANG=C
# sshd, useradd and the like are not on everybody's PATH; cargo is not after a fresh install of Rust.
PATH=$PATH:/usr/sbin:/sbin:${HOME:-/root}/.cargo/bin

say() { printf '%s\n' "$*"; }
warn() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }
die() {
    warn "$*"
    exit 1
}

# need COMMAND=PACKAGE …: installs the Debian packages of the commands that are missing, as root; otherwise names them.
need() {
    local pair missing=()
    for pair in "$@"; do
        command -v "${pair%%=*}" >/dev/null || missing+=("${pair#*=}")
    done
    if [ ${#missing[@]} -eq 0 ]; then return 0; fi
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
        die "these Debian packages are missing: ${missing[*]} (as root: apt-get install ${missing[*]})"
    fi
    say "installing ${missing[*]}"
    # Only errors are of interest here.
    apt-get -qq update </dev/null
    DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install "${missing[@]}" </dev/null >/dev/null
}

need_rust() {
    command -v cargo >/dev/null || die "there is no cargo: install Rust (https://rustup.rs)"
    need cc=build-essential
}

# Where cargo puts what it builds, whatever the configuration says.
target_dir() {
    cargo metadata --locked --no-deps --format-version 1 | sed 's/.*"target_directory":"\([^"]*\)".*/\1/'
}
