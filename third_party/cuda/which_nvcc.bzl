# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Which of the locked versions of nvcc takes the system's compiler and C library.

The older one is preferred: GPUs that are newer than those that code is compiled
for compile its PTX when they load it, and need a driver that is as new as nvcc.
"""

# The newest GCC of each, in its host_config.h.
_NEWEST_GCC_FOR_13_0 = 15
_NEWEST_GCC_FOR_13_5 = 16

# From this minor version on, by its release notes, glibc 2 has rsqrt(), which the
# headers of 13.0 declare in another way. Seen with 2.43.
_FIRST_GLIBC_WITH_RSQRT = 42

def _number(text):
    return int(text) if text.isdigit() else 0

def which_nvcc(ctx):
    """The locked version of nvcc, "13.0" or "13.5"; "" if GCC is too new.

    Args:
      ctx: of a repository rule that runs again when the system changes.

    Returns:
      The version, and that of GCC.
    """

    # Not ctx.which: actions have another PATH than the user.
    gcc = ctx.path("/usr/bin/gcc")
    gcc_version = ctx.execute([gcc, "-dumpversion"]).stdout.strip() if gcc.exists else ""
    gcc_major = _number(gcc_version.split(".")[0])

    # "glibc 2.36"; other C libraries have another name there, or no getconf.
    getconf = ctx.which("getconf")
    libc = ctx.execute([getconf, "GNU_LIBC_VERSION"]).stdout.strip() if getconf else ""
    glibc_minor = _number(libc.split(".")[1]) if libc.startswith("glibc 2.") else 0
    if gcc_major <= _NEWEST_GCC_FOR_13_0 and glibc_minor < _FIRST_GLIBC_WITH_RSQRT:
        return "13.0", gcc_version
    if gcc_major <= _NEWEST_GCC_FOR_13_5:
        return "13.5", gcc_version
    return "", gcc_version
