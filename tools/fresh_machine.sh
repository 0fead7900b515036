#!/usr/bin/env bash
# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Does what README.md says on a machine with nothing on it: a bare Debian, into
# which the last commit is cloned. As root, with debootstrap installed:
#
#   tools/fresh_machine.sh SUITE [TARGET...]
#
# SUITE is bookworm, trixie or forky; the TARGETs are tested in place of //... .
# Prints what was installed, versions, and the seconds that each command took,
# for the table in docs/platforms.md.
#
# Environment variables:
#   JTE_DEBIAN_MIRROR  where packages come from (else deb.debian.org)
#   JTE_KEEP_ROOT      when set, the root is left for a look
# Of this machine's settings, those without which no package can be fetched go
# along: name servers, proxies, certificates, the dates that apt checks.
set -euo pipefail

# --- On this machine ---

# All mounts are made in a mount namespace of their own, from which none gets out
# (--propagation private), and the processes of the new machine end with it
# (--kill-child). So where the files are removed, no mount is seen: nothing but the
# root's own files can be deleted. Neither a directory nor a device of this machine
# is mounted in it.
prepare_and_enter() {
  if ((EUID != 0)) || ! command -v debootstrap >/dev/null; then
    echo "Needs root and debootstrap (apt-get install debootstrap)." >&2
    exit 1
  fi
  local suite=$1 work code=0
  work=$(mktemp -d "${TMPDIR:-/tmp}/fresh_machine.$suite.XXXXXX")
  git -C "$(dirname "$0")" clone --quiet --bare --no-hardlinks "$(
    git -C "$(dirname "$0")" rev-parse --show-toplevel
  )" "$work/repository"
  unshare --mount --propagation private --pid --fork --kill-child \
    "$0" --in-namespace "$work" "$@" || code=$?
  if [[ ${JTE_KEEP_ROOT:-} ]]; then
    echo "The root is in $work/root."
  else
    rm -rf --one-file-system "$work"
  fi
  exit "$code"
}

# --- In the namespace ---

make_machine() {
  local work=$1 suite=$2
  local root=$work/root script=() variables=() name
  local start=$SECONDS
  # An old debootstrap does not know the newest suite, which is made like sid.
  [[ -e /usr/share/debootstrap/scripts/$suite ]] ||
    script=(/usr/share/debootstrap/scripts/sid)
  if ! debootstrap --variant=minbase "$suite" "$root" \
    "${JTE_DEBIAN_MIRROR:-http://deb.debian.org/debian}" "${script[@]}" \
    >"$work/debootstrap.log" 2>&1; then
    tail -n 20 "$work/debootstrap.log" >&2
    exit 1
  fi
  echo "== A bare $suite, made in $((SECONDS - start)) s"

  mount -t proc proc "$root/proc"
  mount -t sysfs -o ro sysfs "$root/sys"
  mount -t tmpfs -o mode=755 tmpfs "$root/dev"
  mknod -m 666 "$root/dev/null" c 1 3
  mknod -m 666 "$root/dev/zero" c 1 5
  mknod -m 666 "$root/dev/full" c 1 7
  mknod -m 666 "$root/dev/random" c 1 8
  mknod -m 666 "$root/dev/urandom" c 1 9
  ln -s /proc/self/fd "$root/dev/fd"
  mkdir -m 1777 "$root/dev/shm"

  cp /etc/resolv.conf "$root/etc/resolv.conf"
  # As the installer of Debian writes it: JAX's processes look for their own name.
  printf '127.0.0.1 localhost\n127.0.1.1 %s\n' "$(hostname)" >"$root/etc/hosts"
  apt-config dump | grep -E '^Acquire::(Check-|https?::Proxy)' \
    >"$root/etc/apt/apt.conf.d/99this_machine" || true
  for name in {http,https,no}_proxy {HTTP,HTTPS,NO}_PROXY PIP_INDEX_URL; do
    [[ -v $name ]] && variables+=("$name=${!name}")
  done
  name=${PIP_CERT:-${SSL_CERT_FILE:-}}
  if [[ $name ]]; then
    cp "$name" "$root/etc/certificates_of_this_machine.crt"
    for variable in PIP_CERT SSL_CERT_FILE; do
      variables+=("$variable=/etc/certificates_of_this_machine.crt")
    done
  fi
  mv "$work/repository" "$root/srv/repository"
  cp "$0" "$root/srv/fresh_machine.sh"
  exec env -i "${variables[@]}" HOME=/root LANG=C.UTF-8 \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    chroot "$root" /srv/fresh_machine.sh --in-root "${@:2}"
}

# --- In the root ---

packages() { dpkg-query --show --showformat='${Package}\n'; }

# Runs a command; its time becomes a line of the summary.
timed() {
  local start=$SECONDS
  echo "== $*"
  "$@" </dev/null || {
    echo "== Failed after $((SECONDS - start)) s: $*" >&2
    printf '%s' "$summary" >&2
    exit 1
  }
  printf -v summary '%s%6d s  %s\n' "$summary" $((SECONDS - start)) "$*"
}

get_git() {
  apt-get update
  DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
    git ca-certificates
} >/dev/null 2>&1

use_wheel() {
  python3 -m venv "$HOME/bare"
  "$HOME/bare/bin/pip" install --quiet "$(ls -t dist/*.whl | head -1)[flax]"
  (cd / && "$HOME/bare/bin/python" "$HOME/project/examples/quick_start.py")
}

follow_readme() {
  local suite=$1 targets=("${@:2}") before summary=""
  # The one thing that README.md asks for besides Python, which comes along.
  get_git
  before=$(packages)
  cd "$HOME"
  git clone --quiet /srv/repository project
  cd project
  timed ./bazelw run //jax_tpu_embedding/sparsecore/examples/shakespeare
  timed ./bazelw test "${targets[@]:-//...}"
  timed tools/local_build_wheel.sh
  timed use_wheel

  echo "== Installed besides git: $(
    comm -13 <(sort <<<"$before") <(packages | sort) | wc -l
  ) packages"
  echo "== Versions"
  (
    . /etc/os-release
    echo "$PRETTY_NAME, $(git rev-parse --short HEAD)"
    python3 --version
    "$HOME/bare/bin/python" -c 'import jax; print("JAX", jax.__version__)'
    g++ --version | head -1
    protoc --version
    dpkg-query --show bazel-bootstrap
    ls dist
  )
  echo "== Times on $suite, $(nproc) cores, $(date +%F)"
  printf '%s' "$summary"
}

case ${1:-} in
  --in-namespace) make_machine "${@:2}" ;;
  --in-root) follow_readme "${@:2}" ;;
  [a-z]*) prepare_and_enter "$@" ;;
  *)
    echo "Usage: tools/fresh_machine.sh SUITE [TARGET...]" >&2
    exit 2
    ;;
esac
