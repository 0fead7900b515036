# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What to install where a part of the package needs more than the package."""

import importlib.util


def require(extra: str, *modules: str) -> None:
  """Raises unless all modules that an extra of the package brings are there.

  Args:
    extra: its name in pyproject.toml.
    *modules: names of modules, such as "flax".

  Raises:
    ModuleNotFoundError: names those that are missing, and what installs them.
  """
  missing = [name for name in modules if not importlib.util.find_spec(name)]
  if missing:
    raise ModuleNotFoundError(
        f"This part of jax_tpu_embedding needs {', '.join(missing)}. Install"
        f" with: pip install 'jax_tpu_embedding[{extra}]'",
        name=missing[0],
    )
