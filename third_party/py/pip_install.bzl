# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What the repository rules for Python packages share."""

# Say which Python find_python.sh finds: with another one, rules run again.
VARIABLES_OF_PYTHON = [
    "HERMETIC_PYTHON_VERSION",
    "JTE_HERMETIC_PYTHON_VERSION",
    "PYENV_ROOT",
]

def run(ctx, what, command):
    """Returns what a command prints, or stops the build with it.

    Args:
      ctx: of the repository rule.
      what: what the command does: "Making a virtual environment".
      command: program and arguments.
    """

    # 30 minutes: JAX and its peers are some 300 MB on a slow connection.
    result = ctx.execute(command, timeout = 1800)
    if result.return_code:
        fail("{} failed.\nCommand: {}\n{}\n{}".format(
            what,
            " ".join([str(word) for word in command]),
            result.stdout,
            result.stderr,
        ))
    return result.stdout.strip()

def pip_install(ctx, python, lock, options = []):
    """Installs what a lock file has, and nothing else.

    Args:
      ctx: of the repository rule.
      python: the interpreter to install for.
      lock: label of the lock file.
      options: more options of `pip install`.
    """
    run(ctx, "Installing {}".format(lock), [
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--require-hashes",
        "--requirement",
        ctx.path(lock),
    ] + options)
